use proptest::prelude::*;

use super::*;

const OWN: PublicKey = PublicKey([0xff; 32]);

fn peer(number: u8) -> Peer {
    Peer {
        public_key: PublicKey([number; 32]),
        endpoint: Some(SocketAddr::from(([192, 0, 2, number], 51820))),
        allowed_ips: vec![
            ([10, 99, 0, number].into(), 32),
            ([10, 244, number, 0].into(), 24),
        ],
        keepalive: None,
    }
}

fn keys(peers: &[u8]) -> Vec<PublicKey> {
    peers
        .iter()
        .map(|number| PublicKey([*number; 32]))
        .collect()
}

/// A table whose tunnels are numbered as they are made.
fn replace(table: &Table<u32>, peers: Vec<Peer>, made: &mut u32) -> (Table<u32>, Changes) {
    let make = |_: &Peer, _| {
        *made += 1;
        *made
    };
    table.replace(peers, OWN, make).unwrap()
}

#[test]
fn only_new_peers_get_new_tunnels() {
    let mut made = 0;
    let (first, changes) = replace(
        &Table::default(),
        vec![peer(1), peer(2), peer(3)],
        &mut made,
    );
    assert_eq!((changes.added, made), (keys(&[1, 2, 3]), 3));

    let mut changed = peer(3);
    changed.allowed_ips = vec![([10, 244, 9, 0].into(), 24)];
    let mut moved = peer(1);
    moved.endpoint = None;
    let (second, changes) = replace(&first, vec![changed, moved, peer(4)], &mut made);
    assert_eq!(changes.added, keys(&[4]));
    assert_eq!(changes.removed, keys(&[2]));
    assert_eq!(changes.moved, keys(&[1]));
    assert_eq!(made, 4);
    for number in [1, 3] {
        let key = PublicKey([number; 32]);
        let (old, new) = (first.by_key(key).unwrap(), second.by_key(key).unwrap());
        assert_eq!(
            (old.index, &old.tunnel),
            (new.index, &new.tunnel),
            "peer {number}"
        );
    }
    // The networks are those of the new set.
    let owner = |address: [u8; 4]| {
        second
            .route(address.into())
            .map(|entry| entry.peer.public_key)
    };
    assert_eq!(owner([10, 244, 9, 1]), Some(PublicKey([3; 32])));
    assert_eq!(owner([10, 244, 3, 1]), None);
    assert_eq!(owner([10, 244, 2, 1]), None);
    assert_eq!(owner([10, 99, 0, 4]), Some(PublicKey([4; 32])));
}

#[test]
fn index_of_a_removed_peer_is_not_reused() {
    let mut made = 0;
    let (mut table, _) = replace(&Table::default(), vec![peer(1)], &mut made);
    let mut seen = BTreeSet::new();
    for number in 2..100 {
        assert!(seen.insert(table.iter().next().unwrap().index));
        let old = table.iter().next().unwrap().index << 8;
        table = replace(&table, vec![peer(number)], &mut made).0;
        assert!(table.by_receiver(old).is_none());
    }
}

#[test]
fn receiver_index_finds_its_peer() {
    let mut made = 0;
    let peers = (1..=200).map(peer).collect();
    let (table, _) = replace(&Table::default(), peers, &mut made);
    for entry in table.iter() {
        for session in [0, 7, 255] {
            let found = table.by_receiver(entry.index << 8 | session).unwrap();
            assert_eq!(found.peer, entry.peer);
        }
    }
    for unknown in [200 << 8, u32::MAX, 1 << 20] {
        assert!(table.by_receiver(unknown).is_none(), "{unknown:x}");
    }
}

#[test]
fn invalid_set_is_refused() {
    let refused = |peers: Vec<Peer>| {
        Table::<()>::default()
            .replace(peers, OWN, |_, _| ())
            .err()
            .unwrap()
            .to_string()
    };
    let with = |change: fn(&mut Peer)| {
        let mut peer = peer(1);
        change(&mut peer);
        vec![peer]
    };
    assert!(refused(vec![peer(0xff)]).contains("cannot be the key"));
    assert!(refused(vec![peer(1), peer(1)]).contains("two peers have the key"));
    assert!(refused(with(|peer| peer.allowed_ips[0].1 = 33)).contains("not an IPv4 network"));
    let six = with(|peer| peer.endpoint = Some("[::1]:1".parse().unwrap()));
    assert!(refused(six).contains("cannot send"));
    assert!(
        refused(with(|peer| peer.endpoint.as_mut().unwrap().set_port(0))).contains("cannot send")
    );
    let mut other = peer(2);
    other.allowed_ips = peer(1).allowed_ips;
    assert!(refused(vec![peer(1), other]).contains("two peers have the network"));
    let many = vec![peer(1); MAX_PEERS + 1];
    assert!(refused(many).contains("at most 4096"));
}

proptest! {
    #[test]
    fn every_set_is_reached_from_every_other(
        sets in prop::collection::vec(prop::collection::btree_set(1..60_u8, 0..40), 1..8),
    ) {
        let mut made = 0;
        let mut table = Table::default();
        for set in sets {
            let before: BTreeMap<_, _> =
                table.iter().map(|entry| (entry.peer.public_key, (entry.index, *entry.tunnel))).collect();
            let (next, changes) = replace(&table, set.iter().copied().map(peer).collect(), &mut made);
            table = next;
            let after: Vec<_> = table.iter().map(|entry| entry.peer.clone()).collect();
            prop_assert_eq!(after, set.iter().copied().map(peer).collect::<Vec<_>>());
            for entry in table.iter() {
                let key = entry.peer.public_key;
                let kept = before.get(&key);
                prop_assert_eq!(kept.is_none(), changes.added.contains(&key));
                prop_assert!(kept.is_none_or(|kept| *kept == (entry.index, *entry.tunnel)));
                prop_assert_eq!(table.by_receiver(entry.index << 8).unwrap().index, entry.index);
            }
            prop_assert_eq!(before.len() + changes.added.len() - changes.removed.len(), set.len());
            // The same set again changes nothing.
            let (_, again) = replace(&table, set.into_iter().map(peer).collect(), &mut made);
            prop_assert_eq!(again, Changes::default());
        }
    }
}
