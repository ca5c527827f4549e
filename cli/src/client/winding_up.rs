//! Blocking work on a thread that stops soon after the command was interrupted.

use std::{
    io::{self, Read, Write},
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{blocking, failure::Failure};

/// Flag that is set when Ctrl-C interrupts the command before the work is done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ended(Arc<AtomicBool>);

impl Ended {
    /// Whether the work should continue.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        match self.0.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Wraps a reader or writer so that it fails once the command was interrupted.
    pub(crate) fn until<T>(&self, inner: T) -> Until<T> {
        Until {
            inner,
            ended: self.clone(),
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.flow() {
            // Not `Interrupted`, which callers retry.
            ControlFlow::Break(()) => Err(io::Error::other("the command was interrupted")),
            ControlFlow::Continue(()) => Ok(()),
        }
    }
}

/// Sets the flag when it is dropped with the waiting future.
struct Guard(Ended);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs blocking `work` on a thread. Ctrl-C still ends the command; `work` sees that by its
/// [`Ended`].
pub(crate) async fn winding_up<T: Send + 'static>(
    work: impl FnOnce(&Ended) -> T + Send + 'static,
) -> Result<T, Failure> {
    let guard = Guard(Ended::default());
    let ended = guard.0.clone();
    blocking(move || work(&ended)).await
}

/// Reader or writer made by [`Ended::until`].
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
    async fn work_stops_when_its_caller_is_dropped() {
        let (began, beginning) = tokio::sync::oneshot::channel();
        let (told, telling) = tokio::sync::oneshot::channel();
        let waiting = winding_up(move |ended| {
            assert_eq!(ended.flow(), ControlFlow::Continue(()));
            let mut copied = ended.until(io::sink());
            copied.write_all(b"x").unwrap();
            began.send(()).unwrap();
            // Fails once the future below is dropped.
            let mut endless = ended.until(io::repeat(0));
            let error = io::copy(&mut endless, &mut io::sink()).unwrap_err();
            copied.write_all(b"x").unwrap_err();
            told.send((error.to_string(), ended.flow())).unwrap();
        });
        tokio::select! {
            _ = waiting => panic!("the work cannot be done"),
            begun = beginning => begun.unwrap(),
        }
        let (text, flow) = telling.await.unwrap();
        assert!(text.contains("interrupted"), "{text}");
        assert_eq!(flow, ControlFlow::Break(()));
    }
}
