//! Rows that JACO's Go implementation issued, in a state restored from its archive.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use jaco_proto::{
    manifest::{SpecHasher, compose::Project},
    v1,
};
use jaco_state::State;

use crate::network::names::DEFAULT_NETWORK;

/// Image of a service with its hash in both implementations.
struct Known {
    image: String,
    go_hash: [u8; 32],
    own_hash: [u8; 32],
}

/// Returns `state` with this implementation's spec hash in every row that the Go implementation
/// issued from the manifests in force.
///
/// The two hash differently, so that the scheduler would take each of these rows for a changed one
/// and replace its container. Rows whose hash is unknown here stay as they are, and their containers
/// are replaced.
#[must_use]
pub fn with_own_hashes(state: &State) -> State {
    let mut known: BTreeMap<(&str, &str), Known> = BTreeMap::new();
    for deployment in state.deployments.values() {
        // Only this implementation records the highest revision.
        if deployment.highest_revision == 0 {
            known.extend(services(deployment));
        }
    }
    let mut new = state.clone();
    for (id, row) in &state.replicas_desired {
        let service = known.get(&(row.deployment.as_str(), row.service.as_str()));
        let same =
            |service: &&Known| row.image == service.image && row.spec_hash == service.go_hash;
        if let Some(service) = service.filter(same) {
            let row = v1::ReplicaDesired {
                spec_hash: service.own_hash.to_vec(),
                ..v1::ReplicaDesired::clone(row)
            };
            new.replicas_desired.insert(id.clone(), Arc::new(row));
        }
    }
    new
}

/// Services of a deployment whose containers the Go implementation creates as this one does.
fn services(deployment: &v1::Deployment) -> BTreeMap<(&str, &str), Known> {
    let compose = &deployment.compose_yaml;
    let (Ok(project), Ok(hasher)) = (Project::parse(compose), SpecHasher::new(compose)) else {
        return BTreeMap::new();
    };
    let known = deployment.services.iter().filter_map(|spec| {
        let service = project.services.get(&spec.name)?;
        // The Go implementation attaches containers to the networks of the compose file alone.
        let overridden =
            !spec.networks.is_empty() && names(&spec.networks) != names(&service.networks);
        let known = Known {
            image: service.image.clone()?,
            go_hash: hasher.go_hash(&spec.name)?,
            own_hash: hasher.hash(&spec.name, &spec.networks, &spec.files)?,
        };
        let key = (deployment.name.as_str(), spec.name.as_str());
        (!overridden).then_some((key, known))
    });
    known.collect()
}

fn names(networks: &[String]) -> BTreeSet<&str> {
    let names = networks.iter().map(|name| match name.as_str() {
        "default" => DEFAULT_NETWORK,
        name => name,
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;
    use crate::scheduler::reconcile::{PassCache, reconcile};

    const COMPOSE: &str = "services:\n  web: {image: nginx, ports: [8080], command: a && b}\n";

    /// SHA-256 of `{"command":"a \u0026\u0026 b","image":"nginx","ports":[8080]}`.
    const GO_HASH: &str = "4760e1887dd9c1ab4e21d4553dab5694faeaf7ef4d9c5ae2d72f4659ff85e1be";

    /// A cluster of one host after the restore of an archive of the Go implementation.
    fn restored(compose: &str, networks: &[&str]) -> State {
        let deployment = v1::Deployment {
            name: "shop".to_owned(),
            applied_revision: 1,
            compose_yaml: compose.as_bytes().to_vec(),
            services: vec![v1::ServiceSpec {
                name: "web".to_owned(),
                replicas: 3,
                networks: networks.iter().map(|&name| name.to_owned()).collect(),
                ..Default::default()
            }],
            status: v1::DeploymentStatus::Active.into(),
            ..Default::default()
        };
        let host = v1::Node {
            hostname: "one".to_owned(),
            status: v1::NodeStatus::Ready.into(),
            ..Default::default()
        };
        let mut state = State::default();
        state.nodes.insert("one".to_owned(), Arc::new(host));
        state
            .deployments
            .insert("shop".to_owned(), Arc::new(deployment));
        for index in 0..3 {
            let row = v1::ReplicaDesired {
                id: format!("shop-web-{index}"),
                deployment: "shop".to_owned(),
                service: "web".to_owned(),
                index,
                host: "one".to_owned(),
                image: "nginx".to_owned(),
                raft_index: 41,
                spec_hash: hex::decode(GO_HASH).unwrap(),
                ..Default::default()
            };
            state.replicas_desired.insert(row.id.clone(), Arc::new(row));
        }
        state
    }

    fn reissued(state: &State) -> usize {
        let pass = reconcile(
            state,
            &mut PassCache::default(),
            std::time::Instant::now(),
            Timestamp::default(),
        );
        pass.summary.upserts
    }

    #[test]
    fn rows_of_unchanged_services_are_kept() {
        for networks in [&[][..], &["_default"], &["default"]] {
            let state = restored(COMPOSE, networks);
            assert_eq!(reissued(&state), 3);
            let known = with_own_hashes(&state);
            assert_eq!(reissued(&known), 0, "{networks:?}");
            let row = &known.replicas_desired["shop-web-0"];
            assert_eq!(row.raft_index, 41);
            assert_eq!(with_own_hashes(&known), known);
        }
    }

    #[test]
    fn rows_of_changed_services_are_replaced() {
        let changed = COMPOSE.replace("8080", "8081");
        let overridden = format!("{COMPOSE}networks: {{back: }}\n");
        let unreadable = format!("{COMPOSE}---\n{COMPOSE}");
        let image = COMPOSE.replace("nginx", "nginx:2");
        for (compose, networks) in [
            (&changed, &["_default"][..]),
            (&image, &["_default"]),
            (&overridden, &["back"]),
            (&unreadable, &["_default"]),
        ] {
            let state = restored(compose, networks);
            assert_eq!(with_own_hashes(&state), state, "{compose}");
        }
        let mut applied_here = restored(COMPOSE, &["_default"]);
        let mut shop = v1::Deployment::clone(&applied_here.deployments["shop"]);
        shop.highest_revision = 1;
        applied_here
            .deployments
            .insert("shop".to_owned(), Arc::new(shop));
        assert_eq!(with_own_hashes(&applied_here), applied_here);
    }

    #[test]
    fn only_hashes_are_replaced() {
        let state = restored(COMPOSE, &["_default"]);
        let known = with_own_hashes(&state);
        assert_ne!(known, state);
        let rows = |state: &State| State {
            replicas_desired: state
                .replicas_desired
                .iter()
                .map(|(id, row)| {
                    let row = v1::ReplicaDesired {
                        spec_hash: Vec::new(),
                        ..v1::ReplicaDesired::clone(row)
                    };
                    (id.clone(), Arc::new(row))
                })
                .collect(),
            ..state.clone()
        };
        assert_eq!(rows(&known), rows(&state));
    }
}
