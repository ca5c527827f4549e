//! `Deploy.Apply`: validates two documents and commits one revision.

use std::time::Instant;

use jaco_policy::{
    api::diff::diff,
    scheduler::{
        reconcile::{PassCache, reconcile},
        rollout::Rollouts,
    },
};
use jaco_proto::{
    Error, ErrorCode,
    manifest::{self, ClusterView, Resolved},
    v1::{self, command::Payload},
};
use jaco_raftnode::StateReader;
use jaco_state::{State, fsm};
use prost::Message as _;

use super::{
    caller::Caller,
    files,
    secrets::{self, key_in_force},
};
use crate::node::MemberContext;

/// The cluster's names and ports, against which a manifest is validated.
struct View<'a> {
    state: &'a State,
    caller: &'a Caller,
}

impl ClusterView for View<'_> {
    fn has_host(&self, host: &str) -> bool {
        self.state.nodes.contains_key(host)
    }

    fn port_owner(&self, port: u16, protocol: v1::TransportProtocol) -> Option<String> {
        self.state
            .tcp_routes
            .get(&(i32::from(port), protocol.into()))
            .map(|route| route.deployment.clone())
    }

    fn route_owner(&self, domain: &str, path: &str) -> Option<String> {
        self.state
            .routes
            .get(&(domain.to_owned(), path.to_owned()))
            .map(|route| route.deployment.clone())
    }

    fn identity(&self) -> &str {
        &self.caller.identity
    }

    fn allows_privileged(&self) -> bool {
        self.caller.is_local()
            || self
                .state
                .tokens
                .get(&self.caller.identity)
                .is_some_and(|token| token.allows_privileged)
    }
}

/// Validates and previews a manifest pair and, unless it is a dry run, commits it.
///
/// Applies are serialised: each validates against the outcome of the one before.
pub(super) async fn apply(
    node: &MemberContext,
    caller: &Caller,
    request: v1::ApplyRequest,
) -> Result<v1::ApplyResponse, Error> {
    let guard = node.apply_lock.lock(&node.raft).await?;
    let state = node.raft.state();
    let view = View {
        state: &state,
        caller,
    };
    let mut resolved = manifest::resolve(&request.jaco_yaml, &request.compose_yaml, &view)?;
    // While values are sealed, the guard also keeps the secrets key from being replaced.
    let (guard, key) = match files::has_secrets(&resolved) || !request.secret_values.is_empty() {
        true => {
            let guard = guard.with(node.sealing_lock.lock(&node.raft).await?)?;
            (guard, Some(key_in_force(node)?))
        }
        false => (guard, None),
    };
    // Values that were sealed anew since would seem to be others.
    let state = node.raft.state();
    let contents = files::assign(&state, &mut resolved, &request.files, key.as_ref())?;
    let secrets = secrets::changed(&state, &resolved, &request, key.as_ref())?;
    let current = state.deployments.get(&resolved.deployment);
    let applied = current.map_or(0, |current| current.applied_revision);
    let highest = current.map_or(0, |c| c.highest_revision.max(c.applied_revision));

    let apply = payload(&request, &resolved, contents, highest + 1);
    let command = command(node, caller, &state, &resolved, &secrets, apply);
    let changes = preview(&state, &resolved.deployment, &command, node.command_bytes())?;
    if request.dry_run {
        return Ok(v1::ApplyResponse {
            applied_revision: applied,
            diff: Some(changes),
        });
    }
    guard.propose(&node.raft, command).await?;
    Ok(v1::ApplyResponse {
        applied_revision: highest + 1,
        diff: Some(changes),
    })
}

