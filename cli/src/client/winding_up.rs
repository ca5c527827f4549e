//! Work on a thread of its own that ends soon after the command does.

use std::{
    io::{self, Read, Write},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{blocking, failure::Failure};

/// Whether the command has ended, by Ctrl-C, before the work was done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended(Arc<AtomicBool>);

impl Ended {
    /// Whether to go on.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        match self.0.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// What reads or writes as `inner` does, until the command has ended.
    pub(crate) fn until<T>(&self, inner: T) -> Until<T> {
        Until {
            inner,
            ended: self.clone(),
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.flow() {
            // Not `Interrupted`, which is tried again.
            ControlFlow::Break(()) => Err(io::Error::other("the command was interrupted")),
            ControlFlow::Continue(()) => Ok(()),
        }
    }
}

/// Sets the flag when the command no longer waits.
struct Guard(Ended);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Does `work` where Ctrl-C still ends the command, which it is told by what it is given.
pub(crate) async fn winding_up<T: Send + 'static>(
    work: impl FnOnce(&Ended) -> T + Send + 'static,
) -> Result<T, Failure> {
    let guard = Guard(Ended::default());
    let ended = guard.0.clone();
    blocking(move || work(&ended)).await
}

/// Made by [`Ended::until`].
#[derive(Debug)]
pub(crate) struct Until<T> {
    inner: T,
    ended: Ended,
}

impl<T: Read> Read for Until<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.ended.check()?;
        self.inner.read(buffer)
    }
}

impl<T: Write> Write for Until<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.ended.check()?;
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.ended.check()?;
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn work_hears_that_nobody_waits_for_it_any_more() {
        let (began, beginning) = tokio::sync::oneshot::channel();
        let (told, telling) = tokio::sync::oneshot::channel();
        let waiting = winding_up(move |ended| {
            assert_eq!(ended.flow(), ControlFlow::Continue(()));
            let mut copied = ended.until(io::sink());
            copied.write_all(b"x").unwrap();
            began.send(()).unwrap();
            // Ends once the future below is gone.
            let mut endless = ended.until(io::repeat(0));
            let error = io::copy(&mut endless, &mut io::sink()).unwrap_err();
            copied.write_all(b"x").unwrap_err();
            told.send((error.to_string(), ended.flow())).unwrap();
        });
        tokio::select! {
            _ = waiting => panic!("it cannot be done"),
            begun = beginning => begun.unwrap(),
        }
        let (text, flow) = telling.await.unwrap();
        assert!(text.contains("interrupted"), "{text}");
        assert_eq!(flow, ControlFlow::Break(()));
    }
}
