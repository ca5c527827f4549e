//! Repairs of networks that were changed outside JACO.

use jaco_engine::{Endpoint, NetworkEngine, fake::networks::Event, spec::EndpointConfig};
use jaco_proto::v1::{self, command::Payload};
use jaco_raftnode::StateReader;

use super::{
    tests::{Fault, Lab},
    *,
};

const COMPOSE: &str = "services:
  web: {image: i, networks: [front, back]}
networks: {front: {}, back: {}}
";

/// Time for an event of the engine to be debounced and handled.
const AFTER_EVENT: Duration = Duration::from_millis(500);
/// Time until every difference is found.
const AFTER_TICK: Duration = Duration::from_secs(31);

/// A node with a replica whose container `c1` is attached to both networks of its deployment.
async fn running() -> Lab {
    let lab = Lab::start().await;
    lab.apply(Payload::DeploymentApply(v1::DeploymentApply {
        deployment: "app".into(),
        revision: 2,
        compose_yaml: COMPOSE.into(),
        ..Default::default()
    }));
    for network in ["front", "back"] {
        lab.directory.ensure("app", network).await.unwrap();
    }
    lab.apply(Payload::ReplicaDesiredUpsert(v1::ReplicaDesiredUpsert {
        replica: Some(v1::ReplicaDesired {
            id: "app-web-0".into(),
            deployment: "app".into(),
            service: "web".into(),
            host: "n1".into(),
            ..Default::default()
        }),
    }));
    let index = lab.raft.state().replicas_desired["app-web-0"].raft_index;
    lab.engine.put_container("c1", "app-web-0", index);
    let addresses = [("front", [10, 244, 0, 9]), ("back", [10, 244, 1, 9])];
    let mut details = std::collections::BTreeMap::new();
    for (network, address) in addresses {
        let name = format!("jaco_app_{network}");
        lab.engine.join(&name, "c1", address);
        details.insert(
            format!("ip.{name}"),
            std::net::Ipv4Addr::from(address).to_string(),
        );
    }
    lab.apply(Payload::ReplicaObservedUpdate(v1::ReplicaObservedUpdate {
        replica: Some(v1::ReplicaObserved {
            id: "app-web-0".into(),
            state: v1::ReplicaState::Running.into(),
            host: "n1".into(),
            container_id: "c1".into(),
            details,
            desired_raft_index: index,
            ..Default::default()
        }),
    }));
    tokio::time::sleep(AFTER_TICK).await;
    assert_eq!(changes(&lab), [created("front"), created("back")]);
    lab
}

fn changes(lab: &Lab) -> Vec<Event> {
    lab.engine.events()
}

fn created(network: &str) -> Event {
    Event::Created(format!("jaco_app_{network}"))
}

/// Attachment of `c1` to `front` under the names of its service.
fn connected(address: Option<[u8; 4]>) -> Event {
    let endpoint = Endpoint {
        container: "c1".into(),
        config: EndpointConfig {
            aliases: ["web", "web.app", "web.app.jaco.internal"]
                .map(str::to_owned)
                .into(),
            ..Default::default()
        },
        address: address.map(Into::into),
    };
    Event::Connected("jaco_app_front".into(), endpoint)
}

