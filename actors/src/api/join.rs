//! The members' side of a join: tokens that admit one node each, and the admission of a node.

use jaco_net::pki::{self, Fingerprint, MAX_CLOCK_SKEW, certificates};
use jaco_policy::{
    network::ipam::Pool,
    node::validate::{KEY_BYTES, is_dialable},
};
use jaco_proto::{
    Error, ErrorCode,
    secret::SecretString,
    v1::{self, command::Payload},
};
use jaco_raftnode::{State, StateReader as _, batch};
use prost_types::Timestamp;
use subtle::ConstantTimeEq;

use super::{admission::hash, caller::Caller};
use crate::{
    commit::propose,
    identity::random_token,
    node::{
        JoinToken, MemberContext,
        authority::{authority, ca_cert, ca_missing, sign},
    },
};

/// Lifetime of a join token.
const TOKEN_SECONDS: i64 = 24 * 3600;

/// Issues a token that admits one node.
pub(super) async fn issue(
    node: &MemberContext,
    caller: &Caller,
) -> Result<v1::IssueJoinTokenResponse, Error> {
    let state = node.raft.state();
    let ca_cert = ca_cert(&state)?;
    let secret = random_token()?;
    let now = node.clock.timestamp();
    let expires_at = Timestamp {
        seconds: now.seconds.saturating_add(TOKEN_SECONDS),
        ..now
    };
    let payload = Payload::JoinTokenIssue(v1::JoinTokenIssue {
        hashed_secret: hash(secret.expose().as_bytes()).to_vec(),
        expires_at: Some(expires_at),
    });
    propose(&node.raft, node.command(&caller.identity, payload)).await?;
    let ca = certificates(&ca_cert).map_err(ca_missing)?;
    let token = JoinToken {
        secret,
        ca: Fingerprint::of(&ca[0]),
    };
    Ok(v1::IssueJoinTokenResponse {
        token: token.to_text().expose().to_owned(),
        ca_cert: ca_cert.into_bytes(),
        leader_addrs: api_addresses(node, &state),
    })
}

/// API addresses of the members, the leader's first.
fn api_addresses(node: &MemberContext, state: &State) -> Vec<String> {
    let leader = node.raft.status().leader_id;
    let mut members: Vec<_> = state.nodes.values().collect();
    members.sort_by_key(|member| leader != Some(member.raft_id));
    let addresses = members.iter().map(|member| member.grpc_address.clone());
    addresses.filter(|address| !address.is_empty()).collect()
}

/// Admits the node that presents a join token: checks, signs, commits, and has raft add it.
pub(super) async fn admit(
    node: &MemberContext,
    request: v1::NodeJoinRequest,
) -> Result<v1::NodeJoinResponse, Error> {
    let v1::NodeJoinRequest {
        name,
        join_token,
        csr_pem,
        advertise_addr,
        wireguard_pubkey,
        grpc_address,
        sent_at,
        ipam_pool,
        ipam_block,
    } = request;
    // Read before the wait for other joins, which is not part of the difference.
    let received_at = node.clock.timestamp();
    let join_token = SecretString::new(join_token);
    // Serialised, so that no two joins take the same raft id.
    let guard = node.join_lock.lock(&node.raft).await?;
    let (state, now) = (node.raft.state(), node.clock.timestamp());
    check_fields(
        &name,
        &advertise_addr,
        &grpc_address,
        &csr_pem,
        &wireguard_pubkey,
    )?;
    let hashed_secret = check_token(&state, &join_token, &now)?;
    check_clock(sent_at, received_at)?;
    check_pool(&state, &ipam_pool, ipam_block)?;
    // Names in certificates are compared without case: the certificate of one such name would be
    // valid for the other.
    let mut members = state.nodes.keys();
    if members.any(|member| member.eq_ignore_ascii_case(&name)) {
        let message = format!("a member is called {name:?} already");
        return Err(Error::new(ErrorCode::NodeAlreadyMember, message).with("hostname", name));
    }
    check_free(&state, &advertise_addr)?;
    let ca = authority(&state)?;
    let cert = sign(&ca, &state, &name, &csr_pem, node.clock.now())?;

    let cluster = state.cluster.clone().unwrap_or_default();
    let raft_id = cluster.next_raft_id;
    let identity = format!("join_token:{}", hex::encode(&hashed_secret[..4]));
    let consume = Payload::JoinTokenConsume(v1::JoinTokenConsume {
        hashed_secret: hashed_secret.to_vec(),
    });
    let join = Payload::NodeJoin(v1::NodeJoin {
        hostname: name.clone(),
        address: advertise_addr,
        server_cert_fingerprint: cert.fingerprint().as_bytes().to_vec(),
        wireguard_pubkey,
        grpc_address,
        raft_id,
    });
    let children = [consume, join].map(|payload| node.command(&identity, payload));
    let admission = batch(identity.clone(), now, children.into());
    guard.propose(&node.raft, admission).await?;
    tracing::info!(subsystem = "raft", host = %name, raft_id, %identity, "node joins");
    // If the leader fails here, its successor finds the row of a node that raft does not know yet.
    if let Ok(membership) = node.membership() {
        membership.kick();
    }

    let state = node.raft.state();
    let others = state
        .nodes
        .values()
        .filter(|member| member.hostname != name);
    let members: Vec<v1::Node> = others.map(|member| v1::Node::clone(member)).collect();
    Ok(v1::NodeJoinResponse {
        cluster_id: cluster.cluster_id.clone(),
        signed_cert: cert.pem().as_bytes().to_vec(),
        ca_cert: ca.cert_pem().as_bytes().to_vec(),
        peer_addrs: members.iter().map(|m| m.address.clone()).collect(),
        raft_id,
        members,
    })
}

