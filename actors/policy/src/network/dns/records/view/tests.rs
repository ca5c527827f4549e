use std::sync::Arc;

use jaco_proto::v1::{self, ReplicaDesired, ReplicaObserved, ReplicaState};
use jaco_state::State;

use super::*;

/// `web` of both is on the network that they share; `db` of `shop` and `job` of `blog` are not.
const DEPLOYMENTS: [(&str, &str); 2] = [
    (
        "shop",
        "networks: {default: {}, edge: {external: true, name: proxy}}\nservices:\n  \
         web: {image: i, networks: [default, edge]}\n  \
         db: {image: i}\n",
    ),
    (
        "blog",
        "networks: {proxy: {external: true}}\nservices:\n  \
         web: {image: i, networks: [proxy]}\n  \
         api: {image: i, networks: {proxy: {aliases: [www, api.example.com]}}}\n  \
         job: {image: i, container_name: worker}\n",
    ),
];

/// Engine networks and addresses on them.
type Addresses = &'static [(&'static str, &'static str)];

/// Replica, deployment, service, and its addresses.
const REPLICAS: [(&str, &str, &str, Addresses); 5] = [
    (
        "shop-web-0",
        "shop",
        "web",
        &[("shop__default", "10.1.0.2"), ("shared_proxy", "10.9.0.2")],
    ),
    ("shop-db-0", "shop", "db", &[("shop__default", "10.1.0.3")]),
    ("blog-web-0", "blog", "web", &[("shared_proxy", "10.9.0.3")]),
    ("blog-api-0", "blog", "api", &[("shared_proxy", "10.9.0.4")]),
    (
        "blog-job-0",
        "blog",
        "job",
        &[("blog__default", "10.2.0.2")],
    ),
];

fn state() -> State {
    let mut state = State::default();
    for (name, compose) in DEPLOYMENTS {
        let resolved = jaco_proto::manifest::compose::Project::parse(compose.as_bytes()).unwrap();
        let services = resolved.services.into_iter();
        let row = v1::Deployment {
            name: name.to_owned(),
            compose_yaml: compose.into(),
            services: services
                .map(|(name, service)| v1::ServiceSpec {
                    name,
                    networks: service.networks,
                    ..Default::default()
                })
                .collect(),
            ..Default::default()
        };
        state.deployments.insert(name.to_owned(), Arc::new(row));
    }
    for (id, deployment, service, addresses) in REPLICAS {
        let row = ReplicaDesired {
            id: id.to_owned(),
            deployment: deployment.to_owned(),
            service: service.to_owned(),
            host: "n1".to_owned(),
            ..Default::default()
        };
        state.replicas_desired.insert(id.to_owned(), Arc::new(row));
        let addresses = addresses.iter();
        let details =
            addresses.map(|(network, ip)| (format!("ip.jaco_{network}"), (*ip).to_owned()));
        let seen = ReplicaObserved {
            id: id.to_owned(),
            state: ReplicaState::Running.into(),
            host: "n1".to_owned(),
            details: details.collect(),
            ..Default::default()
        };
        state
            .replicas_observed
            .insert(id.to_owned(), Arc::new(seen));
    }
    state
}

fn resolve(records: &Records, network: &NetworkId, client: &str, name: &str) -> String {
    let view = records.view(network, client.parse().unwrap());
    let asked = match name.split_once(" of ") {
        Some((name, deployment)) => Asked::Of { name, deployment },
        None => Asked::Name(name),
    };
    match view.resolve(asked, "n1", |_| true) {
        Found::Here(addresses) => {
            let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            addresses.join(" ")
        }
        Found::Elsewhere => "elsewhere".to_owned(),
        Found::Nowhere => "nowhere".to_owned(),
    }
}

