use std::{process::Command, time::Duration};

use super::*;
use crate::netns::Namespace;

/// Longest wait for an announcement; reached only if there is none.
const FOREVER: Duration = Duration::from_secs(30);

/// Runs `work` inside a new namespace.
fn in_namespace<F: Future<Output = ()>>(work: impl FnOnce() -> F + Send) {
    let namespace = Namespace::create().unwrap();
    let done = namespace.within(|| {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_all().build().unwrap();
        runtime.block_on(work());
    });
    done.unwrap();
}

fn ip(arguments: &str) -> String {
    let done = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .unwrap();
    assert!(done.status.success(), "ip {arguments}: {done:?}");
    String::from_utf8(done.stdout).unwrap()
}

fn address(text: &str) -> Address {
    let (ip, prefix) = text.split_once('/').unwrap();
    Address {
        ip: ip.parse().unwrap(),
        prefix: prefix.parse().unwrap(),
    }
}

fn route(to: &str, target: Target, source: Option<&str>, metric: u32) -> Route {
    let Address { ip, prefix } = address(to);
    Route {
        network: ip,
        prefix,
        target,
        source: source.map(|source| source.parse().unwrap()),
        metric,
    }
}

/// A bridge, in place of a tunnel.
async fn bridge(links: &Links, name: &str) -> Link {
    ip(&format!("link add {name} type bridge"));
    links.link(name).await.unwrap().unwrap()
}

/// A bridge that is up.
async fn bridge_up(links: &Links, name: &str) -> Link {
    let link = bridge(links, name).await;
    links.set_up(link.index, 1420).await.unwrap();
    link
}

/// A bridge `j0` that is up and has these addresses.
async fn routed(addresses: &[&str]) -> (Links, Link) {
    let links = Links::open().unwrap();
    let link = bridge_up(&links, "j0").await;
    for text in addresses {
        links.add_address(link.index, address(text)).await.unwrap();
    }
    (links, link)
}

#[test]
fn link_is_set_up_and_removed() {
    in_namespace(async || {
        let links = Links::open().unwrap();
        assert_eq!(links.link("j0").await.unwrap(), None);
        let link = bridge(&links, "j0").await;
        assert!(!link.up);
        for _ in 0..2 {
            links.set_up(link.index, 1420).await.unwrap();
        }
        let shown = ip("-j link show j0");
        assert!(
            shown.contains("\"mtu\":1420") && shown.contains("\"UP\""),
            "{shown}"
        );
        let link = links.link("j0").await.unwrap().unwrap();
        assert_eq!((link.up, link.mtu, link.name.as_str()), (true, 1420, "j0"));
        for _ in 0..2 {
            links.remove_link(link.index).await.unwrap();
        }
        assert_eq!(links.link("j0").await.unwrap(), None);
        let error = links.set_up(link.index, 1420).await.unwrap_err();
        assert!(error.is_missing(), "{error:?}");
    });
}

#[test]
fn kernel_without_wireguard_refuses_its_link() {
    in_namespace(async || {
        let links = Links::open().unwrap();
        match links.add_wireguard("wg0").await {
            Ok(()) => assert_eq!(links.link("wg0").await.unwrap().unwrap().kind, "wireguard"),
            Err(error) => assert!(error.is_unsupported(), "{error:?}"),
        }
        assert_eq!(bridge(&links, "j0").await.kind, "bridge");
    });
}

#[test]
fn tunnel_is_configured_like_any_link() {
    in_namespace(async || {
        let links = Links::open().unwrap();
        let _tunnel = crate::tun::open("jt0").unwrap();
        let link = links.link("jt0").await.unwrap().unwrap();
        links.set_up(link.index, 1420).await.unwrap();
        links
            .add_address(link.index, address("10.99.0.53/32"))
            .await
            .unwrap();
        let to = route(
            "10.99.0.0/24",
            Target::Link(link.index),
            Some("10.99.0.53"),
            0,
        );
        links.add_route(to).await.unwrap();
        let shown = ip("-j route get 10.99.0.7");
        assert!(shown.contains("\"dev\":\"jt0\""), "{shown}");
        assert!(shown.contains("\"prefsrc\":\"10.99.0.53\""), "{shown}");
    });
}

