//! Waiting until a revision runs or has failed.

use std::time::{Duration, Instant};

use jaco_proto::{duration, v1};
use tokio::time::{MissedTickBehavior, interval_at, timeout};

use super::{
    current,
    draw::{Painter, bars},
    goal::Snapshot,
    progress::{Convergence, Tracker},
};
use crate::client::{
    connection::{Client, Feed},
    failure::{Failure, Stop},
    output::{Format, Ui},
    status::{fetch, subscribe},
};

/// Entity types that change during a rollout.
const ENTITIES: [&str; 4] = [
    "deployments",
    "replicas_desired",
    "replicas_observed",
    "rollout_plans",
];
const TICK: Duration = Duration::from_secs(1);

/// Waits until the revision runs.
///
/// # Errors
/// `not_converged` if the revision failed, `rolled_back` if the cluster restored the one before,
/// `timed_out` once `limit` has passed; otherwise the daemon's error. A
/// lost connection is re-established until `limit`.
pub(super) async fn until_converged(
    client: &Client,
    tracker: &mut Tracker,
    started: Instant,
    limit: Duration,
    ui: &mut Ui<'_>,
) -> Result<Convergence, Stop> {
    let deployment = tracker.deployment().to_owned();
    let mut wait = Wait {
        client,
        deployment,
        tracker,
        started,
        painter: Painter::default(),
        ui,
    };
    match timeout(limit, wait.run()).await {
        Ok(result) => result,
        Err(_) => {
            let nanos = i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX);
            Err(wait.tracker.timed_out(&duration::format(nanos)).into())
        }
    }
}

struct Wait<'a, 'b> {
    client: &'a Client,
    deployment: String,
    tracker: &'a mut Tracker,
    started: Instant,
    painter: Painter,
    ui: &'a mut Ui<'b>,
}

impl Wait<'_, '_> {
    async fn run(&mut self) -> Result<Convergence, Stop> {
        loop {
            match self.follow().await {
                Ok(Convergence::Waiting) => {}
                Ok(Convergence::Converged) => return Ok(Convergence::Converged),
                Ok(Convergence::Stuck(failure)) => return Err((*failure).into()),
                Err(Stop::Failed(failure)) if is_transient(&failure) => {
                    tracing::debug!(
                        subsystem = "cliclient",
                        reason = failure.message,
                        "connection to the daemon lost"
                    );
                }
                Err(stop) => return Err(stop),
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Follows one subscription; returns `Waiting` when it ended.
    async fn follow(&mut self) -> Result<Convergence, Stop> {
        // Subscribed before the first fetch, so that no change in between is missed.
        let mut events = subscribe(self.client, &ENTITIES, &self.deployment).await?;
        loop {
            match self.refresh().await? {
                Convergence::Waiting => {}
                verdict => return Ok(verdict),
            }
            if !self.until_event(&mut events).await? {
                return Ok(Convergence::Waiting);
            }
        }
    }

    async fn refresh(&mut self) -> Result<Convergence, Stop> {
        let replicas = current(self.client, &self.deployment).await?;
        let status = fetch(self.client, &self.deployment, "").await?;
        let snapshot = Snapshot::new(&self.deployment, status, replicas);
        let verdict = self.tracker.handle_snapshot(snapshot);
        match (self.ui.err_columns, self.ui.format) {
            _ if self.ui.quiet => {}
            (Some(_), _) => self.redraw(),
            (None, Format::Table) => {
                for line in self.tracker.poll_changes() {
                    self.ui.note(&line);
                }
            }
            (None, Format::Json | Format::Yaml) => {}
        }
        Ok(verdict)
    }

    /// Waits for an event and handles further pending ones. Returns false when the stream has
    /// ended.
    async fn until_event(&mut self, events: &mut Feed<v1::SubscribeEvent>) -> Result<bool, Stop> {
        use futures::FutureExt;

        let mut ticks = interval_at(tokio::time::Instant::now() + TICK, TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let first = loop {
            tokio::select! {
                event = events.next() => break event?,
                _ = ticks.tick() => self.redraw(),
            }
        };
        let Some(first) = first else { return Ok(false) };
        self.tracker.handle_event(first);
        while let Some(ready) = events.next().now_or_never() {
            match ready? {
                Some(event) => self.tracker.handle_event(event),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    fn redraw(&mut self) {
        if let Some(columns) = self.ui.err_columns.filter(|_| !self.ui.quiet) {
            let lines = bars(&self.tracker.services(), self.started.elapsed(), columns);
            self.painter.draw(&lines, self.ui);
        }
    }
}

/// Whether the failure is transient; the revision stays applied, so waiting continues.
fn is_transient(failure: &Failure) -> bool {
    matches!(
        failure.code.as_str(),
        "unavailable"
            | "deadline_exceeded"
            | "no_leader"
            | "raft_unavailable"
            | "state_unavailable"
    )
}
