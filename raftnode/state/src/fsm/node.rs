//! Members: join, removal and node reports.

use jaco_proto::{
    Error, ErrorCode, mark,
    v1::{self, AuditEventType, NodeStatus},
};

use super::{Origin, Tx, audit, cert, reject, replica, subnet};

pub(super) fn join(tx: &mut Tx, origin: &Origin<'_>, command: &v1::NodeJoin) -> Result<(), Error> {
    // Names in certificates are compared without case: the certificate of one such name would be
    // valid for the other.
    let mut names = tx.state().nodes.keys();
    if let Some(name) = names.find(|name| name.eq_ignore_ascii_case(&command.hostname)) {
        let message = format!("a member is called {name:?} already");
        return Err(
            Error::new(ErrorCode::NodeAlreadyMember, message).with("hostname", &command.hostname)
        );
    }
    check_address(tx, &command.address)?;
    take_raft_id(tx, command.raft_id)?;
    tx.put(v1::Node {
        hostname: command.hostname.clone(),
        address: command.address.clone(),
        server_cert_fingerprint: command.server_cert_fingerprint.clone(),
        wireguard_pubkey: command.wireguard_pubkey.clone(),
        grpc_address: command.grpc_address.clone(),
        status: NodeStatus::Joining.into(),
        joined_at: Some(origin.ts),
        raft_id: command.raft_id,
        ..v1::Node::default()
    })?;
    audit::record(
        tx,
        origin,
        AuditEventType::NodeJoin,
        [("hostname", command.hostname.clone())],
    )
}

/// Refuses a joining member whose peer address another member has: the two are not
/// distinguishable. A member that moves may take such an address, since its owner may be moving
/// too.
fn check_address(tx: &Tx, address: &str) -> Result<(), Error> {
    let mut members = tx.state().nodes.values();
    let owner = members.find(|node| !address.is_empty() && node.address == address);
    match owner {
        None => Ok(()),
        Some(owner) => Err(Error::new(
            ErrorCode::ValidationFailed,
            "another member has this address",
        )
        .with("field", "address")
        .with("value", address)
        .with("reason", format!("{} has it", owner.hostname))),
    }
}

/// Marks the raft id as used. An id is never assigned twice: raft would treat its second owner as
/// the first.
fn take_raft_id(tx: &mut Tx, raft_id: u64) -> Result<(), Error> {
    if raft_id == 0 {
        return Err(reject::invalid("raft_id", "missing"));
    }
    let free = tx.state().cluster.as_ref().map(|meta| meta.next_raft_id);
    let taken = free.is_some_and(|free| raft_id < free)
        || tx
            .state()
            .nodes
            .values()
            .any(|node| node.raft_id == raft_id);
    if taken {
        return Err(
            reject::conflict(reject::RAFT_ID_TAKEN, "the raft id was given out before")
                .with("raft_id", raft_id),
        );
    }
    if let Some(meta) = tx.state().cluster.as_deref().cloned() {
        tx.put_cluster(v1::ClusterMeta {
            next_raft_id: raft_id.saturating_add(1),
            ..meta
        });
    }
    Ok(())
}

/// Removes a member. Its replicas stay: the scheduler moves them, because their host is gone.
pub(super) fn remove(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::NodeRemove,
) -> Result<(), Error> {
    let host = &command.hostname;
    if tx.remove::<v1::Node>(host).is_none() {
        let message = format!("no member is called {host:?}");
        return Err(Error::new(ErrorCode::NodeNotFound, message).with("hostname", host));
    }
    subnet::release(tx, origin, |subnet| subnet.host == *host)?;
    cert::release_locks_of(tx, host)?;
    audit::record(
        tx,
        origin,
        AuditEventType::NodeRemove,
        [("hostname", host.clone())],
    )
}