/// Builds the command of a revision. Its new secrets come first, since it needs their values. The audit events of privileged services are in the same log
/// entry, so that neither exists without the other. So is the end of the overrides of domains whose
/// TLS the manifest sets itself.
fn command(
    node: &MemberContext,
    caller: &Caller,
    state: &State,
    resolved: &Resolved,
    secrets: &[v1::Secret],
    apply: v1::DeploymentApply,
) -> v1::Command {
    let sign = |payload| node.command(&caller.identity, payload);
    let apply = sign(Payload::DeploymentApply(apply));
    let domains = resolved.tls_written.iter();
    let overrides = domains.map(|domain| (resolved.deployment.clone(), domain.clone()));
    let overrides = overrides.filter(|key| state.route_tls_overrides.contains_key(key));
    let overrides: Vec<_> = overrides
        .map(|(deployment, domain)| {
            let removal = v1::RouteTlsOverrideRemove { deployment, domain };
            sign(Payload::RouteTlsOverrideRemove(removal))
        })
        .collect();
    if resolved.privileged.is_empty() && overrides.is_empty() && secrets.is_empty() {
        return apply;
    }
    let secrets = secrets.iter().map(|secret| {
        let secret = Some(secret.clone());
        sign(Payload::SecretUpsert(v1::SecretUpsert { secret }))
    });
    let admitted = resolved.privileged.iter().map(|admitted| {
        let event = v1::AuditEvent {
            r#type: v1::AuditEventType::PrivilegedWorkloadAdmitted.into(),
            identity: caller.identity.clone(),
            payload: [
                ("deployment", resolved.deployment.as_str()),
                ("service", &admitted.service),
                ("identity", &caller.identity),
                ("fields", &admitted.fields),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
            ..Default::default()
        };
        sign(Payload::AuditAppend(v1::AuditAppend { event: Some(event) }))
    });
    let children = secrets.chain([apply]).chain(overrides).chain(admitted);
    let children = children.collect();
    sign(Payload::Batch(v1::Batch { children }))
}

fn payload(
    request: &v1::ApplyRequest,
    resolved: &Resolved,
    contents: Vec<v1::FileContent>,
    revision: u64,
) -> v1::DeploymentApply {
    v1::DeploymentApply {
        deployment: resolved.deployment.clone(),
        revision,
        jaco_yaml: request.jaco_yaml.clone(),
        compose_yaml: request.compose_yaml.clone(),
        services: resolved.services.clone(),
        routes: resolved.routes.clone(),
        tcp_routes: resolved.tcp_routes.clone(),
        acme_email: resolved.acme_email.clone(),
        networks: resolved.networks.clone(),
        contents,
    }
}

/// Runs the command and the scheduler's reaction on a copy of the state. Copies are cheap, so the
/// preview is exact.
fn preview(
    state: &State,
    deployment: &str,
    command: &v1::Command,
    limit: usize,
) -> Result<v1::Diff, Error> {
    let applied = fsm::apply(state, state.applied_index + 1, command).map_err(unknown)?;
    applied.result?;
    let now = command.ts.unwrap_or_default();
    let mut after = applied.state;
    let mut cache = PassCache {
        rollouts: Rollouts::at_once(),
        ..PassCache::default()
    };
    // One pass, or several if a batch has no room for all changes.
    loop {
        let pass = reconcile(&after, &mut cache, Instant::now(), now);
        let Some(batch) = pass.batch else {
            break;
        };
        check_size(&batch, limit)?;
        let scheduled = fsm::apply(&after, after.applied_index + 1, &batch).map_err(unknown)?;
        scheduled.result?;
        after = scheduled.state;
        if pass.summary.deferred == 0 {
            break;
        }
    }
    Ok(diff(state, &after, deployment))
}

/// Refuses a batch that raft would refuse for its size: it would block the scheduling of every
/// deployment for ever.
fn check_size(batch: &v1::Command, limit: usize) -> Result<(), Error> {
    let bytes = batch.encoded_len();
    if bytes > limit {
        return Err(Error::new(
            ErrorCode::ValidationFailed,
            format!(
                "the deployment has more replicas than can be scheduled at once ({bytes} bytes of \
                 {limit})"
            ),
        )
        .with("field", "replicas")
        .with("bytes", bytes)
        .with("limit", limit));
    }
    Ok(())
}

fn unknown(error: fsm::UnknownVariant) -> Error {
    Error::new(ErrorCode::Internal, "the change cannot be previewed").because(error)
}
