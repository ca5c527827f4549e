//! View parts of deployments, replicas and routes that several commands share.

use std::collections::BTreeMap;

use jaco_proto::v1::{self, ReplicaState, service_spec::PlacementMode};
use serde::Serialize;

use super::output::{
    table::{Column, col},
    text::enum_name,
};

/// `running`, `failed` and so on.
pub(crate) fn state(state: ReplicaState) -> String {
    enum_name(state.as_str_name(), "REPLICA_STATE_")
}

/// `spread`, `hosts` and so on.
pub(crate) fn placement(mode: PlacementMode) -> String {
    enum_name(mode.as_str_name(), "PLACEMENT_MODE_")
}

/// `auto` or `off`.
pub(crate) fn tls(auto: bool) -> &'static str {
    if auto { "auto" } else { "off" }
}

/// The first fields of every list of deployments.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(crate) struct DeploymentHead {
    pub(crate) name: String,
    pub(crate) applied_revision: u64,
    pub(crate) previous_revision: u64,
    /// `active` or `pending`.
    pub(crate) status: String,
}

impl DeploymentHead {
    /// The columns of a table of deployments, with `last` at the end.
    pub(crate) fn columns(last: Column) -> [Column; 5] {
        let [name, revision, previous, status] =
            ["DEPLOYMENT", "REVISION", "PREVIOUS", "STATUS"].map(col);
        [name, revision, previous, status, last]
    }

    /// The cells of a row, with `last` at the end.
    pub(crate) fn cells(&self, last: String) -> Vec<String> {
        vec![
            self.name.clone(),
            self.applied_revision.to_string(),
            self.previous_revision.to_string(),
            self.status.to_uppercase(),
            last,
        ]
    }
}

impl From<&v1::Deployment> for DeploymentHead {
    fn from(deployment: &v1::Deployment) -> Self {
        Self {
            name: deployment.name.clone(),
            applied_revision: deployment.applied_revision,
            previous_revision: deployment.previous_revision,
            status: enum_name(deployment.status().as_str_name(), "DEPLOYMENT_STATUS_"),
        }
    }
}

/// Why a replica is in its state; empty parts are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Reason {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) code: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) message: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) details: BTreeMap<String, String>,
}

impl Reason {
    /// Renders `code: message (exit N)`, without the parts that are empty.
    pub(crate) fn text(&self) -> String {
        let of = |key: &str| {
            let found = self.details.get(key).map(String::as_str);
            found.filter(|text| !text.is_empty())
        };
        let message = Some(self.message.as_str())
            .filter(|text| !text.is_empty())
            .or(of("reason"))
            .unwrap_or_default();
        let text = match (self.code.as_str(), message) {
            (code, "") => code.to_owned(),
            ("", message) => message.to_owned(),
            (code, message) => format!("{code}: {message}"),
        };
        match (text.as_str(), of("exit_code")) {
            (_, None) => text,
            ("", Some(exit)) => format!("exit {exit}"),
            (text, Some(exit)) => format!("{text} (exit {exit})"),
        }
    }
}

/// A route as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(crate) struct RouteRow {
    pub(crate) domain: String,
    /// Empty for the catch-all.
    pub(crate) path: String,
    pub(crate) deployment: String,
    pub(crate) service: String,
    pub(crate) port: i32,
    pub(crate) tls: &'static str,
    pub(crate) strip_path: bool,
}

impl From<v1::Route> for RouteRow {
    fn from(route: v1::Route) -> Self {
        Self {
            domain: route.domain,
            path: route.path,
            deployment: route.deployment,
            service: route.service,
            port: route.port,
            tls: tls(route.tls_auto),
            strip_path: route.strip_path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_text_omits_empty_parts() {
        for (code, message, details, expected) in [
            ("", "", &[][..], ""),
            ("docker_error", "", &[], "docker_error"),
            ("", "odd", &[], "odd"),
            ("a", "b", &[("reason", "c")], "a: b"),
            ("a", "", &[("reason", "c")], "a: c"),
            ("a", "b", &[("exit_code", "3")], "a: b (exit 3)"),
            ("a", "", &[("exit_code", "3")], "a (exit 3)"),
            ("", "", &[("exit_code", "3")], "exit 3"),
        ] {
            let reason = Reason {
                code: code.to_owned(),
                message: message.to_owned(),
                details: details
                    .iter()
                    .map(|&(k, v)| (k.to_owned(), v.to_owned()))
                    .collect(),
            };
            assert_eq!(reason.text(), expected);
        }
    }
}
