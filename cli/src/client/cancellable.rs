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
pub(crate) struct Cancelled(Arc<AtomicBool>);

impl Cancelled {
    /// Whether the work should continue.
    pub(crate) fn flow(&self) -> ControlFlow<()> {
        match self.0.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }

    /// Wraps a reader or writer so that it fails once the command was interrupted.
    pub(crate) fn wrap<T>(&self, inner: T) -> CancellableIo<T> {
        CancellableIo {
            inner,
            cancelled: self.clone(),
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
struct Guard(Cancelled);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Runs blocking `work` on a thread. Ctrl-C still ends the command; `work` sees that by its
/// [`Cancelled`].
pub(crate) async fn cancellable<T: Send + 'static>(
    work: impl FnOnce(&Cancelled) -> T + Send + 'static,
) -> Result<T, Failure> {
    let guard = Guard(Cancelled::default());
    let cancelled = guard.0.clone();
    blocking(move || work(&cancelled)).await
}

/// Reader or writer made by [`Cancelled::wrap`].
#[derive(Debug)]
pub(crate) struct CancellableIo<T> {
    inner: T,
    cancelled: Cancelled,
}

impl<T: Read> Read for CancellableIo<T> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.cancelled.check()?;
        self.inner.read(buffer)
    }
}

impl<T: Write> Write for CancellableIo<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.cancelled.check()?;
        self.inner.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.cancelled.check()?;
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
        let waiting = cancellable(move |cancelled| {
            assert_eq!(cancelled.flow(), ControlFlow::Continue(()));
            let mut copied = cancelled.wrap(io::sink());
            copied.write_all(b"x").unwrap();
            began.send(()).unwrap();
            // Fails once the future below is dropped.
            let mut endless = cancelled.wrap(io::repeat(0));
            let error = io::copy(&mut endless, &mut io::sink()).unwrap_err();
            copied.write_all(b"x").unwrap_err();
            told.send((error.to_string(), cancelled.flow())).unwrap();
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
