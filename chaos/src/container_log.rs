//! Log of container events of a cluster, from the engine's own event stream.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context, Result};
use bollard::{models::EventMessage, query_parameters::EventsOptions};
use futures::StreamExt;
use tokio::task::JoinHandle;

use crate::engine::{Engine, LABEL_REPLICA, by_cluster};

/// An event of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContainerEvent {
    /// Nanoseconds since the Unix epoch, by the engine's clock.
    pub at_nanos: i64,
    /// The engine's name of the event: `create`, `start`, `die`, `destroy`, ...
    pub action: String,
    /// Replica the container is for.
    pub replica: String,
    /// Engine id of the container.
    pub container: String,
}

/// Records the events of a cluster's containers.
#[derive(Debug)]
pub struct ContainerLog {
    seen: Arc<Mutex<Vec<ContainerEvent>>>,
    task: JoinHandle<()>,
}

impl ContainerLog {
    /// Begins to record; no event after the return is missed.
    ///
    /// # Errors
    /// When the engine refuses.
    pub async fn watch(engine: &Engine, cluster_id: &str) -> Result<Self> {
        let docker = engine.client().await?;
        // The engine replays events since this time, so the time at which the stream opens does not
        // matter.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?;
        let mut filters = by_cluster(cluster_id);
        filters.insert("type".to_owned(), vec!["container".to_owned()]);
        let options = EventsOptions {
            since: Some(
                now.saturating_sub(Duration::from_secs(1))
                    .as_secs()
                    .to_string(),
            ),
            until: None,
            filters: Some(filters),
        };
        let seen = Arc::<Mutex<Vec<ContainerEvent>>>::default();
        let into = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            let mut events = std::pin::pin!(docker.events(Some(options)));
            while let Some(Ok(event)) = events.next().await {
                if let Some(event) = container_event(event) {
                    lock(&into).push(event);
                }
            }
        });
        Ok(Self { seen, task })
    }

    /// Events so far of the containers of one replica, in order.
    #[must_use]
    pub fn events_of(&self, replica: &str) -> Vec<ContainerEvent> {
        let mut events = lock(&self.seen).clone();
        events.retain(|event| event.replica == replica);
        events
    }

    /// Times of the events `action` of a replica's containers.
    #[must_use]
    pub fn times(&self, replica: &str, action: &str) -> Vec<i64> {
        let events = self.events_of(replica);
        events
            .iter()
            .filter(|i| i.action == action)
            .map(|i| i.at_nanos)
            .collect()
    }

    /// Checks that no replica had two containers at once, nor two running ones.
    ///
    /// # Errors
    /// Describes the first overlap; or the engine ended the stream.
    pub fn check(&self) -> Result<()> {
        anyhow::ensure!(
            !self.task.is_finished(),
            "the engine ended its event stream"
        );
        overlap(&lock(&self.seen))
            .map_or(Ok(()), Err)
            .map_err(anyhow::Error::msg)
    }

    /// Waits until the stream includes the start of `container`, the newest container of `replica`,
    /// and so everything before it.
    ///
    /// # Errors
    /// When it does not in time.
    pub async fn wait_started(&self, replica: &str, container: &str) -> Result<()> {
        crate::until("the engine's events", crate::wait::WAIT_TIMEOUT, || async {
            let known = self
                .events_of(replica)
                .iter()
                .any(|i| i.container == container && i.action == "start");
            if known {
                Ok(())
            } else {
                Err(format!("no start of {container}"))
            }
        })
        .await
        .context("witness")
    }
}

impl Drop for ContainerLog {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn container_event(event: EventMessage) -> Option<ContainerEvent> {
    let actor = event.actor?;
    Some(ContainerEvent {
        at_nanos: event.time_nano?,
        action: event.action?,
        replica: actor.attributes?.remove(LABEL_REPLICA)?,
        container: actor.id?,
    })
}

/// Describes the first event after which a replica had more than one container, if there is one.
fn overlap(events: &[ContainerEvent]) -> Option<String> {
    let mut existing = BTreeMap::<&str, BTreeSet<&str>>::new();
    let mut running = BTreeMap::<&str, BTreeSet<&str>>::new();
    for event in events {
        let (replica, container) = (&*event.replica, &*event.container);
        let existing = existing.entry(replica).or_default();
        let running = running.entry(replica).or_default();
        match &*event.action {
            "create" => {
                existing.insert(container);
            }
            "start" => {
                running.insert(container);
            }
            "die" => {
                running.remove(container);
            }
            "destroy" => {
                existing.remove(container);
                running.remove(container);
            }
            _ => {}
        }
        if existing.len() > 1 || running.len() > 1 {
            return Some(format!("{replica}: exist {existing:?}, run {running:?}"));
        }
    }
    None
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(actions: &[(&str, &str, &str)]) -> Vec<ContainerEvent> {
        actions
            .iter()
            .map(|(action, replica, container)| ContainerEvent {
                at_nanos: 0,
                action: (*action).to_owned(),
                replica: (*replica).to_owned(),
                container: (*container).to_owned(),
            })
            .collect()
    }

    #[test]
    fn replacement_is_no_overlap() {
        let replaced = [
            ("create", "web-0", "a"),
            ("start", "web-0", "a"),
            ("create", "web-1", "c"),
            ("die", "web-0", "a"),
            ("destroy", "web-0", "a"),
            ("create", "web-0", "b"),
            ("start", "web-0", "b"),
        ];
        assert_eq!(overlap(&events(&replaced)), None);
    }

    #[test]
    fn second_container_overlaps_even_a_dead_one() {
        let twins = [
            ("create", "web-0", "a"),
            ("start", "web-0", "a"),
            ("die", "web-0", "a"),
            ("create", "web-0", "b"),
        ];
        assert!(overlap(&events(&twins)).unwrap().contains("web-0"));
    }
}
