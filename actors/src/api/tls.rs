//! `Deploy.SetTls`: switches the TLS of domains without an apply.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::{
    Error, ErrorCode,
    v1::{self, command::Payload},
};
use jaco_raftnode::{State, StateReader};

use super::{caller::Caller, names, rollout};
use crate::node::MemberContext;

/// Serves `Deploy.SetTls`.
pub(super) async fn set(
    node: &MemberContext,
    caller: &Caller,
    request: v1::SetTlsRequest,
) -> Result<v1::SetTlsResponse, Error> {
    names::require("deployment", &request.deployment)?;
    let guard = node.apply_lock.lock(&node.raft).await?;
    let state = node.raft.state();
    let plan = plan(&state, &request)?;
    let children = plan.payloads(&request, &caller.identity);
    let children = children.into_iter();
    let children: Vec<_> = children
        .map(|payload| node.command(&caller.identity, payload))
        .collect();
    if !children.is_empty() {
        let batch = Payload::Batch(v1::Batch { children });
        guard
            .propose(&node.raft, node.command(&caller.identity, batch))
            .await?;
    }
    let scheme = if request.enable { "https" } else { "http" };
    let urls = plan.0.into_keys();
    Ok(v1::SetTlsResponse {
        urls: urls.map(|domain| format!("{scheme}://{domain}")).collect(),
    })
}

/// Change of each domain that was asked for.
#[derive(Debug, PartialEq, Eq)]
struct Plan(BTreeMap<String, Change>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Change {
    /// The domain is as asked.
    None,
    /// The manifest says what is asked, so that nothing is needed in its place.
    Remove,
    Set,
}

fn plan(state: &State, request: &v1::SetTlsRequest) -> Result<Plan, Error> {
    let (deployment, domain) = (&request.deployment, &request.domain);
    rollout::existing(state, deployment)?;
    let own = state.routes.values();
    let own = own.filter(|route| route.deployment == *deployment && !route.domain.is_empty());
    let own: Vec<_> = own.collect();
    if own.is_empty() {
        return Err(Error::new(
            ErrorCode::DomainRequired,
            format!("deployment {deployment:?} has no route with a domain"),
        )
        .with("deployment", deployment));
    }
    let domains = own.iter().map(|route| route.domain.as_str());
    let domains: BTreeSet<&str> = domains
        .filter(|own| domain.is_empty() || own == domain)
        .collect();
    if domains.is_empty() {
        return Err(Error::new(
            ErrorCode::RouteNotFound,
            format!("deployment {deployment:?} has no route of domain {domain:?}"),
        )
        .with("deployment", deployment)
        .with("domain", domain));
    }
    let changes = domains.into_iter().map(|domain| {
        let mut routes = own.iter().filter(|route| route.domain == domain);
        let key = (deployment.clone(), domain.to_owned());
        let stored = state.route_tls_overrides.get(&key);
        let stored = stored.map(|stored| stored.tls_auto);
        // All routes of a domain agree in one manifest.
        let written = routes.any(|route| route.tls_auto);
        let change = match stored {
            _ if stored.unwrap_or(written) == request.enable => Change::None,
            Some(_) if written == request.enable => Change::Remove,
            Some(_) | None => Change::Set,
        };
        (domain.to_owned(), change)
    });
    Ok(Plan(changes.collect()))
}

impl Plan {
    fn payloads(&self, request: &v1::SetTlsRequest, by: &str) -> Vec<Payload> {
        let deployment = &request.deployment;
        let payloads = self.0.iter().filter_map(|(domain, change)| {
            let (deployment, domain) = (deployment.clone(), domain.clone());
            match change {
                Change::None => None,
                Change::Remove => Some(Payload::RouteTlsOverrideRemove(
                    v1::RouteTlsOverrideRemove { deployment, domain },
                )),
                Change::Set => {
                    let stored = v1::RouteTlsOverride {
                        deployment,
                        domain,
                        tls_auto: request.enable,
                        by: by.to_owned(),
                        at: None, // the time of the command
                    };
                    Some(Payload::RouteTlsOverrideSet(v1::RouteTlsOverrideSet {
                        r#override: Some(stored),
                    }))
                }
            }
        });
        payloads.collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// A deployment with two domains, and another without routes.
    fn state() -> State {
        let mut state = State::default();
        for name in ["shop", "bare"] {
            let row = v1::Deployment {
                name: name.to_owned(),
                ..v1::Deployment::default()
            };
            state.deployments.insert(name.to_owned(), Arc::new(row));
        }
        for (domain, path, tls_auto) in [
            ("a.example", "", false),
            ("a.example", "/x", false),
            ("b.example", "", true),
        ] {
            let row = v1::Route {
                domain: domain.to_owned(),
                path: path.to_owned(),
                deployment: "shop".to_owned(),
                tls_auto,
                ..v1::Route::default()
            };
            let key = (domain.to_owned(), path.to_owned());
            state.routes.insert(key, Arc::new(row));
        }
        state
    }

    fn ask(
        state: &State,
        deployment: &str,
        domain: &str,
        enable: bool,
    ) -> Result<Vec<(String, Change)>, ErrorCode> {
        let request = v1::SetTlsRequest {
            deployment: deployment.to_owned(),
            domain: domain.to_owned(),
            enable,
        };
        match plan(state, &request) {
            Ok(plan) => Ok(plan.0.into_iter().collect()),
            Err(error) => Err(error.code),
        }
    }

    #[test]
    fn only_what_differs_from_the_manifest_is_stored() {
        let mut state = state();
        let of = |a, b| {
            Ok(vec![
                ("a.example".to_owned(), a),
                ("b.example".to_owned(), b),
            ])
        };
        assert_eq!(ask(&state, "shop", "", true), of(Change::Set, Change::None));
        assert_eq!(
            ask(&state, "shop", "", false),
            of(Change::None, Change::Set)
        );
        let key = ("shop".to_owned(), "a.example".to_owned());
        let row = v1::RouteTlsOverride {
            tls_auto: true,
            ..v1::RouteTlsOverride::default()
        };
        state.route_tls_overrides.insert(key, Arc::new(row));
        assert_eq!(
            ask(&state, "shop", "", true),
            of(Change::None, Change::None)
        );
        assert_eq!(
            ask(&state, "shop", "a.example", false),
            Ok(vec![("a.example".to_owned(), Change::Remove)])
        );
    }

    #[test]
    fn deployment_needs_a_route_of_the_domain() {
        let state = state();
        for (deployment, domain, code) in [
            ("gone", "", ErrorCode::DeploymentNotFound),
            ("bare", "", ErrorCode::DomainRequired),
            ("bare", "a.example", ErrorCode::DomainRequired),
            ("shop", "c.example", ErrorCode::RouteNotFound),
        ] {
            assert_eq!(ask(&state, deployment, domain, true), Err(code));
        }
    }
}
