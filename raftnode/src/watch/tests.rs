use jaco_proto::v1::{self, EventKind, subscribe_event::Payload};
use jaco_state::{Change, Delta};

use super::*;

fn node(raft_index: u64) -> Event {
    Event {
        raft_index,
        deployment: None,
        change: Change::Node(Delta {
            before: None,
            after: Some(Arc::new(v1::Node::default())),
        }),
    }
}

fn route(raft_index: u64, deployment: &str) -> Event {
    Event {
        raft_index,
        deployment: Some(deployment.to_owned()),
        change: Change::Route(Delta {
            before: None,
            after: Some(Arc::new(v1::Route::default())),
        }),
    }
}

/// The queued updates, as (index, kind, is a resync).
fn drain(subscription: &mut Subscription) -> Vec<(u64, EntityType, bool)> {
    std::iter::from_fn(|| subscription.try_next())
        .map(|u| {
            (
                u.raft_index(),
                u.entity(),
                matches!(u, Update::Resync { .. }),
            )
        })
        .collect()
}

fn indexes(subscription: &mut Subscription) -> Vec<u64> {
    drain(subscription)
        .into_iter()
        .map(|(index, _, _)| index)
        .collect()
}

#[test]
fn subscribers_get_filtered_events_in_log_order() {
    let hub = WatchHub::new(0);
    hub.publish(vec![node(1)]);
    let mut all = hub.subscribe(Filter::default());
    let mut nodes = hub.subscribe(Filter::of([EntityType::Node]));
    let mut shop = hub.subscribe(Filter {
        deployment: Some("shop".into()),
        ..Filter::default()
    });
    hub.publish(vec![route(2, "shop"), node(2)]);
    hub.publish(vec![route(3, "blog")]);
    let seen = [(2, EntityType::Route, false), (2, EntityType::Node, false)];
    assert_eq!(drain(&mut shop), seen);
    assert_eq!(drain(&mut nodes), seen[1..]);
    assert_eq!(
        drain(&mut all),
        [&seen[..], &[(3, EntityType::Route, false)]].concat()
    );
}

#[test]
fn retained_events_are_replayed_before_live_ones() {
    let hub = WatchHub::new(10);
    hub.publish(vec![node(11), node(12)]);
    hub.publish(vec![node(13)]);
    let mut replayed = hub.subscribe(Filter {
        since: 11,
        ..Filter::default()
    });
    let mut fresh = hub.subscribe(Filter::default());
    let mut ahead = hub.subscribe(Filter {
        since: 14,
        ..Filter::default()
    });
    hub.publish(vec![node(14)]);
    hub.publish(vec![node(15)]);
    assert_eq!(indexes(&mut replayed), [12, 13, 14, 15]);
    assert_eq!(indexes(&mut fresh), [14, 15]);
    assert_eq!(
        indexes(&mut ahead),
        [15],
        "not newer than the requested index"
    );
    let mut from_start = hub.subscribe(Filter {
        since: 10,
        ..Filter::default()
    });
    assert_eq!(indexes(&mut from_start), [11, 12, 13, 14, 15]);
}

#[test]
fn evicted_events_are_announced_as_resyncs() {
    let hub = WatchHub::new(10);
    let mut early = hub.subscribe(Filter {
        since: 9,
        ..Filter::of([EntityType::Route, EntityType::Node])
    });
    let resyncs = [(10, EntityType::Node, true), (10, EntityType::Route, true)];
    assert_eq!(drain(&mut early), resyncs);

    let count = RETAINED_EVENTS as u64;
    hub.publish((11..11 + count + 3).map(node).collect());
    let mut late = hub.subscribe(Filter {
        since: 12,
        ..Filter::of([EntityType::Node])
    });
    let seen = drain(&mut late);
    assert_eq!(
        (seen[0], seen[1]),
        ((13, EntityType::Node, true), (14, EntityType::Node, false))
    );
    assert_eq!(seen.len(), RETAINED_EVENTS + 1);
    let mut just = hub.subscribe(Filter {
        since: 13,
        ..Filter::of([EntityType::Node])
    });
    assert_eq!(indexes(&mut just).len(), RETAINED_EVENTS);
}

#[test]
fn slow_subscriber_gets_one_resync_per_kind() {
    let hub = WatchHub::new(0);
    let mut slow = hub.subscribe(Filter {
        deployment: Some("shop".into()),
        ..Filter::default()
    });
    hub.publish(vec![route(1, "shop")]);
    let bound = QUEUE_BOUND as u64;
    hub.publish((2..2 + bound).map(node).collect());
    assert_eq!(slow.queue.len(), QUEUE_BOUND + 1);
    hub.publish(vec![node(500), node(501)]);
    let seen = [
        (1, EntityType::Route, false),
        (500, EntityType::Node, true),
        (501, EntityType::Node, false),
    ];
    assert_eq!(drain(&mut slow), seen);
    hub.publish((600..600 + 10 * bound).map(node).collect());
    assert!(slow.queue.len() <= QUEUE_BOUND);
    let seen = drain(&mut slow);
    assert_eq!(seen.iter().filter(|(_, _, resync)| *resync).count(), 1);
    assert!(seen[0].2 && seen.is_sorted_by_key(|(index, _, _)| *index));
}

#[test]
fn reset_resyncs_every_kind_and_drops_history() {
    let hub = WatchHub::new(0);
    hub.publish(vec![node(1)]);
    let mut following = hub.subscribe(Filter {
        since: 1,
        deployment: Some("shop".into()),
        ..Filter::default()
    });
    hub.publish(vec![node(2)]);
    hub.reset(40);
    let kinds: Vec<_> = EntityType::ALL
        .iter()
        .map(|kind| (40, *kind, true))
        .collect();
    assert_eq!(drain(&mut following), kinds);
    hub.publish(vec![node(41)]);
    assert_eq!(indexes(&mut following), [41]);
    let mut after = hub.subscribe(Filter {
        since: 39,
        ..Filter::of([EntityType::Node])
    });
    assert_eq!(
        drain(&mut after),
        [(40, EntityType::Node, true), (41, EntityType::Node, false)]
    );
}

