//! How many tests may load the machine at once.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Tests at once that mostly wait. More at a time only make each of them slower, and their
/// deadlines tight.
const AT_ONCE: u32 = 4;
/// How many of them load the machine like one that does not wait.
const HEAVY: u32 = 2;

static TURNS: Semaphore = Semaphore::const_new(AT_ONCE as usize);

/// Waits until few enough other tests run, for one that mostly waits; hold the result while the
/// test runs.
pub async fn light() -> Option<SemaphorePermit<'static>> {
    TURNS.acquire().await.ok() // never closed
}

/// Waits until few enough other tests run; hold the result while the test runs.
pub async fn shared() -> Option<SemaphorePermit<'static>> {
    TURNS.acquire_many(HEAVY).await.ok() // never closed
}

/// Waits until no other test runs: for tests that measure time.
pub async fn alone() -> Option<SemaphorePermit<'static>> {
    TURNS.acquire_many(AT_ONCE).await.ok() // never closed
}
