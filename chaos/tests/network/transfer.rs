//! Large transfers between two containers.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use jaco_chaos::Rng;
use sha2::{Digest as _, Sha256};

use crate::traffic::Endpoint;

const PORT: u16 = 9200;
/// Longest pause of a transfer.
const STALL: Duration = Duration::from_secs(60);

/// Incompressible bytes.
pub(crate) fn random_bytes(rng: &mut Rng, mebibytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; mebibytes << 20];
    bytes.chunks_exact_mut(8).for_each(|chunk| {
        chunk.copy_from_slice(&rng.number().to_be_bytes());
    });
    bytes
}

/// Sends `bytes` from one container to another; returns whether they arrived unchanged.
pub(crate) fn transfer(from: &Endpoint, to: &Endpoint, bytes: &[u8]) -> bool {
    let bind = || TcpListener::bind(("0.0.0.0", PORT));
    let listener = to.namespace.within(bind).unwrap().unwrap();
    let address = SocketAddr::from((to.address, PORT));
    let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(10));
    let mut client = from.namespace.within(connect).unwrap().unwrap();
    let (mut server, _) = listener.accept().unwrap();
    client.set_write_timeout(Some(STALL)).unwrap();
    server.set_read_timeout(Some(STALL)).unwrap();
    std::thread::scope(|threads| {
        let received = threads.spawn(move || {
            let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
            loop {
                match server.read(&mut buffer).unwrap() {
                    0 => return hash.finalize(),
                    length => hash.update(&buffer[..length]),
                }
            }
        });
        client.write_all(bytes).unwrap();
        drop(client);
        received.join().unwrap() == Sha256::digest(bytes)
    })
}