#[tokio::test]
async fn waiting_subscriber_wakes_and_ends_with_hub() {
    let hub = WatchHub::new(0);
    let mut waiting = hub.subscribe(Filter::default());
    let task = tokio::spawn(async move {
        let first = waiting.next().await.map(|update| update.raft_index());
        (first, waiting.next().await)
    });
    tokio::task::yield_now().await;
    hub.publish(vec![node(5)]);
    tokio::task::yield_now().await;
    hub.close();
    assert_eq!(task.await.unwrap(), (Some(5), None));
    assert_eq!(hub.subscribe(Filter::default()).next().await, None);
}

#[tokio::test]
async fn dropping_either_end_ends_the_subscription() {
    let hub = WatchHub::new(0);
    let dropped = hub.subscribe(Filter::default());
    let mut kept = hub.subscribe(Filter::default());
    drop(dropped);
    assert_eq!(hub.shared.hub().subscribers.len(), 1);
    hub.publish(vec![node(1)]);
    drop(hub);
    assert_eq!(kept.next().await.map(|update| update.raft_index()), Some(1));
    assert_eq!(kept.next().await, None);
}

#[test]
fn watch_request_must_name_known_kinds() {
    let request = |names: &[&str]| v1::SubscribeRequest {
        entity_types: names.iter().map(|name| (*name).to_owned()).collect(),
        since_revision: 7,
        deployment_filter: String::new(),
    };
    let filter = Filter::from_request(&request(&["nodes", "audit"])).unwrap();
    assert!(
        filter
            .entities
            .iter()
            .eq(&[EntityType::Node, EntityType::Audit])
    );
    assert_eq!((filter.since, filter.deployment), (7, None));
    for kind in EntityType::ALL {
        assert_eq!(EntityType::parse(kind.as_str()), Some(*kind));
    }
    let error = Filter::from_request(&request(&["cert_blobs"])).unwrap_err();
    assert_eq!(error.code, jaco_proto::ErrorCode::ValidationFailed);
    assert_eq!(error.details["value"], "cert_blobs");
}

#[test]
fn wire_events_omit_secrets() {
    fn added<T>(entity: T) -> Delta<T> {
        Delta {
            before: None,
            after: Some(Arc::new(entity)),
        }
    }
    let secret = b"secret".to_vec();
    for change in [
        Change::Token(added(v1::Token {
            hashed_secret: secret.clone(),
            ..Default::default()
        })),
        Change::JoinToken(added(v1::JoinToken {
            hashed_secret: secret.clone(),
            ..Default::default()
        })),
        Change::Cert(added(v1::Cert {
            private_key: secret.clone(),
            ..Default::default()
        })),
        Change::ChallengeToken(added(v1::ChallengeToken {
            key_auth: "secret".into(),
            ..Default::default()
        })),
        Change::Deployment(added(v1::Deployment {
            previous: Some(v1::DeploymentRevision {
                jaco_yaml: secret,
                ..Default::default()
            }),
            ..Default::default()
        })),
    ] {
        let event = Event {
            raft_index: 3,
            deployment: None,
            change,
        };
        let shown = prost::Message::encode_to_vec(&event.to_wire());
        assert!(
            !shown.windows(6).any(|bytes| bytes == b"secret"),
            "{event:?}"
        );
    }
    let wire = route(3, "shop").to_wire();
    let Some(Payload::Route(shown)) = wire.payload else {
        panic!("not a route: {wire:?}");
    };
    assert_eq!((shown.kind(), shown.raft_index), (EventKind::Added, 3));
    assert_eq!(
        (shown.before, shown.after),
        (None, Some(v1::Route::default()))
    );
}

#[test]
fn resync_names_its_kind_only() {
    for entity in EntityType::ALL.iter().copied() {
        let wire = Update::Resync {
            entity,
            raft_index: 9,
        }
        .to_wire();
        let text = format!("{wire:?}");
        assert!(
            text.contains("kind: Resync") && text.contains("raft_index: 9"),
            "{text}"
        );
        assert!(text.contains("before: None, after: None"), "{text}");
    }
}

fn deployment(raft_index: u64, manifest: usize) -> Event {
    Event {
        raft_index,
        deployment: Some("shop".to_owned()),
        change: Change::Deployment(Delta {
            before: None,
            after: Some(Arc::new(v1::Deployment {
                compose_yaml: vec![b'#'; manifest],
                ..Default::default()
            })),
        }),
    }
}

#[test]
fn large_manifests_shorten_the_history() {
    let hub = WatchHub::new(0);
    let quarter = RETAINED_BYTES / 4;
    hub.publish((1..=9).map(|index| deployment(index, quarter)).collect());
    let mut late = hub.subscribe(Filter {
        since: 1,
        ..Filter::of([EntityType::Deployment])
    });
    let seen = drain(&mut late);
    assert_eq!(seen[0], (5, EntityType::Deployment, true));
    let kept: Vec<_> = seen[1..].iter().map(|(index, _, _)| *index).collect();
    assert_eq!(kept, [6, 7, 8, 9]);

    hub.publish(vec![deployment(10, 2 * RETAINED_BYTES)]);
    let mut last = hub.subscribe(Filter {
        since: 9,
        ..Filter::of([EntityType::Deployment])
    });
    assert_eq!(drain(&mut last), [(10, EntityType::Deployment, false)]);
}
