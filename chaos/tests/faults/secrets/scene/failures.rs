//! Failures of actors, and of the whole process.

use std::fs;

use anyhow::{Context, Result, ensure};
use jaco_proto::v1::{FailureMode, ReplicaState};
use rustix::process::{Pid, Signal, kill_process};

use super::Scene;

impl Scene {
    pub(in crate::secrets) async fn hurts_actors(&mut self) -> Result<()> {
        let replica = format!("node/runtime/replica:{}-web-0", self.deployment);
        for path in [
            &replica,
            "node/runtime/publisher",
            "node/scheduler/reconcile",
            "node/ingress/proxy",
            "node/raft/raft",
            "node/telemetry",
            "node/lifecycle",
        ] {
            for mode in [FailureMode::Panic, FailureMode::Kill] {
                let up = self
                    .api()
                    .actor(path, "runs", |actor| actor.state == "running")
                    .await?;
                self.api().kill_actor(path, mode).await?;
                self.api()
                    .actor(path, "is restarted", |actor| {
                        actor.state == "running" && actor.restarts > up.restarts
                    })
                    .await?;
            }
        }
        Ok(())
    }

    /// Aborts the process, checks that no core file is written, and restarts it.
    pub(in crate::secrets) async fn crashes_and_returns(&mut self) -> Result<()> {
        let pid = self.daemon.pid()?;
        let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        let core: Vec<&str> = core.unwrap_or_default().split_whitespace().collect();
        ensure!(
            core[4..6] == ["0", "0"],
            "a core file may be written: {core:?}"
        );
        let home = fs::read_link(format!("/proc/{pid}/cwd"))?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("a process id")?;
        kill_process(pid, Signal::ABORT)?;
        self.daemon.ended().await?;
        for entry in fs::read_dir(home)? {
            let name = entry?.file_name();
            ensure!(
                !name.to_string_lossy().starts_with("core"),
                "{name:?} was written"
            );
        }
        self.daemon.start().await?;
        let id = format!("{}-web-0", self.deployment);
        let deployment = self.deployment.clone();
        self.api()
            .replica(&deployment, &id, "runs again", |r| {
                r.state() == ReplicaState::Running
            })
            .await?;
        Ok(())
    }
}
