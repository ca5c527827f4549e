//! Faults of the container networks, computed from the reports of the nodes.

use jaco_proto::v1::{FaultSeverity, NetworkFault, NodeNetwork, PathExpectation, PathJudgement};

/// Code of a forbidden path that answers.
pub const BREACH: &str = "isolation_breach";
/// Code of an allowed path that does not answer.
pub const UNREACHABLE: &str = "path_unreachable";

/// Returns the faults in `reports`, errors first, in the order of the reports.
pub fn faults<'a>(reports: impl IntoIterator<Item = &'a NodeNetwork>) -> Vec<NetworkFault> {
    let mut faults: Vec<_> = reports.into_iter().flat_map(of_node).collect();
    // Stable, so the order within a severity is kept.
    faults.sort_by_key(|fault| std::cmp::Reverse(fault.severity));
    faults
}

/// Whether `fault` concerns `deployment`; an empty name stands for all deployments.
#[must_use]
pub fn concerns(fault: &NetworkFault, deployment: &str) -> bool {
    let target = fault.target.as_ref();
    deployment.is_empty()
        || fault.deployment == deployment
        || target.is_some_and(|target| target.deployment == deployment)
}

fn of_node(report: &NodeNetwork) -> impl Iterator<Item = NetworkFault> {
    let violated = report
        .paths
        .iter()
        .filter(|path| path.judgement() == PathJudgement::Violated);
    violated.flat_map(move |path| {
        let (severity, code) = match path.expectation() {
            PathExpectation::Forbidden => (FaultSeverity::Error, BREACH),
            PathExpectation::Allowed | PathExpectation::Unspecified => {
                (FaultSeverity::Warning, UNREACHABLE)
            }
        };
        path.violations.iter().map(move |target| NetworkFault {
            severity: severity.into(),
            code: code.to_owned(),
            hostname: report.hostname.clone(),
            deployment: path.deployment.clone(),
            network: path.network.clone(),
            target: Some(target.clone()),
        })
    })
}

#[cfg(test)]
mod tests {
    use jaco_proto::v1::{PathEnd, PathVerdict};

    use super::*;

    fn report(expectation: PathExpectation, judgement: PathJudgement) -> NodeNetwork {
        NodeNetwork {
            hostname: "h1".to_owned(),
            paths: vec![PathVerdict {
                deployment: "a".to_owned(),
                network: "_default".to_owned(),
                expectation: expectation.into(),
                judgement: judgement.into(),
                violations: vec![PathEnd {
                    hostname: "h2".to_owned(),
                    deployment: "b".to_owned(),
                    ..Default::default()
                }],
                ..Default::default()
            }],
            ..Default::default()
        }
    }

    #[test]
    fn breaches_are_errors_and_come_first() {
        let reports = [
            report(PathExpectation::Allowed, PathJudgement::Violated),
            report(PathExpectation::Allowed, PathJudgement::Ok),
            report(PathExpectation::Forbidden, PathJudgement::Unspecified),
            report(PathExpectation::Forbidden, PathJudgement::Violated),
        ];
        let found = faults(&reports);
        let seen: Vec<_> = found
            .iter()
            .map(|fault| (fault.severity(), fault.code.as_str()))
            .collect();
        assert_eq!(
            seen,
            [
                (FaultSeverity::Error, "isolation_breach"),
                (FaultSeverity::Warning, "path_unreachable")
            ]
        );
        for (deployment, expected) in [("", true), ("a", true), ("b", true), ("c", false)] {
            assert_eq!(concerns(&found[0], deployment), expected, "{deployment:?}");
        }
    }
}
