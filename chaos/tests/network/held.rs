//! Connections that are to survive.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use crate::traffic::Endpoint;

/// Port of the connections.
const PORT: u16 = 9100;
const ANSWER: Duration = Duration::from_secs(10);

/// A connection between two containers, which answers as long as nothing resets it.
pub(crate) struct Held {
    client: TcpStream,
    server: TcpStream,
}

impl Held {
    pub(crate) fn open(from: &Endpoint, to: &Endpoint) -> Self {
        let bind = || TcpListener::bind(("0.0.0.0", PORT));
        let listener = to.namespace.within(bind).unwrap().unwrap();
        let address = SocketAddr::from((to.address, PORT));
        let connect = || TcpStream::connect_timeout(&address, ANSWER);
        let client = from.namespace.within(connect).unwrap().unwrap();
        let (server, _) = listener.accept().unwrap();
        for end in [&client, &server] {
            end.set_read_timeout(Some(ANSWER)).unwrap();
        }
        Self { client, server }
    }

    pub(crate) fn assert_alive(&mut self) {
        let mut byte = [0];
        self.client.write_all(&[1]).unwrap();
        self.server.read_exact(&mut byte).unwrap();
        self.server.write_all(&byte).unwrap();
        self.client.read_exact(&mut byte).unwrap();
    }
}