#[test]
fn addresses_are_added_and_removed_one_by_one() {
    in_namespace(async || {
        let links = Links::open().unwrap();
        let link = bridge(&links, "j0").await;
        let (one, other) = (address("10.99.0.7/32"), address("10.99.0.9/32"));
        ip("address add 192.0.2.1/24 dev lo");
        for added in [one, other, one] {
            links.add_address(link.index, added).await.unwrap();
        }
        assert_eq!(links.addresses(link.index).await.unwrap(), [one, other]);
        for _ in 0..2 {
            links.remove_address(link.index, one).await.unwrap();
        }
        assert_eq!(links.addresses(link.index).await.unwrap(), [other]);
        let shown = ip("-j -4 address show");
        assert!(
            shown.contains("192.0.2.1") && shown.contains("10.99.0.9"),
            "{shown}"
        );
        assert!(!shown.contains("10.99.0.7"), "{shown}");
        assert!(
            links
                .add_address(link.index + 1, one)
                .await
                .unwrap_err()
                .is_missing()
        );
    });
}

#[test]
fn routes_have_a_source_and_are_removed_exactly() {
    in_namespace(async || {
        let (links, link) = routed(&["10.99.0.7/32"]).await;
        let over = Target::Link(link.index);
        let (first, second) = (
            route("10.244.1.0/24", over, Some("10.99.0.7"), 0),
            route("10.244.2.0/24", over, Some("10.99.0.7"), 0),
        );
        for added in [first, second, first] {
            links.add_route(added).await.unwrap();
        }
        let shown = ip("-j route show dev j0");
        assert!(shown.contains("\"prefsrc\":\"10.99.0.7\""), "{shown}");
        assert_eq!(
            links.routes(Some(link.index)).await.unwrap(),
            [first, second]
        );
        for _ in 0..2 {
            links.remove_route(first).await.unwrap();
        }
        assert_eq!(links.routes(Some(link.index)).await.unwrap(), [second]);
    });
}

#[test]
fn route_is_replaced_in_one_operation() {
    in_namespace(async || {
        let (links, link) = routed(&["10.99.0.7/32", "10.99.0.9/32"]).await;
        let over = Target::Link(link.index);
        let [first, second, other] = [("10.99.0.7", 0), ("10.99.0.9", 0), ("10.99.0.9", 7)]
            .map(|(source, metric)| route("10.244.1.0/24", over, Some(source), metric));
        links.add_route(other).await.unwrap();
        for replaced in [first, second, second] {
            links.replace_route(replaced).await.unwrap();
        }
        assert_eq!(
            links.routes(Some(link.index)).await.unwrap(),
            [second, other]
        );
        let absent = Target::Link(link.index + 1);
        let error = links.replace_route(route("10.1.0.0/24", absent, None, 0));
        assert!(error.await.unwrap_err().is_missing());
    });
}

#[test]
fn own_routes_are_found_among_many() {
    in_namespace(async || {
        let links = Links::open().unwrap();
        assert_eq!(
            links.routes(Some(99)).await.unwrap(),
            [],
            "no table, no link"
        );
        let link = bridge_up(&links, "j0").await;
        bridge_up(&links, "e0").await;
        let many: String = (0..2000_u32)
            .map(|at| format!("route add 10.{}.{}.0/24 dev e0\n", at / 250, at % 250))
            .collect();
        let batch = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(batch.path(), many).unwrap();
        ip(&format!("-batch {}", batch.path().display()));
        ip("route add 10.200.0.0/24 dev j0");
        ip("route add 10.201.0.0/24 dev j0 table 7");
        let ours = route("10.202.0.0/24", Target::Link(link.index), None, 0);
        let hole = route("10.203.0.0/24", Target::Blackhole, None, 9);
        for added in [ours, hole, ours, hole] {
            links.add_route(added).await.unwrap();
        }
        let strange = route("10.200.0.0/24", Target::Link(link.index), None, 0);
        assert_eq!(
            links.routes(Some(link.index)).await.unwrap(),
            [strange, ours, hole]
        );
        assert_eq!(links.routes(None).await.unwrap(), [ours, hole]);
    });
}

#[test]
fn route_beside_others_is_removed_alone() {
    in_namespace(async || {
        let (links, link) = routed(&["10.99.0.7/32"]).await;
        let over = Target::Link(link.index);
        let routes = [
            route("10.244.1.0/24", over, None, 0),
            route("10.244.1.0/24", over, Some("10.99.0.7"), 7),
            route("10.244.1.0/24", over, Some("10.99.0.7"), 8),
            route("10.244.1.0/24", Target::Blackhole, None, 4096),
            route("10.244.1.0/24", Target::Blackhole, None, 4097),
        ];
        for removed in routes {
            for added in routes {
                links.add_route(added).await.unwrap();
            }
            for _ in 0..2 {
                if removed.metric != 0 || links.routes(None).await.unwrap().contains(&removed) {
                    links.remove_route(removed).await.unwrap();
                }
            }
            let mut left = routes.to_vec();
            left.retain(|route| *route != removed);
            left.sort_unstable();
            assert_eq!(links.routes(Some(link.index)).await.unwrap(), left);
        }
        // The route of another program over the link may have a gateway.
        ip("address add 192.0.2.1/24 dev j0");
        ip("route add 10.1.0.0/16 via 192.0.2.9 dev j0 metric 9");
        links
            .remove_route(route("10.1.0.0/16", over, None, 9))
            .await
            .unwrap();
        assert!(!ip("-j route show").contains("10.1.0.0/16"));
    });
}