fn check_fields(
    name: &str,
    advertise: &str,
    grpc: &str,
    csr: &[u8],
    key: &[u8],
) -> Result<(), Error> {
    let invalid = |field: &str, value: &str, problem: &str| {
        let message = match value {
            "" => format!("{field} {problem}"),
            value => format!("{field} {value:?} {problem}"),
        };
        Err(Error::new(ErrorCode::ValidationFailed, message)
            .with("field", field)
            .with("value", value))
    };
    if pki::check_hostname(name).is_err() {
        return invalid("name", name, "is not a hostname");
    }
    if csr.is_empty() {
        return invalid("csr_pem", "", "is empty");
    }
    if key.len() > KEY_BYTES {
        return invalid("wireguard_pubkey", "", "is too long");
    }
    if !is_dialable(advertise) {
        return invalid("advertise_addr", advertise, "cannot be dialled");
    }
    // Empty if the node serves no API to others.
    if !grpc.is_empty() && !is_dialable(grpc) {
        return invalid("grpc_address", grpc, "cannot be dialled");
    }
    Ok(())
}

/// Refuses a joiner whose clock differs from this node's by more than [`MAX_CLOCK_SKEW`]: it might
/// not accept the cluster's certificates. An older joiner does not send its time.
fn check_clock(joiner: Option<Timestamp>, leader: Timestamp) -> Result<(), Error> {
    let Some(joiner) = joiner else {
        return Ok(());
    };
    let difference = joiner.seconds.abs_diff(leader.seconds);
    if difference <= MAX_CLOCK_SKEW.as_secs() {
        return Ok(());
    }
    let message = format!(
        "the clocks differ by {difference} s: that of the joining node reads {joiner}, that of the \
         cluster's leader {leader}"
    );
    Err(Error::new(ErrorCode::ClockSkew, message)
        .with("joiner_clock", joiner)
        .with("leader_clock", leader)
        .with("limit", format!("{}s", MAX_CLOCK_SKEW.as_secs())))
}

/// Refuses a joiner whose configuration names another address pool than the cluster has. An older
/// joiner names none, and an older cluster has none to compare with.
fn check_pool(state: &State, range: &str, block: u32) -> Result<(), Error> {
    let Some(pool) = Pool::of_cluster(state).filter(|_| !range.is_empty()) else {
        return Ok(());
    };
    if (pool.range().to_string().as_str(), u32::from(pool.block())) == (range, block) {
        return Ok(());
    }
    let message = format!(
        "the cluster's address pool is {pool}, but the joining node is configured with {range:?} in \
         blocks of /{block}"
    );
    Err(Error::new(ErrorCode::ValidationFailed, message)
        .with("field", "ipam_pool")
        .with("value", format!("{range} /{block}"))
        .with("ipam_pool", pool.range())
        .with("ipam_block", pool.block()))
}

