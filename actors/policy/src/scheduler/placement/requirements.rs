//! Requirements of services on the hosts of their replicas: platform and constraints.

use jaco_proto::v1;

use crate::scheduler::platform;

/// Whether a host may have replicas of a service. `traits` are absent until the host reported them.
pub(super) fn are_met(spec: &v1::ServiceSpec, host: &str, traits: Option<&v1::NodeTraits>) -> bool {
    let platforms = traits.map_or(&[][..], |traits| &traits.platforms);
    let is_met = |one: &v1::PlacementConstraint| has_value(one, host, traits) != one.excludes;
    platform::runs(platforms, &spec.platform) && spec.constraints.iter().all(is_met)
}

/// Whether the attribute of a constraint has its value; one that is unknown has none.
fn has_value(
    constraint: &v1::PlacementConstraint,
    host: &str,
    traits: Option<&v1::NodeTraits>,
) -> bool {
    let wanted = constraint.value.as_str();
    let own = || platform::own(&traits?.platforms);
    match constraint.attribute.as_str() {
        "node.hostname" => host.eq_ignore_ascii_case(wanted),
        "node.platform.os" => own().is_some_and(|(os, _)| os.eq_ignore_ascii_case(wanted)),
        "node.platform.arch" => own().is_some_and(|(_, arch)| platform::is_arch(wanted, arch)),
        other => {
            let key = other.strip_prefix("node.labels.").unwrap_or(other);
            let value = traits.and_then(|traits| traits.labels.get(key));
            value.is_some_and(|value| value.to_lowercase() == wanted.to_lowercase())
        }
    }
}

/// Describes the requirements of a service, after a space; empty if it has none.
pub(super) fn described(spec: &v1::ServiceSpec) -> String {
    let mut wants = Vec::new();
    if !spec.platform.is_empty() {
        wants.push(format!("platform {}", spec.platform));
    }
    wants.extend(spec.constraints.iter().map(|one| {
        let operator = if one.excludes { "!=" } else { "==" };
        format!("{} {operator} {}", one.attribute, one.value)
    }));
    if spec.host_network {
        wants.push("one replica per node, which has network_mode host".to_owned());
    } else if spec.max_replicas_per_node > 0 {
        let most = spec.max_replicas_per_node;
        wants.push(format!("at most {most} replica(s) per node"));
    }
    match wants.is_empty() {
        true => String::new(),
        false => format!(" (wants {})", wants.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(platform: &str, constraints: &[(&str, bool, &str)]) -> v1::ServiceSpec {
        let constraints = constraints.iter();
        v1::ServiceSpec {
            platform: platform.to_owned(),
            constraints: constraints
                .map(|(attribute, excludes, value)| v1::PlacementConstraint {
                    attribute: (*attribute).to_owned(),
                    excludes: *excludes,
                    value: (*value).to_owned(),
                })
                .collect(),
            ..Default::default()
        }
    }

    #[test]
    fn hosts_meet_all_requirements() {
        let traits = v1::NodeTraits {
            platforms: vec!["linux/amd64".to_owned(), "linux/386".to_owned()],
            labels: [("zone".to_owned(), "EU-1".to_owned())].into(),
        };
        let zone = "node.labels.zone";
        for (platform, constraints, known, unknown) in [
            ("", &[][..], true, true),
            ("linux/386", &[], true, true),
            ("linux/arm64", &[], false, true),
            ("", &[("node.hostname", false, "N1")], true, true),
            ("", &[("node.hostname", true, "n1")], false, false),
            ("", &[(zone, false, "eu-1")], true, false),
            ("", &[(zone, true, "eu-1")], false, true),
            ("", &[("node.labels.disk", true, "ssd")], true, true),
            ("", &[("node.platform.os", false, "linux")], true, false),
            ("", &[("node.platform.arch", false, "x86_64")], true, false),
            ("", &[("node.platform.arch", false, "386")], false, false),
            (
                "",
                &[(zone, false, "eu-1"), ("node.hostname", true, "n1")],
                false,
                false,
            ),
            ("linux/arm64", &[(zone, false, "eu-1")], false, false),
        ] {
            let spec = spec(platform, constraints);
            assert_eq!(are_met(&spec, "n1", Some(&traits)), known, "{spec:?}");
            assert_eq!(are_met(&spec, "n1", None), unknown, "{spec:?}");
        }
    }

    #[test]
    fn description_names_every_requirement() {
        assert_eq!(described(&spec("", &[])), "");
        let mut full = spec("linux/arm64", &[("node.labels.zone", true, "a")]);
        full.max_replicas_per_node = 2;
        let expected =
            " (wants platform linux/arm64, node.labels.zone != a, at most 2 replica(s) per node)";
        assert_eq!(described(&full), expected);
    }
}
