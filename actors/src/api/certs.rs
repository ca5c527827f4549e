//! The `Certs` service: domains and their certificates.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::SystemTime};

use jaco_net::{
    ingress::import::{self, ImportError},
    pki,
    secrets::SecretsKey,
};
use jaco_policy::{
    ingress::certificate::{
        Phase, domains,
        preflight::{self, AddressCheck},
        status::{ACME, IMPORTED},
        store,
    },
    settings::ClusterSettings,
};
use jaco_proto::{
    Error, ErrorCode,
    secret::SecretString,
    timestamp,
    v1::{self, certs_server::Certs, command::Payload},
};
use jaco_raftnode::{State, StateReader};
use sha2::{Digest as _, Sha256};
use tonic::{Request, Response, Status};

use super::{caller::Caller, context::ApiContext, names, secrets::key_in_force};
use crate::{
    commit::propose,
    ingress::certificate::{self, DomainCheck},
    node::MemberContext,
};

pub(super) struct CertsService(pub(super) Arc<ApiContext>);

#[tonic::async_trait]
impl Certs for CertsService {
    async fn check_domain(
        &self,
        request: Request<v1::CheckDomainRequest>,
    ) -> Result<Response<v1::CheckDomainResponse>, Status> {
        let node = self.0.node().running()?;
        let domain = name(&request.into_inner().domain)?;
        if domain.starts_with("*.") {
            return Err(not_a_name("domain", &domain).into());
        }
        let _permit = self.0.try_permit("Certs/CheckDomain").map_err(busy)?;
        let keys = node.secrets()?.subscribe();
        let checked = DomainCheck::new(keys).check(&domain).await?;
        let state = node.raft.state();
        let response = v1::CheckDomainResponse {
            ok: preflight::verdict(&checked).is_ok(),
            addresses: addresses(checked),
            point_at: point_at(&state),
        };
        Ok(node.read_response(&state, response))
    }

    async fn import(
        &self,
        request: Request<v1::CertImportRequest>,
    ) -> Result<Response<v1::CertInfo>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.node().running()?;
        let (cert, key_pem) = checked(&node, &caller, request.into_inner())?;
        let guard = node.sealing_lock.lock(&node.raft).await?;
        let key = key_in_force(&node)?;
        let sealed_key = certificate::seal(&key, &cert, key_pem.expose().as_bytes())?;
        let cert = v1::ImportedCert { sealed_key, ..cert };
        let payload = Payload::ImportedCertUpsert(v1::ImportedCertUpsert {
            cert: Some(cert.clone()),
        });
        let command = node.command(&caller.identity, payload);
        guard.propose(&node.raft, command).await?;
        let info = imported(&cert, Some(&key), node.clock.now());
        Ok(Response::new(info))
    }

    async fn list(
        &self,
        _request: Request<v1::CertListRequest>,
    ) -> Result<Response<v1::CertListResponse>, Status> {
        let node = self.0.node().running()?;
        let state = node.raft.state();
        let certs = list(&state, secrets_key(&node).as_deref(), node.clock.now());
        Ok(node.read_response(&state, v1::CertListResponse { certs }))
    }

    async fn remove(
        &self,
        request: Request<v1::CertRemoveRequest>,
    ) -> Result<Response<v1::CertRemoveResponse>, Status> {
        let caller = Caller::of(&request)?;
        let node = self.0.node().running()?;
        let name = name(&request.into_inner().name)?;
        let payload = Payload::ImportedCertRemove(v1::ImportedCertRemove { name });
        propose(&node.raft, node.command(&caller.identity, payload)).await?;
        Ok(Response::new(v1::CertRemoveResponse {}))
    }
}

/// Returns a domain or `*.domain` of a request in lower case.
fn name(given: &str) -> Result<String, Error> {
    names::require("name", given)?;
    let name = given.trim_end_matches('.').to_ascii_lowercase();
    if import::is_name(&name) {
        Ok(name)
    } else {
        Err(not_a_name("name", given))
    }
}

fn not_a_name(field: &str, given: &str) -> Error {
    // A longer text is not repeated.
    let shown: String = given.chars().take(253).collect();
    Error::new(
        ErrorCode::ValidationFailed,
        format!("{shown:?} is not a domain"),
    )
    .with("field", field)
    .with("value", shown)
}

fn busy(limit: usize) -> Error {
    let message = format!("{limit} checks of domains are under way");
    Error::new(ErrorCode::StateUnavailable, message)
}

/// The secrets key, if this node has it.
fn secrets_key(node: &MemberContext) -> Option<Arc<SecretsKey>> {
    node.secrets.get()?.key().ok()
}

