//! Words for what the daemon says of replicas and routes, shared by several commands.

use std::collections::BTreeMap;

use jaco_proto::v1::{self, ReplicaState, service_spec::PlacementMode};
use serde::Serialize;

use super::output::text::enum_name;

/// `running`, `failed` and so on.
pub(crate) fn state(state: ReplicaState) -> String {
    enum_name(state.as_str_name(), "REPLICA_STATE_")
}

/// `active` or `pending`.
pub(crate) fn deployment_status(status: v1::DeploymentStatus) -> String {
    enum_name(status.as_str_name(), "DEPLOYMENT_STATUS_")
}

/// `spread`, `hosts` and so on.
pub(crate) fn placement(mode: PlacementMode) -> String {
    enum_name(mode.as_str_name(), "PLACEMENT_MODE_")
}

/// `auto` or `off`.
pub(crate) fn tls(auto: bool) -> &'static str {
    if auto { "auto" } else { "off" }
}

/// Why a replica is where it is: `code: message (exit N)` as far as there is something to say.
pub(crate) fn reason(code: &str, message: &str, details: &BTreeMap<String, String>) -> String {
    let of = |key: &str| {
        details
            .get(key)
            .map(String::as_str)
            .filter(|text| !text.is_empty())
    };
    let message = Some(message)
        .filter(|text| !text.is_empty())
        .or(of("reason"))
        .unwrap_or_default();
    let text = match (code, message) {
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

/// A route as lists show it.
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
    fn a_reason_says_what_there_is() {
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
            let details = details
                .iter()
                .map(|&(k, v)| (k.to_owned(), v.to_owned()))
                .collect();
            assert_eq!(reason(code, message, &details), expected);
        }
    }
}
