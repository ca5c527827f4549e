//! Fuzzes compose files, alone and with a `jaco.yaml`.

use std::collections::BTreeSet;

use jaco_proto::{
    manifest::{
        self, SpecHasher,
        compose::{Project, Service},
    },
    yaml::{Node, Position, Resolved as Type, Scalar, Value},
};

use crate::{
    cluster::Permissive,
    manifest::{assert_refusal, assert_sound, without_position},
    parts::parts,
    tree,
};

/// Input: a compose file, then optionally a `jaco.yaml`.
///
/// The emitted tree parses to the same tree. Both texts are accepted with the same result and the
/// same hashes, or rejected for the same reason; an error has a manifest error code and a position
/// in the file. `jaco validate` accepts whatever an apply accepts, and services with equal hashes
/// are equal containers.
pub fn compose(data: &[u8]) {
    let [compose, jaco] = parts(data);
    let jaco = if jaco.is_empty() {
        b"deployment: d\n"
    } else {
        jaco
    };
    let resolved = manifest::resolve(jaco, compose, &Permissive);
    let document = tree::read(compose).filter(|document| document.next.is_none());
    let root = document.and_then(|document| document.root);
    let rewritten = root.as_ref().and_then(tree::rewritten);
    if let Some(text) = &rewritten {
        let again = manifest::resolve(jaco, text.as_bytes(), &Permissive);
        assert_eq!(
            resolved.clone().map_err(without_position),
            again.map_err(without_position),
            "{text}"
        );
    }
    let resolved = match resolved {
        Ok(resolved) => resolved,
        Err(error) => return assert_refusal(&error, jaco, compose),
    };
    assert_sound(&resolved);
    manifest::validate(Some(jaco), Some(compose)).expect("accepted by resolve");
    let project = Project::parse(compose).expect("accepted by resolve");
    assert_references(&project);
    let hasher = SpecHasher::new(compose).expect("accepted by resolve");
    let text = rewritten.as_deref().map(str::as_bytes);
    let rewritten = text.map(|text| SpecHasher::new(text).expect("accepted by resolve"));
    for service in &resolved.services {
        let hash = hasher.hash(&service.name, &service.networks, &service.files);
        assert!(hash.is_some());
        if let Some(rewritten) = &rewritten {
            assert_eq!(
                hash,
                rewritten.hash(&service.name, &service.networks, &service.files)
            );
        }
    }
    if let Some(mut root) = root {
        rewrite_scalars(&mut root);
        assert_equal_containers(&project, &hasher, &root);
    }
}

/// Checks that every reference to a config or secret leads to a declaration and to a path of its own
/// inside the container, with an owner and permissions that a file can have.
fn assert_references(project: &Project) {
    for service in project.services.values() {
        let mut targets = BTreeSet::new();
        let configs = service.configs.iter().map(|it| (it, &project.configs));
        let secrets = service.secrets.iter().map(|it| (it, &project.secrets));
        for (reference, declared) in configs.chain(secrets) {
            assert!(declared.contains_key(&reference.source), "{reference:?}");
            let target = &reference.target;
            let mut parts = target.strip_prefix('/').expect("absolute").split('/');
            assert!(
                parts.all(|part| !matches!(part, "" | "." | "..")),
                "{target}"
            );
            assert!(targets.insert(target), "{target} twice");
            assert!(reference.mode <= 0o7777, "{reference:?}");
        }
    }
}

/// Checks that services whose hash is the same after a change of spelling are equal containers.
fn assert_equal_containers(project: &Project, hasher: &SpecHasher, respelled: &Node) {
    let text = jaco_proto::yaml::to_string(respelled);
    let Ok(other) = Project::parse(text.as_bytes()) else {
        return;
    };
    let other_hasher = SpecHasher::new(text.as_bytes()).expect("parsed above");
    for (name, service) in &project.services {
        if hasher.hash(name, &[], &[]) == other_hasher.hash(name, &[], &[]) {
            let other = other.services.get(name).map(without_positions);
            assert_eq!(Some(without_positions(service)), other, "{text}");
        }
    }
}

/// Removes the positions of values, which depend on the spelling.
fn without_positions(service: &Service) -> Service {
    let mut service = service.clone();
    for port in &mut service.ports {
        port.at = Position::START;
    }
    service
}

/// Rewrites all numbers, booleans and nulls with another spelling where possible.
fn rewrite_scalars(node: &mut Node) {
    match &mut node.value {
        Value::Scalar(scalar) => {
            let text = match scalar.resolve() {
                Type::Null => "~".to_owned(),
                Type::Bool(value) => value.to_string().to_uppercase(),
                Type::Int(value) => value.to_string(),
                Type::Float(value) if value.is_finite() => value.to_string(),
                Type::Float(_) | Type::Str(_) => return,
            };
            *scalar = Scalar { text, plain: true };
        }
        Value::Seq(items) => items.iter_mut().for_each(rewrite_scalars),
        Value::Map(map) => map.values_mut().for_each(rewrite_scalars),
    }
}
