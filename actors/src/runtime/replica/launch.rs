//! Effects of a start: from a row to a running container.

use std::{collections::BTreeMap, sync::Arc};

use jaco_engine::{
    Engine, EngineError, Status, printable,
    spec::{
        Attachment, ContainerSpec, EndpointConfig, Networking, container_name, endpoint_config,
        image, networks, shared_services,
    },
};
use jaco_policy::runtime::{
    assignment, registry_key,
    replica::core::{PROGRESS_EVERY, PostStartError, PrepareError, StartCondition, StartError},
};
use jaco_proto::{manifest::compose::NetworkMode, secret::Redacted, v1::ReplicaDesired};
use tracing::{info, warn};

use crate::runtime::{Deps, NetworkError, RuntimeContext, environment};

/// Prepared start.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    image: String,
    platform: Option<String>,
    name: String,
    deployment: String,
    service: String,
    /// Redacted because it contains the environment.
    spec: Redacted<ContainerSpec>,
    /// Networks after the first, by name in the engine.
    rest: Vec<(String, EndpointConfig)>,
}

/// Reads the row's service, ensures its networks and determines the container's parameters.
pub(super) async fn prepare(
    shared: Arc<RuntimeContext>,
    id: String,
) -> Result<Launch, PrepareError> {
    let deps = &shared.deps;
    let state = deps.raft.state();
    let retry = |why: &str| PrepareError::Retry(why.to_owned());
    let row = state.replicas_desired.get(&id).cloned();
    let row = row.ok_or_else(|| retry("the row is gone"))?;
    let cluster = state.cluster.as_ref().ok_or_else(|| retry("no cluster"))?;
    let deployment = state.deployments.get(&row.deployment);
    let deployment = deployment.ok_or_else(|| retry("the deployment is gone"))?;
    let project_of = shared.documents.of(deployment);
    let document = project_of
        .as_ref()
        .as_ref()
        .map_err(|error| PrepareError::Retry(error.clone()))?;
    let service = document.services.get(&row.service);
    let service = service.ok_or_else(|| retry("the service is gone"))?;
    let spec = deployment
        .services
        .iter()
        .find(|spec| spec.name == row.service);

    let mut bridges = Vec::new();
    for network in networks(spec, service) {
        bridges.push(ensure(deps, &row.deployment, &network).await?);
    }
    let mut shared_containers = BTreeMap::new();
    for name in shared_services(service) {
        let container = assignment::running_here(&state, &deps.host, &row.deployment, name);
        let container = running(deps, container).await?;
        let container = container.ok_or_else(|| {
            PrepareError::Retry(format!("no running same-host replica of {name}"))
        })?;
        shared_containers.insert(name.to_owned(), container);
    }
    let rest = bridges.iter().skip(1).map(|bridge| {
        let config = endpoint_config(&row, service, &bridge.network);
        (bridge.engine_network.clone(), config)
    });
    let rest = rest.collect();
    let networking = match &service.network_mode {
        Some(NetworkMode::Service(name)) => Networking::Joined(name.clone()),
        Some(NetworkMode::Host) => Networking::Host,
        Some(NetworkMode::None) => Networking::None,
        None if bridges.is_empty() => Networking::None,
        None => Networking::Attached(bridges),
    };
    let files = deps.files.write(&state, &row).await?;
    let mut service = service.clone();
    if let Some(spec) = spec {
        let key = deps.files.secrets_key();
        let secrets = environment::secrets(key.as_deref(), &state, &row.deployment, spec)?;
        service.environment.extend(secrets);
    }
    let home = std::env::var("HOME").unwrap_or_else(|_| "/root".to_owned());
    Ok(Launch {
        image: image(&row, &service).to_owned(),
        platform: service.platform.clone(),
        deployment: row.deployment.clone(),
        service: row.service.clone(),
        name: container_name(&row.id),
        rest,
        spec: Redacted(ContainerSpec {
            cluster_id: cluster.cluster_id.clone(),
            row: ReplicaDesired::clone(&row),
            service,
            volumes: document.volumes.clone(),
            files,
            networking,
            shared_containers,
            home,
        }),
    })
}

/// Passes on a container that runs. The state may still show one that has just ended.
async fn running(deps: &Deps, container: Option<String>) -> Result<Option<String>, PrepareError> {
    let Some(container) = container else {
        return Ok(None);
    };
    match deps.engine.inspect(&container).await {
        Ok(seen) => Ok((seen.status == Some(Status::Running)).then_some(container)),
        Err(EngineError::NotFound(_)) => Ok(None),
        Err(error) => Err(PrepareError::Engine(error)),
    }
}

async fn ensure(deps: &Deps, deployment: &str, network: &str) -> Result<Attachment, PrepareError> {
    let ready = deps.networks.ensure(deployment, network).await;
    ready.map_err(|error| match error {
        NetworkError::PoolExhausted => PrepareError::PoolExhausted {
            network: network.to_owned(),
        },
        NetworkError::Unavailable(why) => PrepareError::Retry(why),
    })
}

