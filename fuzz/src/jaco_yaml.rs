//! Fuzzes `jaco.yaml`.

use jaco_proto::{
    manifest::{self, jaco::Jaco},
    yaml::Position,
};

use crate::{
    manifest::{assert_refusal, without_position},
    tree,
};

/// Input: a `jaco.yaml`.
///
/// The emitted tree parses to the same tree, and both texts are equal or rejected for the same
/// reason. `jaco validate` gives the same result.
pub fn jaco_yaml(data: &[u8]) {
    let parsed = Jaco::parse(data).map(without_positions);
    let validated = manifest::validate(Some(data), None);
    assert_eq!(
        parsed.as_ref().err(),
        validated.as_ref().err(),
        "validate disagrees"
    );
    if let Some(root) = tree::read(data).and_then(|document| document.root)
        && let Some(text) = tree::rewritten(&root)
    {
        let again = Jaco::parse(text.as_bytes()).map(without_positions);
        assert_eq!(
            parsed.clone().map_err(without_position),
            again.map_err(without_position)
        );
    }
    match parsed {
        Ok(jaco) => assert_sound(&jaco),
        Err(error) => assert_refusal(&error, data, &[]),
    }
}

fn assert_sound(jaco: &Jaco) {
    assert!(!jaco.deployment.is_empty());
    for route in &jaco.routes {
        assert!(!route.domain.is_empty() && !route.service.is_empty());
        assert_ne!(route.port, 0);
    }
    for service in &jaco.services {
        assert!(!service.name.is_empty());
        assert!(service.replicas.is_none_or(|replicas| *replicas >= 0));
    }
}

/// Removes the positions of values, which depend on the spelling.
fn without_positions(mut jaco: Jaco) -> Jaco {
    for route in &mut jaco.routes {
        route.at = Position::START;
        route.service.at = Position::START;
        route.path.at = Position::START;
    }
    for service in &mut jaco.services {
        service.name.at = Position::START;
        if let Some(replicas) = &mut service.replicas {
            replicas.at = Position::START;
        }
        for name in service.hosts.iter_mut().chain(&mut service.networks) {
            name.at = Position::START;
        }
    }
    jaco
}
