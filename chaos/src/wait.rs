//! Polling until a condition holds.

use std::{
    fmt,
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// Time limit of every wait that is not a measurement.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two polls.
const PAUSE: Duration = Duration::from_millis(20);

/// Calls `poll` until it succeeds, and returns its result.
///
/// `poll` returns the reason why not yet; past `limit` the last reason is the error.
///
/// # Errors
/// When `limit` has passed.
pub async fn until<T, E, F>(what: &str, limit: Duration, mut poll: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T, E>>,
    E: fmt::Display,
{
    let start = Instant::now();
    let mut before = None;
    loop {
        let left = limit.saturating_sub(start.elapsed());
        // A call that hangs counts as a failed one.
        let why = match tokio::time::timeout(left.max(PAUSE), poll()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(why)) => why.to_string(),
            // The limit ended it; the reason is that of the call before.
            Err(_) => before.take().unwrap_or_else(|| "no answer".to_owned()),
        };
        if start.elapsed() >= limit {
            bail!("{what}: not within {limit:?}; last seen: {why}");
        }
        before = Some(why);
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn first_success_is_returned() {
        let mut looks = 0;
        let found = until("three looks", WAIT_TIMEOUT, || {
            looks += 1;
            let seen = looks;
            async move { if seen == 3 { Ok(seen) } else { Err(seen) } }
        });
        assert_eq!(found.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn timeout_error_holds_last_reason() {
        let limit = Duration::from_millis(50);
        let error = until("a miracle", limit, || async { Err::<(), _>("nothing") })
            .await
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("a miracle") && error.contains("nothing"),
            "{error}"
        );
    }

    #[tokio::test]
    async fn hanging_poll_ends_at_the_limit() {
        let limit = Duration::from_millis(50);
        let hung = until("an answer", limit, || {
            std::future::pending::<Result<(), &str>>()
        });
        assert!(hung.await.unwrap_err().to_string().contains("no answer"));
    }
}