/// Checks a certificate; returns it without its key, and the key in PEM.
fn checked(
    node: &MemberContext,
    caller: &Caller,
    request: v1::CertImportRequest,
) -> Result<(v1::ImportedCert, SecretString), Error> {
    let v1::CertImportRequest {
        name: given,
        chain_pem,
        key_pem,
    } = request;
    let name = name(&given)?;
    names::require("chain_pem", &chain_pem)?;
    names::require("key_pem", &key_pem)?;
    let chain = String::from_utf8(chain_pem).map_err(|_| ImportError::Chain);
    let key_pem = String::from_utf8(key_pem).map(SecretString::new);
    let key_pem = key_pem.map_err(|_| ImportError::Key);
    let checked = chain.and_then(|chain| {
        let key_pem = key_pem?;
        let checked = import::check(&name, &chain, &key_pem, node.clock.now())?;
        Ok((checked, key_pem))
    });
    let (checked, key_pem) = checked.map_err(|fault| {
        Error::new(ErrorCode::CertInvalid, fault.to_string())
            .with("name", &name)
            .with("reason", fault.reason())
    })?;
    let cert = v1::ImportedCert {
        name,
        chain_pem: checked.chain_pem.into_bytes(),
        sealed_key: Vec::new(),
        not_before: Some(timestamp(checked.not_before)),
        not_after: Some(timestamp(checked.not_after)),
        fingerprint: checked.fingerprint.to_vec(),
        imported_at: Some(node.clock.timestamp()),
        imported_by: caller.identity.clone(),
    };
    Ok((cert, key_pem))
}

/// Imported certificates, and those of domains that ask for one, by name.
fn list(state: &State, key: Option<&SecretsKey>, now: SystemTime) -> Vec<v1::CertInfo> {
    let imports = state.imported_certs.values();
    let imports = imports.map(|cert| imported(cert, key, now));
    let wanted = domains::wanted(state, "");
    let routes = state.routes.values();
    let routes = routes.filter(|route| wanted.contains_key(&route.domain));
    let routes: Vec<v1::Route> = routes.map(|route| (**route).clone()).collect();
    let rows = certificate::status_rows(state, &routes, now);
    let obtained = rows.into_iter().filter(|row| row.source == ACME);
    let obtained = obtained.map(|row| v1::CertInfo {
        fingerprint: leaf_of(state, &row.domain),
        name: row.domain,
        source: row.source,
        state: row.state,
        reason: row.reason,
        not_after: row.not_after,
    });
    let all = imports.chain(obtained);
    let by_name: BTreeMap<_, _> = all
        .map(|info| ((info.name.clone(), info.source.clone()), info))
        .collect();
    by_name.into_values().collect()
}

fn imported(cert: &v1::ImportedCert, key: Option<&SecretsKey>, now: SystemTime) -> v1::CertInfo {
    let end = cert.not_after.map(SystemTime::try_from);
    let expired = end.is_none_or(|end| end.is_ok_and(|end| end <= now));
    let (phase, reason) = match key {
        _ if expired => (Phase::Failed, "expired"),
        None => (Phase::Failed, "secrets_key_missing"),
        Some(key) if certificate::open(key, cert).is_none() => {
            (Phase::Failed, "secrets_key_mismatch")
        }
        Some(_) => (Phase::Valid, ""),
    };
    v1::CertInfo {
        name: cert.name.clone(),
        source: IMPORTED.to_owned(),
        state: phase.as_str().to_owned(),
        reason: reason.to_owned(),
        not_after: cert.not_after,
        fingerprint: cert.fingerprint.clone(),
    }
}

/// SHA-256 of the leaf that a directory issued for the domain; empty without one.
fn leaf_of(state: &State, domain: &str) -> Vec<u8> {
    let stored = store::certificates(state, domain);
    let best = stored.max_by_key(|stored| store::environment(stored.directory));
    let leaf = best.and_then(|stored| {
        let text = std::str::from_utf8(&stored.chain.value).ok()?;
        let chain = pki::certificates(text).ok()?;
        Some(Sha256::digest(chain.first()?).to_vec())
    });
    leaf.unwrap_or_default()
}

fn addresses(checked: Result<Vec<AddressCheck>, String>) -> Vec<v1::AddressCheck> {
    let none = |detail: &str| {
        let check = v1::AddressCheck {
            address: String::new(),
            verdict: "no_dns".to_owned(),
            detail: detail.to_owned(),
        };
        vec![check]
    };
    match checked {
        Err(reason) => none(&reason),
        Ok(checks) if checks.is_empty() => none("the domain has no address"),
        Ok(checks) => checks
            .into_iter()
            .map(|check| v1::AddressCheck {
                address: check.address.to_string(),
                verdict: check.verdict.as_str().to_owned(),
                detail: check.detail,
            })
            .collect(),
    }
}

/// Where the records of a domain have to lead: the public addresses of the cluster, else those of
/// its nodes.
fn point_at(state: &State) -> Vec<String> {
    let public = ClusterSettings::of(state).public_addresses;
    if !public.is_empty() {
        return public.iter().map(ToString::to_string).collect();
    }
    let nodes = state.nodes.values();
    let hosts = nodes.filter_map(|node| {
        let at = [&node.grpc_address, &node.address];
        let at = at.into_iter().find(|at| !at.is_empty())?;
        Some(match at.parse::<SocketAddr>() {
            Ok(at) => at.ip().to_string(),
            Err(_) => at
                .rsplit_once(':')
                .map_or(at.as_str(), |(host, _)| host)
                .to_owned(),
        })
    });
    let mut hosts: Vec<String> = hosts.collect();
    hosts.sort();
    hosts.dedup();
    hosts
}

#[cfg(test)]
mod tests;
