//! Log tail of this host's replicas.
//!
//! [`jaco_policy::runtime::logs`] decides what is read next.
//!
//! Each replica is read by its own task, which blocks while its lines are not consumed: a slow
//! consumer costs neither memory nor the throughput of other replicas.

use std::sync::Arc;

use jaco_engine::EngineError;
use jaco_proto::v1::LogLine;
use jaco_state::State;
use tokio::{sync::mpsc, task::JoinSet};

use super::RuntimeContext;
use buffer::buffer;
use source::LogSource;

mod buffer;
mod source;
pub(crate) mod tail_registry;

/// Selects the output to tail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Deployment name.
    pub deployment: String,
    /// Service name; empty for all.
    pub service: String,
    /// One replica; empty for all.
    pub replica_id: String,
    /// Unix seconds of the oldest line; 0 for all.
    pub since: i64,
    /// Stay attached after the newest line.
    pub follow: bool,
}

/// Failure of one source of a tail; the other sources went on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("log stream of replica `{replica_id}` broke")]
pub struct Error {
    /// The replica.
    pub replica_id: String,
    /// Error returned by the engine.
    #[source]
    pub source: EngineError,
}

/// Lines in order of arrival; dropping the tail ends every stream.
#[derive(Debug)]
pub struct Tail {
    lines: mpsc::Receiver<LogLine>,
    sources: JoinSet<Result<(), Error>>,
}

impl Tail {
    /// The next line; `None` when all sources are drained.
    ///
    /// # Cancel safety
    /// No line is lost.
    pub async fn next(&mut self) -> Option<LogLine> {
        self.lines.recv().await
    }

    /// Waits for every source and returns the first failure.
    ///
    /// # Errors
    /// [`Error`] of the first failed source; the lines of the other sources were delivered.
    pub async fn finish(mut self) -> Result<(), Error> {
        self.lines.close();
        let mut first = Ok(());
        while let Some(source) = self.sources.join_next().await {
            if let (Ok(()), Ok(Err(error))) = (&first, source) {
                first = Err(error);
            }
        }
        first
    }
}

pub(super) fn tail(shared: &Arc<RuntimeContext>, query: &Query) -> Tail {
    let (lines, receiver) = mpsc::channel(1);
    let mut sources = JoinSet::new();
    let state = shared.deps.raft.state();
    for id in selected(&state, &shared.deps.host, query) {
        let source = LogSource::new(Arc::clone(shared), id, query.since, query.follow);
        // One buffer per replica, so that a noisy replica does not starve the others.
        let (buffer, buffered) = buffer();
        let lines = lines.clone();
        sources.spawn(async move {
            buffered.drain(lines).await;
            Ok(())
        });
        sources.spawn(source.run(buffer));
    }
    Tail {
        lines: receiver,
        sources,
    }
}

fn selected(state: &State, host: &str, query: &Query) -> Vec<String> {
    let matches = |wanted: &str, value: &str| wanted.is_empty() || wanted == value;
    state
        .replicas_desired
        .values()
        .filter(|row| row.host == host && row.deployment == query.deployment)
        .filter(|row| matches(&query.service, &row.service) && matches(&query.replica_id, &row.id))
        .map(|row| row.id.clone())
        .collect()
}

#[cfg(test)]
mod tests;
