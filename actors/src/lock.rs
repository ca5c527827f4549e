//! Mutexes over data that a panic cannot spoil.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// The data behind these locks is replaced, never half-written, so a panic spoils nothing.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
