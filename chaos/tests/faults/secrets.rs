//! Marked secrets, sent through every input, must not appear in any output of a node.

mod fixture;
mod log_format;

use anyhow::{Result, ensure};
use jaco_chaos::test_permits;

use fixture::{Fixture, LogFormat};

/// Exercises all inputs of a single node, valid and invalid, with one log.
async fn check_no_leaks(format: LogFormat) -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut fixture = Fixture::start(format).await?;
    fixture.init_cluster().await?;
    fixture.exercise_tokens().await?;
    fixture.deploy()?;
    fixture.send_requests().await?;
    fixture.apply_invalid().await?;
    fixture.pull_unavailable().await?;
    fixture.fail_actors().await?;
    fixture.send_requests().await?;
    fixture.collect_outputs().await?;
    fixture.abort_and_restart().await?;
    let log = fixture.stop().await?;
    // A log without these lines proves nothing.
    for line in [
        "request started",
        "applied",
        "route table swapped",
        "actor failed",
    ] {
        ensure!(log.contains(line), "the log lacks {line:?}:\n{log}");
    }
    fixture.check(&log)?;
    log_format::check(format, &log)
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_stay_out_of_the_text_log() -> Result<()> {
    check_no_leaks(LogFormat::Text).await
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_stay_out_of_the_json_log() -> Result<()> {
    check_no_leaks(LogFormat::Json).await
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_stay_out_of_the_journal() -> Result<()> {
    check_no_leaks(LogFormat::Journal).await
}
