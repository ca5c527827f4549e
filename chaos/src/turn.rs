//! Permits that bound the number of tests running at the same time.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Permits in total. More tests at once only slow each other down, until their deadlines become
/// tight.
const AT_ONCE: u32 = 4;
/// Permits of a test that loads the machine.
const HEAVY: u32 = 2;

static TURNS: Semaphore = Semaphore::const_new(AT_ONCE as usize);

/// Waits for a single permit, for a test that mostly waits; hold the result while the test runs.
pub async fn light() -> Option<SemaphorePermit<'static>> {
    TURNS.acquire().await.ok() // never closed
}

/// Waits for the permits of a test that loads the machine; hold the result while the test runs.
pub async fn shared() -> Option<SemaphorePermit<'static>> {
    TURNS.acquire_many(HEAVY).await.ok() // never closed
}

/// Waits for all permits: for tests that measure time.
pub async fn alone() -> Option<SemaphorePermit<'static>> {
    TURNS.acquire_many(AT_ONCE).await.ok() // never closed
}
