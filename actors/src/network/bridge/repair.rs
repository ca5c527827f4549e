//! Repair of a network that was changed outside JACO.

use jaco_engine::{Endpoint, EngineError, EngineNetwork};
use jaco_policy::network::{
    bridge::{
        drift::{self, Drift},
        members::members,
        plan::{DesiredNetwork, Plan, plan},
    },
    names::NetworkId,
};
use jaco_proto::config::advertise::Interface;
use tracing::{info, warn};

use super::{BridgeContext, Error, ensure};

/// Repairs this host's network `id` and attaches running containers that belong to it, as long as
/// the state has a block for it. No container is attached before its block is isolated. Appends the
/// differences that it removed to `repaired`, also before an error.
///
/// # Errors
/// See [`ensure`], and [`Error::NotEnforced`]; a retry continues from there.
pub(super) async fn repair(
    env: &BridgeContext,
    id: &NetworkId,
    repaired: &mut Vec<Drift>,
) -> Result<(), Error> {
    let Some(cidr) = env.block_of(id) else {
        return Ok(());
    };
    let wanted = DesiredNetwork {
        id: id.clone(),
        cluster_id: env.cluster_id.clone(),
        cidr,
    };
    let networks = env.engine.list().await.map_err(Error::Engine)?;
    let interfaces = env.interfaces().await?;
    env.sight.handle_listing(&networks, &interfaces);
    match plan(&wanted, &networks, &interfaces)? {
        Plan::Reuse(found) => {
            if let Some(bridge) = env.sight.missing(&found, &networks, &interfaces) {
                rebuild(env, &wanted, found).await?;
                repaired.push(Drift::BridgeMissing(bridge));
            } else {
                restore(env, &wanted, &found, &interfaces, repaired).await?;
            }
        }
        Plan::Remove(_) => {
            ensure(&env.engine, &*env.interfaces, &wanted).await?;
            repaired.push(Drift::NetworkDiffers);
        }
        Plan::Create(_) => {
            ensure(&env.engine, &*env.interfaces, &wanted).await?;
            repaired.push(Drift::NetworkMissing);
        }
    }
    attach_members(env, &wanted, repaired).await
}

/// Restores a bridge that is there. Its containers keep their connections.
async fn restore(
    env: &BridgeContext,
    wanted: &DesiredNetwork,
    network: &EngineNetwork,
    interfaces: &[Interface],
    repaired: &mut Vec<Drift>,
) -> Result<(), Error> {
    let faults = drift::bridge_faults(network, wanted.cidr, interfaces);
    if let (false, Some(bridge)) = (faults.is_empty(), &network.bridge) {
        let gateway = (wanted.cidr.gateway(), wanted.cidr.prefix());
        let restored = env.interfaces.restore(bridge.clone(), gateway).await;
        restored.map_err(|error| Error::Restore(error.to_string()))?;
        repaired.extend(faults);
    }
    Ok(())
}

/// Recreates a network whose bridge is gone. Its containers keep their addresses and names, but not
/// their connections: their links ended with the bridge.
async fn rebuild(
    env: &BridgeContext,
    wanted: &DesiredNetwork,
    network: EngineNetwork,
) -> Result<(), Error> {
    // Waits before it detaches the containers, which are to be attached again at once.
    wait_enforced(env, wanted).await?;
    let engine = &env.engine;
    let endpoints = engine.endpoints(&network).await.map_err(Error::Engine)?;
    for endpoint in &endpoints {
        let detached = engine.disconnect(network.id.clone(), endpoint.container.clone());
        detached.await.map_err(Error::Engine)?;
    }
    engine.remove(network.id).await.map_err(Error::Engine)?;
    ensure(engine, &*env.interfaces, wanted).await?;
    let networks = engine.list().await.map_err(Error::Engine)?;
    let interfaces = env.interfaces().await?;
    let made = networks.iter().find(|found| found.name == network.name);
    if let Some(bridge) = made.and_then(|found| found.bridge.as_ref()) {
        let visible = interfaces.iter().any(|found| found.name == *bridge);
        env.sight.handle_created(bridge, visible);
        if !visible {
            warn!(subsystem = "bridge", network = %wanted.id, bridge, "new bridge not visible; the engine may be in another network namespace");
        }
    }
    let mut failed = None;
    for endpoint in endpoints {
        if let Err(error) = connect(env, wanted, endpoint).await {
            failed = Some(error);
        }
    }
    failed.map_or(Ok(()), |error| Err(Error::Engine(error)))
}

/// Attaches running containers of the network's members that are not attached. One that fails does
/// not hold up the others.
async fn attach_members(
    env: &BridgeContext,
    wanted: &DesiredNetwork,
    repaired: &mut Vec<Drift>,
) -> Result<(), Error> {
    let state = env.raft.state();
    let mut members = members(&state, &env.documents, &env.host);
    let members = members.remove(&wanted.id).unwrap_or_default();
    if members.is_empty() {
        return Ok(());
    }
    let containers = env.engine.containers(&env.cluster_id).await;
    let containers = containers.map_err(Error::Engine)?;
    let mut failed = None;
    let known = &env.addresses;
    known.handle_listing(&wanted.id, &members, &containers);
    let detached = drift::detached(wanted, &members, &containers, known);
    if !detached.is_empty() {
        wait_enforced(env, wanted).await?;
    }
    for (replica, endpoint) in detached {
        match connect(env, wanted, endpoint).await {
            Ok(()) => repaired.push(Drift::Detached(replica)),
            // It ended in the meantime.
            Err(EngineError::NotFound(_)) => {}
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(()), |error| Err(Error::Engine(error)))
}

async fn wait_enforced(env: &BridgeContext, wanted: &DesiredNetwork) -> Result<(), Error> {
    let enforced = env.gate.wait_enforced(&wanted.id, wanted.cidr).await;
    enforced.map_err(Error::NotEnforced)
}

/// Attaches a container, with another address if its own is taken.
async fn connect(
    env: &BridgeContext,
    wanted: &DesiredNetwork,
    endpoint: Endpoint,
) -> Result<(), EngineError> {
    let name = wanted.id.engine_name();
    let Some(address) = endpoint.address else {
        return env.engine.connect(&name, endpoint).await;
    };
    match env.engine.connect(&name, endpoint.clone()).await {
        Err(error @ (EngineError::Api { .. } | EngineError::Conflict(_))) => {
            info!(subsystem = "bridge", network = %wanted.id, container = %endpoint.container, %address, %error, "address not available, another is chosen");
            let endpoint = Endpoint {
                address: None,
                ..endpoint
            };
            env.engine.connect(&name, endpoint).await
        }
        done => done,
    }
}