#[test]
fn blackhole_takes_over_when_the_link_is_gone() {
    in_namespace(async || {
        let (links, link) = routed(&[]).await;
        let hole = route("10.244.1.0/24", Target::Blackhole, None, 4096);
        let over = route("10.244.1.0/24", Target::Link(link.index), None, 0);
        for added in [hole, over, hole] {
            links.add_route(added).await.unwrap();
        }
        assert!(ip("-j route get 10.244.1.9").contains("\"dev\":\"j0\""));
        links.remove_link(link.index).await.unwrap();
        let shown = ip("-j route show 10.244.1.0/24");
        assert!(shown.contains("blackhole"), "{shown}");
        assert_eq!(links.routes(None).await.unwrap(), [hole]);
        links.remove_route(hole).await.unwrap();
        assert_eq!(links.routes(None).await.unwrap(), []);
    });
}

#[test]
fn foreign_routes_are_left_alone() {
    in_namespace(async || {
        let (links, link) = routed(&[]).await;
        bridge_up(&links, "e0").await;
        ip("route add 10.244.1.0/24 dev e0");
        ip("route add blackhole 10.244.2.0/24 metric 4096");
        ip("route add 10.1.0.0/16 dev j0");
        // Of the foreign routes only one over the given link is listed.
        let strange = route("10.1.0.0/16", Target::Link(link.index), None, 0);
        assert_eq!(links.routes(Some(link.index)).await.unwrap(), [strange]);
        assert_eq!(links.routes(None).await.unwrap(), []);
        for taken in [
            route("10.244.1.0/24", Target::Link(link.index), None, 0),
            route("10.244.2.0/24", Target::Blackhole, None, 4096),
        ] {
            let error = links.add_route(taken).await.unwrap_err();
            assert!(matches!(error, Error::ForeignRoute(_)), "{error:?}");
            links.remove_route(taken).await.unwrap();
        }
        let shown = ip("-j route show");
        assert!(
            shown.contains("10.244.1.0/24") && shown.contains("10.244.2.0/24"),
            "{shown}"
        );
        links.remove_route(strange).await.unwrap();
        assert!(!ip("-j route show").contains("10.1.0.0/16"));
    });
}

#[test]
fn relevant_changes_are_announced() {
    in_namespace(async || {
        let (_links, Link { index, .. }) = routed(&[]).await;
        let watcher = Watcher::open(move |change| match change {
            Change::Link { name, .. } => name == "j0",
            Change::Address(of) => *of == index,
            Change::Route { link, ours, .. } => *ours || *link == Some(index),
            Change::Rule => true,
            Change::Lost => true,
        });
        let watcher = watcher.unwrap();
        let mut changes = watcher.changes();
        for change in [
            "address add 10.99.0.7/32 dev j0",
            "route add 10.1.0.0/16 dev j0",
            "route del 10.1.0.0/16 dev j0",
            "address del 10.99.0.7/32 dev j0",
            "rule add from 10.1.0.0/16 lookup 100",
            "link set j0 mtu 1400",
            "link del j0",
        ] {
            changes.borrow_and_update();
            ip(change);
            let announced = tokio::time::timeout(FOREVER, changes.changed()).await;
            announced.expect(change).unwrap();
        }
    });
}

#[test]
fn changes_of_other_links_are_no_news() {
    in_namespace(async || {
        let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
        let seen_by_watcher = std::sync::Arc::clone(&seen);
        let watcher = Watcher::open(move |change| {
            seen_by_watcher.lock().unwrap().push(change.clone());
            matches!(change, Change::Link { name, .. } if name == "j0")
        });
        let mut changes = watcher.as_ref().unwrap().changes();
        ip("link add e0 type bridge");
        ip("link set e0 up");
        ip("link add j0 type bridge");
        tokio::time::timeout(FOREVER, changes.changed())
            .await
            .unwrap()
            .unwrap();
        assert_eq!(*changes.borrow_and_update(), 1);
        let seen = seen.lock().unwrap();
        let of_other =
            |change: &&Change| matches!(change, Change::Link { name, .. } if name == "e0");
        assert!(seen.iter().filter(of_other).count() >= 2, "{seen:?}");
    });
}
