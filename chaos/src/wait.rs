//! Waiting for something to become true.

use std::{
    fmt,
    future::Future,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

/// How long anything may take that is not measured.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(20);

/// Looks until `look` finds what is wanted, and returns it.
///
/// `look` says why not yet; past `limit` the last reason is the error.
///
/// # Errors
/// When the limit passed.
pub async fn until<T, E, F>(what: &str, limit: Duration, mut look: impl FnMut() -> F) -> Result<T>
where
    F: Future<Output = Result<T, E>>,
    E: fmt::Display,
{
    let start = Instant::now();
    loop {
        let left = limit.saturating_sub(start.elapsed());
        // A look that hangs counts as one that found nothing.
        let why = match tokio::time::timeout(left.max(PAUSE), look()).await {
            Ok(Ok(found)) => return Ok(found),
            Ok(Err(why)) => why.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        if start.elapsed() >= limit {
            bail!("{what}: not within {limit:?}; last seen: {why}");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_becomes_true_is_returned() {
        let mut looks = 0;
        let found = until("three looks", PATIENCE, || {
            looks += 1;
            let seen = looks;
            async move { if seen == 3 { Ok(seen) } else { Err(seen) } }
        });
        assert_eq!(found.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn what_never_becomes_true_is_an_error_with_the_last_reason() {
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
    async fn a_look_that_hangs_does_not_hang_the_wait() {
        let limit = Duration::from_millis(50);
        let hung = until("an answer", limit, || {
            std::future::pending::<Result<(), &str>>()
        });
        assert!(hung.await.unwrap_err().to_string().contains("no answer"));
    }
}
