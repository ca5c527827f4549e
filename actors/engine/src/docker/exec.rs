//! Commands run in containers: those of `post_start` and `pre_stop`.

use std::{fmt::Write as _, time::Duration};

use bollard::{
    Docker,
    exec::StartExecResults,
    models::{ExecConfig, ExecInspectResponse},
};
use futures::TryStreamExt;
use jaco_proto::manifest::compose::Hook;

use super::{DockerEngine, projection};
use crate::{CommandExit, EngineError, printable};

/// Bytes of the end of a command's output that are kept.
const KEPT_OUTPUT: usize = 512;
/// Time after the end of a command's output within which the engine must know its exit code.
const EXIT_WITHIN: Duration = Duration::from_secs(10);
const EXIT_POLL: Duration = Duration::from_millis(20);

/// Returns the engine's request for a command.
pub(super) fn request(hook: &Hook) -> ExecConfig {
    ExecConfig {
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        cmd: Some(hook.command.clone()),
        env: Some(projection::environment(&hook.environment)),
        privileged: hook.privileged.then_some(true),
        user: hook.user.clone(),
        working_dir: hook.working_dir.clone(),
        ..Default::default()
    }
}

impl DockerEngine {
    /// Runs a command until it ends.
    pub(super) async fn exec(
        &self,
        container: &str,
        request: ExecConfig,
    ) -> Result<CommandExit, EngineError> {
        let client = self.client().await?;
        let created = client.create_exec(container, request).await;
        let id = self.map_result(created)?.id;
        let started = self.map_result(client.start_exec(&id, None).await)?;
        let mut kept = Vec::new();
        if let StartExecResults::Attached { mut output, .. } = started {
            while let Some(frame) = self.map_result(output.try_next().await)? {
                kept.extend_from_slice(&frame.into_bytes());
                let surplus = kept.len().saturating_sub(KEPT_OUTPUT);
                kept.drain(..surplus);
            }
        }
        Ok(CommandExit {
            code: self.exit_code(&client, &id).await?,
            output: printable(String::from_utf8_lossy(&kept).trim()),
        })
    }

    /// Returns the exit code of a command whose output has ended. The engine records it a moment
    /// later.
    async fn exit_code(&self, client: &Docker, id: &str) -> Result<i64, EngineError> {
        let ended = async {
            loop {
                let seen = self.map_result(client.inspect_exec(id).await)?;
                if let ExecInspectResponse {
                    running: Some(false),
                    exit_code: Some(code),
                    ..
                } = seen
                {
                    return Ok(code);
                }
                tokio::time::sleep(EXIT_POLL).await;
            }
        };
        match tokio::time::timeout(EXIT_WITHIN, ended).await {
            Ok(code) => code,
            Err(_) => Err(EngineError::Api {
                status: 0,
                message: "the engine knows no exit code of a command that has ended".to_owned(),
            }),
        }
    }

    /// Runs commands in order, for at most `limit` together, and returns what failed.
    pub(super) async fn exec_all(
        &self,
        container: &str,
        requests: Vec<ExecConfig>,
        limit: Duration,
    ) -> Vec<String> {
        let mut failures = Vec::new();
        let all = async {
            for request in requests {
                let mut failure = match self.exec(container, request.clone()).await {
                    Ok(CommandExit { code: 0, .. }) => continue,
                    Ok(exit) => exit.to_string(),
                    Err(error) => error.to_string(),
                };
                let words = request.cmd.unwrap_or_default();
                // Writing to a String cannot fail.
                let _ = write!(failure, ": {}", printable(&words.join(" ")));
                failures.push(failure);
            }
        };
        if tokio::time::timeout(limit, all).await.is_err() {
            failures.push(format!("not ended within {} s", limit.as_secs()));
        }
        failures
    }
}