/// Refuses an address that another member has: two members behind one address are not
/// distinguishable.
fn check_free(state: &State, address: &str) -> Result<(), Error> {
    let owner = state
        .nodes
        .values()
        .find(|member| member.address == address);
    match owner {
        None => Ok(()),
        Some(owner) => {
            let message = format!("the address {address} is that of another member");
            Err(Error::new(ErrorCode::ValidationFailed, message)
                .with("field", "advertise_addr")
                .with("value", address)
                .because(format!("{} has it", owner.hostname)))
        }
    }
}

/// Returns the hash under which the state holds the token, if it may still be used.
fn check_token(state: &State, text: &SecretString, now: &Timestamp) -> Result<[u8; 32], Error> {
    let invalid = || Error::new(ErrorCode::JoinTokenInvalid, "the join token is not valid");
    let token = JoinToken::parse(text).map_err(|_| invalid())?;
    let given = hash(token.secret.expose().as_bytes());
    // Compares every row, so that the time does not reveal which one matched.
    let mut found = None;
    for row in state.join_tokens.values() {
        if bool::from(row.hashed_secret.ct_eq(&given)) {
            found = Some(row);
        }
    }
    let row = found.ok_or_else(invalid)?;
    if row.consumed_at.is_some() {
        return Err(Error::new(
            ErrorCode::JoinTokenConsumed,
            "the join token was used",
        ));
    }
    let expires = row.expires_at.unwrap_or_default();
    if (expires.seconds, expires.nanos) < (now.seconds, now.nanos) {
        return Err(Error::new(
            ErrorCode::JoinTokenExpired,
            format!("the join token expired at {expires}"),
        )
        .with("expires_at", expires));
    }
    // A token that names another authority was not issued here in this form.
    if authority(state)?.fingerprint() != token.ca {
        return Err(invalid());
    }
    Ok(given)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn joiner_with_another_pool_is_refused() {
        let cluster = |range: &str, block| State {
            cluster: Some(Arc::new(v1::ClusterMeta {
                ipam_pool: range.to_owned(),
                ipam_block: block,
                ..Default::default()
            })),
            ..State::default()
        };
        let state = cluster("10.128.0.0/12", 26);
        for (range, block, accepted) in [
            ("", 0, true),
            ("10.128.0.0/12", 26, true),
            ("10.128.0.0/12", 24, false),
            ("10.244.0.0/16", 26, false),
            ("garbage", 26, false),
        ] {
            let checked = check_pool(&state, range, block);
            assert_eq!(checked.is_ok(), accepted, "{range} {block}");
            let Err(error) = checked else { continue };
            assert_eq!(error.code, ErrorCode::ValidationFailed);
            assert_eq!(error.details["field"], "ipam_pool");
            assert!(
                error.message.contains("10.128.0.0/12 in blocks of /26"),
                "{error:?}"
            );
            assert_eq!(
                check_pool(&cluster("", 0), range, block),
                Ok(()),
                "an older cluster"
            );
        }
    }

    #[test]
    fn joiner_with_another_time_is_refused() {
        let at = |seconds| Timestamp { seconds, nanos: 0 };
        let leader = at(1_700_000_000);
        assert_eq!(check_clock(None, leader), Ok(()));
        for (difference, accepted) in [
            (0, true),
            (60, true),
            (-60, true),
            (61, false),
            (-61, false),
            (100_000, false),
            (-1_700_000_000, false),
        ] {
            let joiner = at(leader.seconds + difference);
            let checked = check_clock(Some(joiner), leader);
            assert_eq!(checked.is_ok(), accepted, "{difference}");
            let Err(error) = checked else { continue };
            assert_eq!(error.code, ErrorCode::ClockSkew);
            for clock in [joiner, leader] {
                assert!(error.message.contains(&clock.to_string()), "{error:?}");
            }
        }
    }
}
