//! A client with a number of questions outstanding.

use std::{
    io,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};

/// Time after which outstanding questions count as lost and are repeated.
const LOST: Duration = Duration::from_millis(250);

/// One socket that asks one question.
pub(crate) struct Load {
    socket: UdpSocket,
    query: Vec<u8>,
    buffer: [u8; 2048],
}

impl Load {
    pub(crate) fn new(server: SocketAddr, name: &str) -> io::Result<Self> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(LOST))?;
        let mut query = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in name.split('.') {
            query.extend(u8::try_from(label.len()));
            query.extend(label.as_bytes());
        }
        query.extend([0, 0, 1, 0, 1]);
        Ok(Self {
            socket,
            query,
            buffer: [0; 2048],
        })
    }

    /// Number of addresses in an answer.
    pub(crate) fn addresses(&mut self) -> Result<u16> {
        for _ in 0..20 {
            self.send(0)?;
            if self.receive()?.is_some() {
                ensure!(self.buffer[3] & 0x0f == 0, "code {}", self.buffer[3] & 0x0f);
                return Ok(u16::from_be_bytes([self.buffer[6], self.buffer[7]]));
            }
        }
        Err(io::Error::from(io::ErrorKind::TimedOut)).context("no answer")
    }

    /// Keeps `outstanding` questions in flight for `time`; returns the latency of each answer and
    /// the measured time.
    pub(crate) fn run(
        &mut self,
        outstanding: usize,
        time: Duration,
    ) -> Result<(Vec<Duration>, Duration)> {
        let start = Instant::now();
        let mut sent = vec![start; outstanding];
        let mut latencies = Vec::new();
        let mut is_stalled = true;
        while start.elapsed() < time {
            if is_stalled {
                for (id, at) in sent.iter_mut().enumerate() {
                    *at = Instant::now();
                    self.send(u16::try_from(id)?)?;
                }
            }
            let answer = self.receive()?;
            is_stalled = answer.is_none();
            if let Some(id) = answer
                && let Some(at) = sent.get_mut(usize::from(id))
            {
                let now = Instant::now();
                latencies.push(now - *at);
                *at = now;
                self.send(id)?;
            }
        }
        let measured = start.elapsed();
        // Answers on their way do not count for the next measurement.
        while self.receive()?.is_some() {}
        Ok((latencies, measured))
    }

    /// Asks `count` times, one question after another.
    pub(crate) fn run_single(&mut self, count: usize, latencies: &mut Vec<Duration>) -> Result<()> {
        for _ in 0..count {
            let start = Instant::now();
            self.send(0)?;
            if self.receive()?.is_some() {
                latencies.push(start.elapsed());
            }
        }
        Ok(())
    }

    fn send(&mut self, id: u16) -> io::Result<()> {
        self.query[..2].copy_from_slice(&id.to_be_bytes());
        self.socket.send(&self.query).map(drop)
    }

    /// Id of the next answer; `None` if none comes.
    fn receive(&mut self) -> io::Result<Option<u16>> {
        match self.socket.recv(&mut self.buffer) {
            Ok(12..) => Ok(Some(u16::from_be_bytes([self.buffer[0], self.buffer[1]]))),
            Ok(_) => Ok(None),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::ConnectionRefused
                ) =>
            {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    std::thread::sleep(LOST); // not started yet
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
