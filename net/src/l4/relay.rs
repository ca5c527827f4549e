//! Relays bytes between two TCP connections until both sides have closed.
//!
//! Bytes go from socket to socket through a pipe of the kernel (splice(2)). A direction holds a pipe
//! only while bytes wait in it, so an idle connection costs two sockets and no buffer.

use std::{
    io,
    os::fd::OwnedFd,
    sync::{Mutex, PoisonError},
};

use rustix::{
    io::{Errno, retry_on_intr},
    net::{Shutdown, shutdown},
    pipe::{PipeFlags, SpliceFlags, pipe_with, splice},
};
use tokio::{io::Interest, net::TcpStream, task::yield_now};

/// Most bytes moved into a pipe at once: its default capacity.
const CHUNK: usize = 64 * 1024;
/// Size of the buffer where splice(2) does not work, in bytes.
const BUFFER: usize = 16 * 1024;
/// Chunks after which other tasks get a turn, though more bytes may be waiting.
const CHUNKS_PER_TURN: usize = 16;
/// Most empty pipes that are kept for later.
const MAX_SPARE_PIPES: usize = 128;

/// Pipes that hold no bytes.
#[derive(Debug, Default)]
pub(super) struct Pipes(Mutex<Vec<Pipe>>);

#[derive(Debug)]
struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
}

/// State of a direction after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// Nothing more to read now.
    Drained,
    /// The sender has closed.
    Closed,
    /// splice(2) does not take this socket; no bytes are lost.
    Refused,
}

/// Relays until both directions are closed. The end of one direction is passed on and leaves the
/// other open.
///
/// # Errors
/// The first error of either side; the caller should reset both connections, so that the other
/// side does not take the end for an orderly one.
///
/// # Cancel safety
/// Cancelled, bytes may be lost: drop both connections.
pub(super) async fn relay(a: &TcpStream, b: &TcpStream, pipes: &Pipes) -> io::Result<()> {
    tokio::try_join!(forward(a, b, Some(pipes)), forward(b, a, Some(pipes)))?;
    Ok(())
}

/// Relays one direction, without a pipe if none is left or given.
async fn forward(from: &TcpStream, to: &TcpStream, mut pipes: Option<&Pipes>) -> io::Result<()> {
    loop {
        from.readable().await?;
        let pipe = pipes.and_then(|pipes| Some((pipes, pipes.take()?)));
        let turn = match pipe {
            Some((pipes, pipe)) => {
                // Only an empty pipe goes back: after an error it is dropped with its bytes.
                let turn = splice_available(from, to, &pipe).await?;
                pipes.give(pipe);
                turn
            }
            None => copy_available(from, to).await?,
        };
        match turn {
            Turn::Drained => {}
            Turn::Refused => pipes = None,
            Turn::Closed => {
                return match shutdown(to, Shutdown::Write) {
                    // The receiver has closed, too.
                    Err(Errno::NOTCONN) | Ok(()) => Ok(()),
                    Err(error) => Err(error.into()),
                };
            }
        }
    }
}

/// Moves bytes through an empty pipe until none are waiting; leaves the pipe empty.
async fn splice_available(from: &TcpStream, to: &TcpStream, pipe: &Pipe) -> io::Result<Turn> {
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let mut chunks = 0;
    loop {
        // The pipe is empty here, so `WouldBlock` is about the socket.
        let filled = from.try_io(Interest::READABLE, || {
            let filled = retry_on_intr(|| splice(from, None, &pipe.write, None, CHUNK, flags));
            filled.map_err(io::Error::from)
        });
        let mut rest = match filled {
            Ok(0) => return Ok(Turn::Closed),
            Ok(filled) => filled,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Turn::Drained),
            Err(error) if is_refusal(&error) => return Ok(Turn::Refused),
            Err(error) => return Err(error),
        };
        while rest > 0 {
            let sent = to.try_io(Interest::WRITABLE, || {
                let sent = retry_on_intr(|| splice(&pipe.read, None, to, None, rest, flags));
                sent.map_err(io::Error::from)
            });
            match sent {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => rest = rest.saturating_sub(sent),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                Err(error) => return Err(error),
            }
        }
        chunks += 1;
        if chunks % CHUNKS_PER_TURN == 0 {
            yield_now().await;
        }
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
    )
}

/// Does the same as [`splice_available`] with a buffer of this process.
async fn copy_available(from: &TcpStream, to: &TcpStream) -> io::Result<Turn> {
    let mut buffer = vec![0; BUFFER];
    let mut chunks = 0;
    loop {
        let filled = match from.try_read(&mut buffer) {
            Ok(0) => return Ok(Turn::Closed),
            Ok(filled) => filled,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Turn::Drained),
            Err(error) => return Err(error),
        };
        let mut rest = buffer.get(..filled).unwrap_or_default();
        while !rest.is_empty() {
            match to.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => rest = rest.get(sent..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
                Err(error) => return Err(error),
            }
        }
        chunks += 1;
        if chunks % CHUNKS_PER_TURN == 0 {
            yield_now().await;
        }
    }
}

impl Pipes {
    /// Returns an empty pipe; `None` if the process has no descriptors left.
    fn take(&self) -> Option<Pipe> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        spare.or_else(|| {
            let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
            Some(Pipe { read, write })
        })
    }

    /// Keeps an empty pipe, or closes it if enough are kept.
    fn give(&self, pipe: Pipe) {
        let mut spare = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if spare.len() < MAX_SPARE_PIPES {
            spare.push(pipe);
        }
    }
}

#[cfg(test)]
mod tests;
