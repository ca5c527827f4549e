//! Marked secrets, sent through every input, must not appear in any output of a node.

mod scene;
mod shape;

use anyhow::{Result, ensure};
use jaco_chaos::turn;

use scene::{Form, Scene};

/// Exercises all inputs of a single node, valid and invalid, with one log.
async fn nothing_leaks(form: Form) -> Result<()> {
    let _turn = turn::shared().await;
    let mut scene = Scene::start(form).await?;
    scene.founds_a_cluster().await?;
    scene.uses_tokens().await?;
    scene.deploys()?;
    scene.sends_requests().await?;
    scene.applies_what_is_wrong().await?;
    scene.pulls_in_vain().await?;
    scene.hurts_actors().await?;
    scene.sends_requests().await?;
    scene.looks_around().await?;
    scene.crashes_and_returns().await?;
    let log = scene.ends().await?;
    // A log without these lines proves nothing.
    for line in [
        "request started",
        "applied",
        "route table swapped",
        "actor failed",
    ] {
        ensure!(log.contains(line), "the log lacks {line:?}:\n{log}");
    }
    scene.check(&log)?;
    shape::check(form, &log)
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_stay_out_of_the_text_log() -> Result<()> {
    nothing_leaks(Form::Text).await
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_stay_out_of_the_json_log() -> Result<()> {
    nothing_leaks(Form::Json).await
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_stay_out_of_the_journal() -> Result<()> {
    nothing_leaks(Form::Journal).await
}
