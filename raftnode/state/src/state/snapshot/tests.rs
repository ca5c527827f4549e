use std::io::Read as _;

use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::{
    state::{LoadError, Table},
    testing::{logs, state_of},
};

fn read(bytes: &[u8], rules: &Rules) -> Result<DecodedSnapshot, SnapshotError> {
    State::read_snapshot(7, bytes, rules)
}

fn node(hostname: &str) -> v1::Node {
    v1::Node {
        hostname: hostname.to_owned(),
        ..Default::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The generated decoder reads the hand-written encoding, and its encoder returns the same
    /// bytes.
    #[test]
    fn encoding_matches_the_generated_one(log in logs()) {
        let state = state_of(&log);
        let bytes = state.encode_snapshot();
        prop_assert_eq!(bytes.len() as u64, state.snapshot_length());
        let mut streamed = Vec::new();
        state.snapshot_reader().read_to_end(&mut streamed).unwrap();
        prop_assert_eq!(&streamed, &bytes);
        let message = v1::FsmSnapshot::decode(&*bytes).unwrap();
        prop_assert_eq!(message.encode_to_vec(), bytes);
    }

    #[test]
    fn arbitrary_bytes_are_rejected_or_read_consistently(
        log in logs(), at in any::<prop::sample::Index>(), byte in any::<u8>(), cut in any::<bool>()
    ) {
        let mut bytes = state_of(&log).encode_snapshot();
        if !bytes.is_empty() {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
        }
        let rules = Rules { entity_bytes: 1 << 16, entities: 1000, number_audit_events: true, complete: false };
        if let Ok(found) = read(&bytes, &rules) {
            let again = read(&found.state.encode_snapshot(), &rules).unwrap();
            prop_assert_eq!(again.state, found.state);
        }
    }
}

#[test]
fn snapshot_reader_works_with_any_buffer_size() {
    let state = State {
        nodes: [("a", node("a")), ("b", node("b"))]
            .map(|(key, node)| (key.to_owned(), std::sync::Arc::new(node)))
            .into_iter()
            .collect(),
        ..State::default()
    };
    let mut reader = state.snapshot_reader();
    let mut found = Vec::new();
    let mut byte = [0];
    while reader.read(&mut byte).unwrap() == 1 {
        found.push(byte[0]);
    }
    assert_eq!(found, state.encode_snapshot());
}

#[test]
fn damage_is_reported_precisely() {
    let twice = v1::FsmSnapshot {
        nodes: vec![node("a"), node("a")],
        ..Default::default()
    };
    let meta = v1::FsmSnapshot {
        cluster: Some(v1::ClusterMeta::default()),
        ..Default::default()
    };
    let two_clusters = [meta.encode_to_vec(), meta.encode_to_vec()].concat();
    for (bytes, message) in [
        (
            twice.encode_to_vec(),
            "the snapshot holds an impossible state",
        ),
        (
            two_clusters,
            "the snapshot is damaged: it holds two clusters",
        ),
        (
            b"\x12\x02\xff\xff".to_vec(),
            "an entity of field 2 does not decode",
        ),
        (b"\x12".to_vec(), "the snapshot cannot be read"),
        (b"\x12\x7f".to_vec(), "the snapshot cannot be read"),
        (
            b"\x10\x01".to_vec(),
            "the snapshot is damaged: a field has the wrong type",
        ),
        (
            b"\x02\x00".to_vec(),
            "the snapshot is damaged: a field has the number 0",
        ),
        (
            b"\x9f\x7f".to_vec(),
            "the snapshot is damaged: a field has an unknown type",
        ),
        (
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02".to_vec(),
            "the snapshot is damaged: a number is longer than 64 bits",
        ),
        (
            b"\xff\xff\xff\xff\x7f".to_vec(),
            "the snapshot is damaged: a field number is out of range",
        ),
    ] {
        let error = read(&bytes, &Rules::MEMBER).unwrap_err();
        assert_eq!(error.to_string(), message, "{bytes:02x?}");
    }
    let error = read(&twice.encode_to_vec(), &Rules::MEMBER).unwrap_err();
    assert!(matches!(
        error,
        SnapshotError::Key(LoadError::BadKey {
            table: Table::Nodes,
            ..
        })
    ));
}

#[test]
fn rules_limit_the_input() {
    let snapshot = v1::FsmSnapshot {
        nodes: vec![node("a"), node("b"), node("a-much-longer-name")],
        ..Default::default()
    };
    let bytes = snapshot.encode_to_vec();
    for (entity_bytes, entities, message) in [
        (20, 3, ""),
        (19, 3, "the snapshot exceeds 19 bytes in one entity"),
        (20, 2, "the snapshot exceeds 2 entities"),
    ] {
        let rules = Rules {
            entity_bytes,
            entities,
            ..Rules::MEMBER
        };
        let refused = read(&bytes, &rules).err().map(|error| error.to_string());
        assert_eq!(refused.unwrap_or_default(), message);
    }
}

#[test]
fn unknown_fields_are_left_out_and_reported() {
    let known = v1::FsmSnapshot {
        nodes: vec![node("a")],
        ..Default::default()
    }
    .encode_to_vec();
    // Fields 1100 to 1103: a varint, a fixed 64-bit value, two length-delimited bytes, a fixed
    // 32-bit value.
    let newer: [&[u8]; 4] = [
        b"\xe0\x44\x96\x01",
        b"\xe9\x4412345678",
        b"\xf2\x44\x02hi",
        b"\xfd\x441234",
    ];
    let bytes = [newer.concat(), known.clone(), newer.concat()].concat();
    let rules = Rules {
        complete: false,
        ..Rules::MEMBER
    };
    let found = read(&bytes, &rules).unwrap();
    assert_eq!(found.unknown_fields, [1100, 1101, 1102, 1103].into());
    assert_eq!(found.state.encode_snapshot(), known);
}

#[test]
fn snapshot_without_freed_blocks_opens() {
    let freed = v1::FreedSubnet {
        cidr: "10.244.0.0/24".to_owned(),
        ..Default::default()
    };
    let older = v1::FsmSnapshot {
        nodes: vec![node("a")],
        ..Default::default()
    };
    let newer = v1::FsmSnapshot {
        freed_subnets: vec![freed],
        ..older.clone()
    };
    for (snapshot, expected) in [(older, 0), (newer, 1)] {
        let state = read(&snapshot.encode_to_vec(), &Rules::MEMBER)
            .unwrap()
            .state;
        assert_eq!(
            (state.nodes.len(), state.freed_subnets.len()),
            (1, expected)
        );
    }
}

#[test]
fn member_rules_reject_unknown_fields() {
    let mut newer = node("a").encode_to_vec();
    newer.extend(b"\xf8\x7c\x01");
    let inside = [&[0x12, newer.len() as u8][..], &newer].concat();
    let mut cluster = v1::ClusterMeta::default().encode_to_vec();
    cluster.extend(b"\xf8\x7c\x01");
    let cluster = [&[0x0a, cluster.len() as u8][..], &cluster].concat();
    for (bytes, field) in [(b"\xf8\x7c\x01".to_vec(), 1999), (inside, 2), (cluster, 1)] {
        let error = read(&bytes, &Rules::MEMBER).unwrap_err();
        assert!(
            matches!(error, SnapshotError::Unknown { field: found } if found == field),
            "{field}: {error}"
        );
        let lenient = Rules {
            complete: false,
            ..Rules::MEMBER
        };
        read(&bytes, &lenient).unwrap();
    }
}

#[test]
fn audit_events_without_ordinals_are_numbered() {
    let event = |raft_index, identity: &str| v1::AuditEvent {
        raft_index,
        identity: identity.to_owned(),
        ..Default::default()
    };
    let events = vec![event(3, "a"), event(3, "b"), event(5, "c"), event(3, "d")];
    let snapshot = v1::FsmSnapshot {
        audit_events: events,
        ..Default::default()
    };
    let bytes = snapshot.encode_to_vec();
    assert!(read(&bytes, &Rules::MEMBER).is_err());
    let rules = Rules {
        number_audit_events: true,
        ..Rules::MEMBER
    };
    let state = read(&bytes, &rules).unwrap().state;
    let found: Vec<_> = state
        .audit
        .iter()
        .map(|(key, event)| (*key, event.identity.as_str()))
        .collect();
    assert_eq!(
        found,
        [((3, 0), "a"), ((3, 1), "b"), ((3, 2), "d"), ((5, 0), "c")]
    );
}