/// Repairs in the audit log.
fn summaries(lab: &Lab) -> Vec<String> {
    let state = lab.raft.state();
    let events = state.audit.values();
    let events = events.filter(|event| event.r#type() == v1::AuditEventType::NetworkRepaired);
    events
        .map(|event| event.payload["summary"].clone())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn faulty_bridge_is_restored_in_place() {
    let lab = running().await;
    let bridge = NetworkId::new("app", "front").bridge_name();
    for (fault, expected, announced) in [
        (Fault::Down, "down:bridge", true),
        (Fault::NoGateway, "missing:gateway", true),
        (Fault::Down, "down:bridge", false),
    ] {
        let before = summaries(&lab).len();
        lab.interfaces
            .faulty
            .lock()
            .unwrap()
            .insert(bridge.clone(), fault);
        if announced {
            lab.interfaces.changes.send_modify(|changes| *changes += 1);
        }
        tokio::time::sleep(if announced { AFTER_EVENT } else { AFTER_TICK }).await;
        assert!(
            lab.interfaces.faulty.lock().unwrap().is_empty(),
            "{fault:?}"
        );
        let found = summaries(&lab);
        assert_eq!(found[before..], [format!("{expected}:{bridge}")]);
    }
    assert_eq!(changes(&lab).len(), 2, "the engine is not asked");
}

#[tokio::test(start_paused = true)]
async fn removed_network_is_recreated_with_its_containers() {
    let lab = running().await;
    let repairs = lab.directory.repairs();
    lab.engine.destroy("jaco_app_front");
    tokio::time::sleep(AFTER_EVENT).await;
    let done = [created("front"), connected(Some([10, 244, 0, 9]))];
    assert_eq!(changes(&lab)[2..], done, "the other network is not touched");
    assert_eq!(*repairs.borrow(), 1);
    assert_eq!(summaries(&lab), ["missing:network,detached:app-web-0"]);
    tokio::time::sleep(AFTER_TICK * 3).await;
    assert_eq!(changes(&lab).len(), 4, "repaired once");
}

#[tokio::test(start_paused = true)]
async fn network_with_deleted_bridge_is_recreated_in_place() {
    for announced in [false, true] {
        let lab = running().await;
        let bridge = NetworkId::new("app", "front").bridge_name();
        lab.engine.delete_bridge(&bridge);
        if announced {
            lab.interfaces.changes.send_modify(|changes| *changes += 1);
        }
        tokio::time::sleep(if announced { AFTER_EVENT } else { AFTER_TICK }).await;
        let endpoint = Endpoint {
            container: "c1".into(),
            config: EndpointConfig {
                aliases: vec!["alias-of-c1".into()],
                ..Default::default()
            },
            address: Some([10, 244, 0, 9].into()),
        };
        let done = [
            Event::Disconnected("id1".into(), "c1".into()),
            Event::Removed("id1".into()),
            created("front"),
            Event::Connected("jaco_app_front".into(), endpoint),
        ];
        assert_eq!(changes(&lab)[2..], done, "announced: {announced}");
    }
}

#[tokio::test(start_paused = true)]
async fn detached_container_is_attached_again() {
    for taken in [false, true] {
        let lab = running().await;
        let address = [10, 244, 0, 9];
        if taken {
            lab.engine.take_address(address);
        }
        let gone = lab.engine.disconnect("id1".into(), "c1".into());
        gone.await.unwrap();
        tokio::time::sleep(AFTER_TICK).await;
        let attached = connected(Some(address).filter(|_| !taken));
        assert_eq!(changes(&lab)[3..], [attached], "taken: {taken}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_repair_is_retried() {
    for calls in 0..5 {
        let lab = running().await;
        lab.engine.destroy("jaco_app_front");
        // The survey makes the first two calls.
        tokio::time::sleep(Duration::from_millis(150)).await;
        lab.engine.fail_after(calls);
        tokio::time::sleep(AFTER_TICK).await;
        let done = [created("front"), connected(Some([10, 244, 0, 9]))];
        assert_eq!(changes(&lab)[2..], done, "failure after {calls} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn changed_block_moves_network_and_responder() {
    let lab = running().await;
    let gateway = |third| std::net::Ipv4Addr::from([10, 244, third, 1]);
    assert_eq!(lab.responders.all()["app/front"], gateway(0));
    lab.apply(Payload::SubnetAllocate(v1::SubnetAllocate {
        deployment: "app".into(),
        network: "front".into(),
        cidr: "10.244.7.0/24".into(),
        host: "n1".into(),
    }));
    tokio::time::sleep(AFTER_EVENT).await;
    let done = [
        Event::Evicted("c1".into()),
        Event::Removed("id1".into()),
        created("front"),
    ];
    assert_eq!(changes(&lab)[2..], done);
    assert_eq!(lab.responders.all()["app/front"], gateway(7));
    assert_eq!(lab.responders.all()["app/back"], gateway(1));
}

#[tokio::test(start_paused = true)]
async fn responder_ends_with_its_network() {
    let lab = running().await;
    lab.delete("app");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(lab.responders.all().len(), 2, "containers still use it");
    lab.engine.detach_all();
    tokio::time::sleep(AFTER_TICK).await;
    assert!(lab.engine.names().is_empty());
    assert!(lab.responders.all().is_empty());
}

#[tokio::test(start_paused = true)]
async fn closed_gate_holds_back_containers_not_the_network() {
    let lab = Lab::start().await;
    lab.gate.set_closed(true);
    let error = lab.directory.ensure("app", "front").await.unwrap_err();
    assert!(matches!(error, Error::NotEnforced(_)), "{error}");
    assert_eq!(lab.engine.names(), ["jaco_app_front"]);
    lab.gate.set_closed(false);
    lab.directory.ensure("app", "front").await.unwrap();
    assert_eq!(changes(&lab), [created("front")]);
}

#[tokio::test(start_paused = true)]
async fn closed_gate_holds_back_repairs_of_attachments() {
    let bridge = NetworkId::new("app", "front").bridge_name();
    for deleted in [false, true] {
        let lab = running().await;
        lab.gate.set_closed(true);
        if deleted {
            lab.engine.delete_bridge(&bridge);
        } else {
            let gone = lab.engine.disconnect("id1".into(), "c1".into());
            gone.await.unwrap();
        }
        let before = changes(&lab).len();
        tokio::time::sleep(AFTER_TICK).await;
        assert_eq!(changes(&lab)[before..], [], "deleted: {deleted}");
        lab.gate.set_closed(false);
        tokio::time::sleep(AFTER_TICK).await;
        let last = changes(&lab).pop();
        let attached = |event| match event {
            Event::Connected(network, endpoint) => network + &endpoint.container,
            other => panic!("{other:?}"),
        };
        assert_eq!(last.map(attached).as_deref(), Some("jaco_app_frontc1"));
    }
}

#[tokio::test(start_paused = true)]
async fn bridge_name_of_another_interface_is_left_alone() {
    let lab = Lab::start().await;
    let id = NetworkId::new("app", "front");
    lab.engine.put_bridge(&id.bridge_name());
    lab.directory.ensure("app", "front").await.unwrap();
    let made = lab.engine.networks()[0].bridge.clone();
    assert_eq!(made, Some(id.fallback_bridge_name()));
}