/// Pulls the image once with the current credential, sharing the attempt with other replicas that
/// pull the same image; calls `progressed` when it progresses.
pub(super) async fn pull(
    shared: Arc<RuntimeContext>,
    launch: Launch,
    progressed: impl Fn() + Send + 'static,
) -> Result<(), EngineError> {
    let deps = &shared.deps;
    let stored = deps.raft.state().registry_credentials.clone();
    let credential =
        registry_key::resolve(&launch.image, &stored).map_err(|error| EngineError::Api {
            status: 0,
            message: printable(&error.to_string()),
        })?;
    let (image, platform) = (&launch.image, launch.platform.as_deref());
    let pull = shared.pulls.join(&deps.engine, image, platform, credential);
    pull.finish(PROGRESS_EVERY, progressed).await
}

/// A start that the core decided, and the condition on which it did.
#[derive(Clone)]
pub(super) struct Permit {
    shared: Arc<RuntimeContext>,
    id: String,
    condition: StartCondition,
}

impl Permit {
    pub(super) fn new(shared: &Arc<RuntimeContext>, id: &str, condition: StartCondition) -> Self {
        Self {
            shared: Arc::clone(shared),
            id: id.to_owned(),
            condition,
        }
    }

    /// Checks the condition against the state and the contact of this moment. The caller sends the
    /// request right after it: the process may have been paused at any point before.
    fn check(&self) -> Result<(), StartError> {
        let assignment = self.shared.assignment(&self.id);
        let holds = assignment.is_some_and(|assignment| self.condition.holds(&assignment));
        if holds {
            return Ok(());
        }
        info!(subsystem = "runtime/health", replica_id = %self.id, "start dropped: its row or the contact with the cluster has changed");
        Err(StartError::Revoked)
    }
}

/// Creates, connects and starts the container; removes it if a later step fails or may no longer be
/// made.
pub(super) async fn launch(permit: Permit, launch: Launch) -> Result<String, StartError> {
    let (deployment, service) = (launch.deployment.clone(), launch.service.clone());
    let launched = create_and_start(&permit, launch).await;
    if launched != Err(StartError::Revoked) {
        let metrics = &permit.shared.deps.metrics;
        metrics.container_start(&deployment, &service, launched.is_ok());
    }
    launched
}

async fn create_and_start(permit: &Permit, launch: Launch) -> Result<String, StartError> {
    let engine = &*permit.shared.deps.engine;
    let slot = engine.start_slot().await;
    permit.check()?;
    let container = engine.create(&launch.name, &launch.spec.0).await?;
    drop(slot);
    let finished = async {
        for (network, config) in &launch.rest {
            engine.connect(network, &container, config).await?;
        }
        start(permit, &container).await
    };
    match finished.await {
        Ok(()) => Ok(container),
        Err(error) => {
            // If the removal fails too, the next lookup finds the container by its label.
            let _ = engine.remove(&container).await;
            // `NotFound` and `Conflict` of these steps do not concern the image or the name.
            Err(match error {
                StartError::Engine(
                    EngineError::NotFound(message) | EngineError::Conflict(message),
                ) => EngineError::Api { status: 0, message }.into(),
                other @ (StartError::Revoked
                | StartError::Engine(
                    EngineError::Unreachable(_) | EngineError::Api { .. },
                )) => other,
            })
        }
    }
}

/// Starts a container that exists.
pub(super) async fn start(permit: &Permit, container: &str) -> Result<(), StartError> {
    let engine = &*permit.shared.deps.engine;
    let _slot = engine.start_slot().await;
    permit.check()?;
    Ok(engine.start(container).await?)
}

/// Runs the commands of `post_start` of a replica in its container, in order until one fails.
pub(super) async fn post_start(
    shared: Arc<RuntimeContext>,
    id: String,
    container: String,
) -> Result<(), PostStartError> {
    let deps = &shared.deps;
    let state = deps.raft.state();
    let Some(row) = state.replicas_desired.get(&id) else {
        return Ok(());
    };
    let commands = assignment::with_service(&state, &shared.documents, row, |service| {
        service.post_start.clone()
    });
    // Without the document the assignment has no commands, and asks for them again with it.
    for (at, hook) in commands.unwrap_or_default().iter().enumerate() {
        let failed = |reason: String| PostStartError::Failed {
            command: at + 1,
            reason,
        };
        match deps.engine.run(&container, hook).await {
            Ok(exit) if exit.code == 0 => {}
            Ok(exit) => return Err(failed(exit.to_string())),
            Err(error @ EngineError::Unreachable(_)) => return Err(PostStartError::Engine(error)),
            Err(error) => return Err(failed(error.to_string())),
        }
    }
    Ok(())
}

/// Stops a container as its service asks: its commands of `pre_stop` first, then its signal.
pub(crate) async fn stop(
    engine: &dyn Engine,
    replica_id: &str,
    container: &str,
) -> Result<(), EngineError> {
    for failure in engine.pre_stop(container).await? {
        warn!(subsystem = "runtime/health", replica_id, %failure, "a command of pre_stop failed; the stop goes on");
    }
    engine.stop(container).await
}

/// Stops and removes each container of a replica; returns at the first error.
pub(crate) async fn discard(
    shared: Arc<RuntimeContext>,
    replica_id: String,
    containers: Vec<String>,
) -> Result<(), EngineError> {
    let engine = &shared.deps.engine;
    for container in containers {
        stop(&**engine, &replica_id, &container).await?;
        shared.tails.wait_drained(&replica_id).await;
        engine.remove(&container).await?;
    }
    Ok(())
}
