//! Initial state of a cluster restored with one member.

use std::sync::Arc;

use jaco_proto::v1::{self, NodeStatus};

use crate::State;

/// Returns the state that a restored cluster starts with, and the raft id of its only member.
///
/// Removes the former members and the rows that only they could change: their address blocks,
/// observations, failure counters and locks. Removes unused join tokens too, because their owners
/// expect another cluster. All other rows stay.
///
/// `own` is the record of the only member; its raft id and status are set here. The id was never
/// used before, so former members do not mistake it for another node.
#[must_use]
pub fn restored(state: &State, own: v1::Node) -> (State, u64) {
    let raft_id = next_raft_id(state);
    let mut new = State {
        nodes: Default::default(),
        replicas_observed: Default::default(),
        restart_counters: Default::default(),
        ..state.clone()
    };
    if let Some(meta) = state.cluster.as_deref() {
        new.cluster = Some(Arc::new(v1::ClusterMeta {
            next_raft_id: raft_id.saturating_add(1),
            ..meta.clone()
        }));
    }
    let host = own.hostname.clone();
    let before = state.nodes.get(&host);
    let own = v1::Node {
        raft_id,
        status: NodeStatus::Ready.into(),
        joined_at: before.and_then(|node| node.joined_at).or(own.joined_at),
        ..own
    };
    new.nodes.insert(host.clone(), Arc::new(own));
    new.subnets = keep(&state.subnets, |subnet| subnet.host == host);
    new.join_tokens = keep(&state.join_tokens, |token| token.consumed_at.is_some());
    new.certs = released(state);
    (new, raft_id)
}

/// Returns an id above all that were ever assigned.
fn next_raft_id(state: &State) -> u64 {
    let used = state.nodes.values().map(|node| node.raft_id).max();
    let next = state.cluster.as_deref().map_or(0, |meta| meta.next_raft_id);
    next.max(used.map_or(0, |id| id.saturating_add(1))).max(1)
}

fn keep<K: Ord + Clone, E>(
    map: &imbl::OrdMap<K, Arc<E>>,
    wanted: impl Fn(&E) -> bool,
) -> imbl::OrdMap<K, Arc<E>> {
    map.iter()
        .filter(|(_, entity)| wanted(entity))
        .map(|(key, entity)| (key.clone(), Arc::clone(entity)))
        .collect()
}

/// Returns the certificate rows without their leases; drops rows without a certificate.
fn released(state: &State) -> imbl::OrdMap<String, Arc<v1::Cert>> {
    state
        .certs
        .iter()
        .filter(|(_, cert)| !cert.private_key.is_empty() || !cert.cert_chain.is_empty())
        .map(|(key, cert)| {
            (
                key.clone(),
                Arc::new(v1::Cert {
                    lessee: String::new(),
                    lock_until: None,
                    ..v1::Cert::clone(cert)
                }),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use prost_types::Timestamp;

    use super::*;
    use crate::testing::{logs, state_of};

    fn own(hostname: &str) -> v1::Node {
        v1::Node {
            hostname: hostname.to_owned(),
            address: "10.0.0.9:7001".to_owned(),
            joined_at: Some(Timestamp {
                seconds: 99,
                nanos: 0,
            }),
            ..Default::default()
        }
    }

    fn rows<E>(rows: impl IntoIterator<Item = (&'static str, E)>) -> imbl::OrdMap<String, Arc<E>> {
        rows.into_iter()
            .map(|(key, row)| (key.to_owned(), Arc::new(row)))
            .collect()
    }

    fn node(hostname: &str, raft_id: u64) -> v1::Node {
        v1::Node {
            raft_id,
            wireguard_pubkey: vec![1],
            draining: true,
            joined_at: Some(Timestamp::default()),
            ..own(hostname)
        }
    }

    #[test]
    fn restored_member_gets_an_unused_id() {
        for (next, ids, expected) in [
            (4, &[1, 2][..], 4),
            (0, &[], 1),
            (0, &[0, 0], 1),
            (2, &[1, 7], 8),
        ] {
            let names = ["a", "b"];
            let state = State {
                cluster: Some(Arc::new(v1::ClusterMeta {
                    next_raft_id: next,
                    ..Default::default()
                })),
                nodes: rows(names.into_iter().zip(ids).map(|(n, id)| (n, node(n, *id)))),
                ..State::default()
            };
            let (new, raft_id) = restored(&state, own("c"));
            assert_eq!(raft_id, expected, "{next} {ids:?}");
            assert_eq!(new.cluster.as_ref().unwrap().next_raft_id, expected + 1);
            assert_eq!(new.nodes.len(), 1);
            assert_eq!(new.nodes["c"].raft_id, expected);
        }
    }

    #[test]
    fn former_member_keeps_only_its_join_time() {
        let state = State {
            nodes: rows([("a", node("a", 1)), ("b", node("b", 2))]),
            ..State::default()
        };
        let (new, _) = restored(&state, own("a"));
        let expected = v1::Node {
            raft_id: 3,
            status: NodeStatus::Ready.into(),
            joined_at: Some(Timestamp::default()),
            ..own("a")
        };
        assert_eq!(*new.nodes["a"], expected);
        let (new, _) = restored(&state, own("c"));
        assert_eq!(new.nodes["c"].joined_at, own("c").joined_at);
    }

    #[test]
    fn leases_are_dropped_and_certificates_kept() {
        let locked = |chain: &[u8]| v1::Cert {
            cert_chain: chain.to_vec(),
            lessee: "a".to_owned(),
            lock_until: Some(Timestamp::default()),
            ..Default::default()
        };
        let state = State {
            certs: rows([("lock", locked(b"")), ("cert", locked(b"pem"))]),
            ..State::default()
        };
        let (new, _) = restored(&state, own("a"));
        let kept = v1::Cert {
            cert_chain: b"pem".to_vec(),
            ..Default::default()
        };
        assert_eq!(new.certs, rows([("cert", kept)]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn only_rows_of_former_members_are_dropped(log in logs()) {
            let state = state_of(&log);
            let (new, raft_id) = restored(&state, own("a"));
            prop_assert_eq!(new.nodes.keys().collect::<Vec<_>>(), ["a"]);
            prop_assert!(state.nodes.values().all(|node| node.raft_id < raft_id));
            prop_assert!(new.replicas_observed.is_empty() && new.restart_counters.is_empty());
            prop_assert!(new.subnets.values().all(|subnet| subnet.host == "a"));
            let of_a = state.subnets.values().filter(|subnet| subnet.host == "a");
            prop_assert_eq!(new.subnets.len(), of_a.count());
            prop_assert!(new.join_tokens.values().all(|token| token.consumed_at.is_some()));
            prop_assert!(new.certs.values().all(|cert| cert.lessee.is_empty()));
            // All other tables are shared with the state before.
            let rest = |state: &State| State {
                cluster: None,
                nodes: Default::default(),
                replicas_observed: Default::default(),
                restart_counters: Default::default(),
                subnets: Default::default(),
                join_tokens: Default::default(),
                certs: Default::default(),
                ..state.clone()
            };
            prop_assert_eq!(rest(&new), rest(&state));
            // A second restore changes only the identity of the member.
            let (again, second) = restored(&new, own("a"));
            prop_assert_eq!(second, raft_id + 1);
            prop_assert_eq!(&again.subnets, &new.subnets);
        }
    }
}