#[test]
fn shared_network_has_names_of_all_its_services() {
    let records = Records::of(&state());
    let (proxy, default) = (
        NetworkId::shared("proxy"),
        NetworkId::new("shop", "default"),
    );
    for (network, client, name, expected) in [
        // The own service comes first, and that of another deployment by its full name.
        (&proxy, "10.9.0.2", "web", "10.9.0.2"),
        (&proxy, "10.9.0.3", "web", "10.9.0.3"),
        (&proxy, "10.9.0.2", "web of blog", "10.9.0.3"),
        (&proxy, "10.9.0.3", "web of shop", "10.9.0.2"),
        (&proxy, "10.9.0.2", "web of shop", "10.9.0.2"),
        (&proxy, "10.9.0.2", "api", "10.9.0.4"),
        (&proxy, "10.9.0.2", "www", "10.9.0.4"),
        (&proxy, "10.9.0.2", "api.example.com", "10.9.0.4"),
        // Services that do not join it have no names there.
        (&proxy, "10.9.0.2", "db", "elsewhere"),
        (&proxy, "10.9.0.3", "db", "nowhere"),
        (&proxy, "10.9.0.3", "db of shop", "nowhere"),
        (&proxy, "10.9.0.2", "job of blog", "nowhere"),
        (&proxy, "10.9.0.2", "worker", "nowhere"),
        // The other networks of a container refer to it.
        (&default, "10.1.0.2", "web", "10.1.0.2"),
        (&default, "10.1.0.2", "db", "10.1.0.3"),
        (&default, "10.1.0.2", "api", "elsewhere"),
        (&default, "10.1.0.2", "web of blog", "elsewhere"),
        (&default, "10.1.0.3", "api", "nowhere"),
        (&default, "10.1.0.3", "web of blog", "nowhere"),
        // A container that was not observed yet may be of either deployment.
        (&proxy, "10.9.0.9", "web", "elsewhere"),
        (&proxy, "10.9.0.9", "web of blog", "10.9.0.3"),
        (&proxy, "10.9.0.9", "api", "10.9.0.4"),
        (&default, "10.1.0.9", "api", "elsewhere"),
    ] {
        let found = resolve(&records, network, client, name);
        assert_eq!(found, expected, "{name} for {client} on {network}");
    }
}

#[test]
fn names_of_others_count_on_shared_networks_only() {
    let records = Records::of(&state());
    let (proxy, default) = (
        NetworkId::shared("proxy"),
        NetworkId::new("shop", "default"),
    );
    let shop = records.view(&proxy, "10.9.0.2".parse().unwrap());
    assert!(shop.deployments().eq(["shop", "blog"]));
    for (deployment, name, expected) in [
        ("shop", "db", true),
        ("blog", "api", true),
        ("blog", "api.example.com", true),
        ("blog", "job", false),
        ("blog", "worker", false),
        ("other", "web", false),
    ] {
        assert_eq!(
            shop.declares(deployment, name),
            expected,
            "{name} of {deployment}"
        );
    }
    let db = records.view(&default, "10.1.0.3".parse().unwrap());
    assert!(db.deployments().eq(["shop"]));
    let web = records.view(&default, "10.1.0.2".parse().unwrap());
    assert!(web.deployments().eq(["shop", "blog"]));
}

#[test]
fn former_user_leaves_no_names() {
    let before = state();
    let mut records = Records::of(&before);
    let mut after = before.clone();
    after.deployments.remove("blog");
    for id in ["blog-web-0", "blog-api-0", "blog-job-0"] {
        after.replicas_desired.remove(id);
    }
    records.update(&before, &after);
    let proxy = NetworkId::shared("proxy");
    assert_eq!(resolve(&records, &proxy, "10.9.0.2", "api"), "nowhere");
    assert_eq!(resolve(&records, &proxy, "10.9.0.9", "web"), "10.9.0.2");
    assert!(
        records
            .networks
            .keys()
            .all(|network| network.deployment() != "blog")
    );
    assert!(records.sharing(&proxy).eq(["shop"]));
}
