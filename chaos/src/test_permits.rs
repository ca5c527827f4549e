//! Permits that bound the number of tests running at the same time.

use tokio::sync::{Semaphore, SemaphorePermit};

/// Permits in total. More tests at once only slow each other down, until their deadlines become
/// tight.
const TOTAL_PERMITS: u32 = 4;
/// Permits of a test that loads the machine.
const HEAVY_PERMITS: u32 = 2;

static PERMITS: Semaphore = Semaphore::const_new(TOTAL_PERMITS as usize);

/// Waits for a single permit, for a test that mostly waits; hold the result while the test runs.
pub async fn light() -> Option<SemaphorePermit<'static>> {
    PERMITS.acquire().await.ok() // never closed
}

/// Waits for the permits of a test that loads the machine; hold the result while the test runs.
pub async fn heavy() -> Option<SemaphorePermit<'static>> {
    PERMITS.acquire_many(HEAVY_PERMITS).await.ok() // never closed
}

/// Waits for all permits: for tests that measure time.
pub async fn exclusive() -> Option<SemaphorePermit<'static>> {
    PERMITS.acquire_many(TOTAL_PERMITS).await.ok() // never closed
}
