//! Passes whose commands do not fit into one batch.

use jaco_raftnode::RaftLimits;
use prost::Message as _;

use super::*;

impl Fixture {
    /// Runs passes until no command is left; returns the lines of each.
    fn passes(&mut self) -> Vec<Vec<String>> {
        let mut passes = Vec::new();
        loop {
            let pass = self.plan();
            if pass.batch.is_none() {
                return passes;
            }
            let bytes = pass.batch.as_ref().map_or(0, v1::Command::encoded_len);
            assert!(
                bytes <= RaftLimits::default().command_bytes / 2 + 1024,
                "{bytes}"
            );
            self.state.applied_index += 1;
            let children = children(&pass).into_iter();
            let mut lines = Vec::new();
            for child in children {
                lines.push(self.apply(child));
            }
            passes.push(lines);
            assert!(passes.len() < 20, "no end");
            let left = pass.summary.deferred > 0;
            assert_eq!(left, self.plan().batch.is_some());
        }
    }
}

/// An image reference of the maximum length.
fn image(tag: &str) -> String {
    format!("registry.example.com/{}:{tag}", "a".repeat(400))
}

#[test]
fn commands_that_do_not_fit_are_planned_next() {
    let mut fixture = Fixture::new(&["n1", "n2", "n3"]);
    let document = format!("web {} h", image("1"));
    fixture.deploy("huge", &[("web", 10_000)], &document);
    fixture.deploy("more", &[("web", 10)], &document);
    let passes = fixture.passes();
    assert!(passes.len() > 1);
    let upserts = passes.concat();
    assert_eq!(upserts.len(), 10_010, "each once");
    assert_eq!(fixture.state.replicas_desired.len(), 10_010);
    for service in ["huge", "more"] {
        let on = |host: &str| {
            let rows = fixture.state.replicas_desired.values();
            rows.filter(|row| row.host == host && row.deployment == service)
                .count()
        };
        let counts = ["n1", "n2", "n3"].map(on);
        let (least, most) = (counts.iter().min(), counts.iter().max());
        assert!(most.unwrap() - least.unwrap() <= 1, "{counts:?}");
    }
}

#[test]
fn deployments_are_not_split_if_they_fit() {
    let mut fixture = Fixture::new(&["n1"]);
    let document = format!("web {} h", image("1"));
    for name in ["a", "b", "c"] {
        fixture.deploy(name, &[("web", 5_000)], &document);
    }
    let passes = fixture.passes();
    let sizes: Vec<_> = passes.iter().map(Vec::len).collect();
    assert_eq!(sizes, [5_000; 3]);
}

#[test]
fn reissue_and_counter_reset_share_a_batch() {
    let mut fixture = Fixture::new(&["n1"]);
    fixture.deploy("huge", &[("web", 10_000)], &format!("web {} h", image("1")));
    fixture.passes();
    for id in fixture
        .state
        .replicas_desired
        .keys()
        .cloned()
        .collect::<Vec<_>>()
    {
        let counter = v1::RestartCounter {
            replica_id: id.clone(),
            consecutive_failures: 2,
            last_attempt_at: Some(at(1)),
        };
        fixture.state.restart_counters.insert(id, Arc::new(counter));
    }
    fixture.deploy("huge", &[("web", 10_000)], &format!("web {} h", image("2")));
    let passes = fixture.passes();
    assert!(passes.len() > 1);
    assert!(fixture.state.restart_counters.is_empty());
}