pub(super) fn update_status(
    tx: &mut Tx,
    origin: &Origin<'_>,
    command: &v1::NodeStatusUpdate,
) -> Result<(), Error> {
    let Some(before) = tx.get::<v1::Node>(&command.hostname) else {
        return Ok(());
    };
    let mut node = v1::Node::clone(&before);
    let gives_up = command.status == i32::from(NodeStatus::DrainTimeout);
    if gives_up && !waits_for_replicas(&before) {
        return Ok(());
    }
    match NodeStatus::try_from(command.status) {
        Ok(NodeStatus::Unspecified) => {}
        // The row records the timeout; a node that is not there keeps its status.
        Ok(NodeStatus::DrainTimeout) if timed_out(command.drain.as_ref()) => {
            node.drain.clone_from(&command.drain);
            if before.status() == NodeStatus::Ready {
                node.set_status(NodeStatus::DrainTimeout);
                node.status_details.clone_from(&command.details);
            }
        }
        Ok(status) => {
            node.set_status(status);
            node.status_details.clone_from(&command.details);
        }
        Err(_) => return Err(reject::invalid("status", "not a node status")),
    }
    match command.drain_mark {
        mark::KEEP => {}
        mark::SET => {
            node.draining = true;
            node.drain.clone_from(&command.drain);
        }
        mark::CLEAR => {
            node.draining = false;
            node.drain = None;
        }
        _ => return Err(reject::invalid("drain_mark", "not a mark")),
    }
    match command.cordon_mark {
        mark::KEEP => {}
        mark::SET => node.cordoned = true,
        mark::CLEAR => node.cordoned = false,
        _ => return Err(reject::invalid("cordon_mark", "not a mark")),
    }
    if command.include_pressure {
        if !command.cpu_pressure.is_finite() || !command.memory_pressure.is_finite() {
            return Err(reject::invalid("pressure", "not a finite number"));
        }
        node.cpu_pressure = command.cpu_pressure;
        node.memory_pressure = command.memory_pressure;
        node.last_pressure_at = Some(origin.ts);
    }
    // The node is back and its drain is not resumed.
    if node.status() == NodeStatus::Ready && timed_out(node.drain.as_ref()) {
        node.set_status(NodeStatus::DrainTimeout);
        let reason = ErrorCode::DrainTimeout.as_str().to_owned();
        node.status_details = [("reason".to_owned(), reason)].into();
    }
    // A drain that timed out, or waits, is requested again.
    let retries = command.drain_mark == mark::SET && before.draining;
    let lost_isolation = node.status() == NodeStatus::IsolationUnavailable
        && before.status() != NodeStatus::IsolationUnavailable;
    let cordoned = (node.cordoned != before.cordoned).then_some(node.cordoned);
    tx.put(node)?;
    if let Some(cordoned) = cordoned {
        let payload = [
            ("hostname", command.hostname.clone()),
            ("cordoned", cordoned.to_string()),
        ];
        audit::record(tx, origin, AuditEventType::NodeCordoned, payload)?;
    }
    if retries {
        replica::retry_moves(tx, &command.hostname)?;
    }
    if lost_isolation {
        audit::record(
            tx,
            origin,
            AuditEventType::IsolationUnavailable,
            [("hostname", command.hostname.clone())],
        )?;
    }
    Ok(())
}

/// Whether this node drains. Since the leader decided to give up the drain, a forced removal may have
/// been requested, or the mark cleared.
fn waits_for_replicas(node: &v1::Node) -> bool {
    let skips = node.drain.as_ref().is_some_and(|drain| drain.skip_moves);
    node.draining && !skips
}

fn timed_out(drain: Option<&v1::NodeDrain>) -> bool {
    drain.is_some_and(|drain| drain.timed_out)
}

/// Updates the fields that are set.
pub(super) fn update_self(tx: &mut Tx, command: &v1::NodeUpdateSelf) -> Result<(), Error> {
    let Some(before) = tx.get::<v1::Node>(&command.hostname) else {
        return Ok(());
    };
    let print = &command.server_cert_fingerprint;
    let taken = |node: &&std::sync::Arc<v1::Node>| {
        node.hostname != command.hostname && node.server_cert_fingerprint == *print
    };
    // Members are identified by their certificates: a duplicate would lock the other member out.
    if !print.is_empty() && tx.state().nodes.values().any(|node| taken(&node)) {
        return Err(reject::invalid(
            "server_cert_fingerprint",
            "another member has it",
        ));
    }
    let mut node = v1::Node::clone(&before);
    patch_bytes(&mut node.wireguard_pubkey, &command.wireguard_pubkey);
    patch_bytes(
        &mut node.server_cert_fingerprint,
        &command.server_cert_fingerprint,
    );
    patch_text(&mut node.grpc_address, &command.grpc_address);
    patch_text(&mut node.version, &command.version);
    patch_text(&mut node.address, &command.address);
    if command.wg_port != 0 {
        node.wg_port = command.wg_port;
    }
    if let Some(traits) = &command.traits {
        node.traits = Some(traits.clone());
    }
    tx.put(node)
}

fn patch_bytes(field: &mut Vec<u8>, value: &[u8]) {
    if !value.is_empty() {
        *field = value.to_vec();
    }
}

fn patch_text(field: &mut String, value: &str) {
    if !value.is_empty() {
        value.clone_into(field);
    }
}
