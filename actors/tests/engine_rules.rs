//! Rules of a compose file, checked on a real engine (`JACO_DOCKER_SOCKET`, or the usual place;
//! Docker or Podman).

#[path = "engine_rules/fixture.rs"]
mod fixture;

#[path = "engine_rules/engine_fails.rs"]
mod engine_fails;
#[path = "engine_rules/external_changes.rs"]
mod external_changes;
#[path = "engine_rules/health.rs"]
mod health;
#[path = "engine_rules/namespaces.rs"]
mod namespaces;
#[path = "engine_rules/networks.rs"]
mod networks;
#[path = "engine_rules/private_engine.rs"]
mod private_engine;
#[path = "engine_rules/relay.rs"]
mod relay;
#[path = "engine_rules/settings.rs"]
mod settings;
#[path = "engine_rules/volumes.rs"]
mod volumes;
