//! Changes that a command would make, for `apply --dry-run`.

use std::sync::Arc;

use imbl::OrdMap;
use jaco_proto::v1;
use jaco_state::State;

/// Compares the parts of two states that belong to one deployment.
///
/// Each list is sorted: the deployment itself, then replicas, routes, published ports and secrets.
#[must_use]
pub fn diff(before: &State, after: &State, deployment: &str) -> v1::Diff {
    let mut diff = v1::Diff::default();
    let (old, new) = (
        before.deployments.get(deployment),
        after.deployments.get(deployment),
    );
    if let Some(new) = new {
        let from = old.map_or(0, |old| old.applied_revision);
        let content = |d: &v1::Deployment| {
            (
                d.jaco_yaml.clone(),
                d.compose_yaml.clone(),
                d.services.clone(),
                d.acme_email.clone(),
            )
        };
        let line = format!(
            "deployment {deployment} (rev {from}→{})",
            new.applied_revision
        );
        match old {
            None => diff.adds.push(line),
            Some(old) if content(old) != content(new) => diff.updates.push(line),
            Some(_) => {}
        }
    }

    // A replica that is only upserted again counts, too: its container is recreated.
    compare(
        &mut diff,
        [&before.replicas_desired, &after.replicas_desired],
        |replica| replica.deployment == deployment,
        |id| format!("replica {id}"),
    );
    compare(
        &mut diff,
        [&before.routes, &after.routes],
        |route| route.deployment == deployment,
        |(domain, path)| format!("route {domain}{path}"),
    );
    compare(
        &mut diff,
        [&before.tcp_routes, &after.tcp_routes],
        |route| route.deployment == deployment,
        |(port, protocol)| match v1::TransportProtocol::try_from(*protocol) {
            Ok(v1::TransportProtocol::Udp) => format!("tcp_route {port}/udp"),
            Ok(v1::TransportProtocol::Tcp) | Err(_) => format!("tcp_route {port}"),
        },
    );
    compare(
        &mut diff,
        [&before.secrets, &after.secrets],
        |secret| secret.deployment == deployment,
        |(_, name)| format!("secret {name}"),
    );
    diff
}

/// Merges the rows of two tables for which `belongs` holds into adds, updates and removes.
fn compare<K: Ord, V: PartialEq>(
    diff: &mut v1::Diff,
    [before, after]: [&OrdMap<K, Arc<V>>; 2],
    belongs: impl Fn(&V) -> bool,
    name: impl Fn(&K) -> String,
) {
    let mut before = before.iter().filter(|(_, row)| belongs(row)).peekable();
    let mut after = after.iter().filter(|(_, row)| belongs(row)).peekable();
    loop {
        match (before.peek(), after.peek()) {
            (None, None) => return,
            (Some((old, _)), Some((new, _))) if old == new => {
                if let (Some((key, old)), Some((_, new))) = (before.next(), after.next())
                    && old != new
                {
                    diff.updates.push(name(key));
                }
            }
            (Some((old, _)), new) if new.is_none_or(|(new, _)| old < new) => {
                diff.removes.extend(before.next().map(|(key, _)| name(key)));
            }
            _ => diff.adds.extend(after.next().map(|(key, _)| name(key))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(revision: u64, compose: &str, replicas: &[(&str, &str)], routes: &[&str]) -> State {
        let mut state = State::default();
        state.deployments.insert(
            "d".to_owned(),
            Arc::new(v1::Deployment {
                name: "d".to_owned(),
                applied_revision: revision,
                compose_yaml: compose.as_bytes().to_vec(),
                ..Default::default()
            }),
        );
        for (id, image) in replicas {
            state.replicas_desired.insert(
                (*id).to_owned(),
                Arc::new(v1::ReplicaDesired {
                    id: (*id).to_owned(),
                    deployment: "d".to_owned(),
                    image: (*image).to_owned(),
                    ..Default::default()
                }),
            );
        }
        for path in routes {
            state.routes.insert(
                ("a.io".to_owned(), (*path).to_owned()),
                Arc::new(v1::Route {
                    deployment: "d".to_owned(),
                    ..Default::default()
                }),
            );
        }
        state
    }

    #[test]
    fn new_and_changed_secrets_are_listed_by_name() {
        let with = |secrets: &[(&str, &str, u64)]| {
            let mut state = state(1, "x", &[], &[]);
            for &(deployment, name, version) in secrets {
                let secret = v1::Secret {
                    deployment: deployment.to_owned(),
                    name: name.to_owned(),
                    version,
                    ..Default::default()
                };
                let key = (deployment.to_owned(), name.to_owned());
                state.secrets.insert(key, Arc::new(secret));
            }
            state
        };
        let before = with(&[("d", "A", 1), ("d", "B", 1), ("e", "A", 1)]);
        let after = with(&[("d", "A", 1), ("d", "B", 2), ("d", "C", 1), ("e", "A", 2)]);
        let diff = diff(&before, &after, "d");
        assert_eq!(diff.adds, ["secret C"]);
        assert_eq!(diff.updates, ["secret B"]);
        assert_eq!(diff.removes, [""; 0]);
    }

    #[test]
    fn first_apply_only_adds() {
        let after = state(1, "x", &[("d-web-0", "i")], &["", "/api"]);
        let diff = diff(&State::default(), &after, "d");
        assert_eq!(
            diff.adds,
            [
                "deployment d (rev 0→1)",
                "replica d-web-0",
                "route a.io",
                "route a.io/api"
            ]
        );
        assert!(diff.updates.is_empty() && diff.removes.is_empty());
    }

    #[test]
    fn changes_and_removals_are_listed_separately() {
        let before = state(
            1,
            "x",
            &[("d-a-0", "i"), ("d-b-0", "i"), ("d-c-0", "i")],
            &["/old"],
        );
        let after = state(
            2,
            "y",
            &[("d-b-0", "j"), ("d-c-0", "i"), ("d-d-0", "i")],
            &["/new"],
        );
        let diff = diff(&before, &after, "d");
        assert_eq!(diff.adds, ["replica d-d-0", "route a.io/new"]);
        assert_eq!(diff.updates, ["deployment d (rev 1→2)", "replica d-b-0"]);
        assert_eq!(diff.removes, ["replica d-a-0", "route a.io/old"]);
    }

    #[test]
    fn new_revision_with_same_content_changes_nothing() {
        let before = state(1, "x", &[("d-a-0", "i")], &[""]);
        let after = state(2, "x", &[("d-a-0", "i")], &[""]);
        assert_eq!(diff(&before, &after, "d"), v1::Diff::default());
    }
}
