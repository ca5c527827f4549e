//! Acknowledged writes of a client, to be compared with the state.

use std::collections::BTreeMap;

use jaco_proto::v1;
use jaco_state::State;

/// Knowledge about one deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    /// Revision of the last acknowledged apply, 0 after an acknowledged delete.
    acknowledged: u64,
    /// An apply or delete after that without an answer: it may have happened.
    apply_in_doubt: bool,
    delete_in_doubt: bool,
}

/// Records every apply and delete of a test, with its answer if there was one.
#[derive(Clone, Debug, Default)]
pub struct History(BTreeMap<String, Known>);

impl History {
    /// Records an apply that is about to be sent.
    pub fn apply_sent(&mut self, deployment: &str) {
        self.0
            .entry(deployment.to_owned())
            .or_default()
            .apply_in_doubt = true;
    }

    /// Records a delete that is about to be sent.
    pub fn delete_sent(&mut self, deployment: &str) {
        self.0
            .entry(deployment.to_owned())
            .or_default()
            .delete_in_doubt = true;
    }

    /// Records that the last apply was acknowledged; no request before it is in doubt any more.
    pub fn applied(&mut self, deployment: &str, revision: u64) {
        let known = Known {
            acknowledged: revision,
            ..Known::default()
        };
        self.0.insert(deployment.to_owned(), known);
    }

    /// Records that the last delete was acknowledged.
    pub fn deleted(&mut self, deployment: &str) {
        self.0.insert(deployment.to_owned(), Known::default());
    }

    /// Resolves requests in doubt by the deployments that a client has read; they must stay as
    /// read.
    pub fn resolve_doubts(&mut self, deployments: &[v1::Deployment]) {
        for (name, known) in &mut self.0 {
            let seen = deployments
                .iter()
                .find(|deployment| deployment.name == *name);
            *known = Known {
                acknowledged: seen.map_or(0, |deployment| deployment.applied_revision),
                ..Known::default()
            };
        }
    }

    /// Whether the deployment exists by the last acknowledgment.
    #[must_use]
    pub fn exists(&self, deployment: &str) -> bool {
        self.0
            .get(deployment)
            .is_some_and(|known| known.acknowledged > 0)
    }

    /// Checks that a state holds everything that was acknowledged, and nothing that was not sent.
    ///
    /// # Errors
    /// Describes the first deployment that contradicts the acknowledgments.
    pub fn check(&self, state: &State) -> Result<(), String> {
        let deployments = state.deployments.values().map(AsRef::as_ref);
        self.check_deployments(deployments)
    }

    /// [`History::check`] for a list of deployments as the API shows it.
    ///
    /// # Errors
    /// The errors of [`History::check`].
    pub fn check_deployments<'a>(
        &self,
        deployments: impl IntoIterator<Item = &'a v1::Deployment>,
    ) -> Result<(), String> {
        let found: BTreeMap<&str, u64> = deployments
            .into_iter()
            .map(|d| (&*d.name, d.applied_revision))
            .collect();
        for (name, known) in &self.0 {
            match found.get(&**name) {
                Some(&revision) => known.allows(revision),
                None => known.allows_absence(),
            }
            .map_err(|why| format!("{name}: {why}"))?;
        }
        match found.keys().find(|name| !self.0.contains_key(**name)) {
            Some(name) => Err(format!("{name}: was never applied")),
            None => Ok(()),
        }
    }
}

impl Known {
    fn allows(&self, revision: u64) -> Result<(), String> {
        let acknowledged = self.acknowledged;
        if acknowledged == 0 {
            return if self.apply_in_doubt {
                Ok(())
            } else {
                Err(format!(
                    "there at revision {revision}, although its delete was acknowledged"
                ))
            };
        }
        // A delete in doubt followed by an apply in doubt begins at revision 1 again.
        let restarted = self.delete_in_doubt && self.apply_in_doubt;
        let newer = revision > acknowledged && self.apply_in_doubt;
        if revision == acknowledged || newer || restarted {
            Ok(())
        } else {
            Err(format!(
                "at revision {revision}, although {acknowledged} was acknowledged"
            ))
        }
    }

    fn allows_absence(&self) -> Result<(), String> {
        if self.acknowledged == 0 || self.delete_in_doubt {
            Ok(())
        } else {
            Err(format!(
                "gone, although revision {} was acknowledged",
                self.acknowledged
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(revision: u64) -> Vec<v1::Deployment> {
        vec![v1::Deployment {
            name: "shop".to_owned(),
            applied_revision: revision,
            ..Default::default()
        }]
    }

    #[test]
    fn acknowledged_apply_must_exist_doubtful_may() {
        let mut history = History::default();
        assert!(
            history
                .check_deployments(&at(1))
                .unwrap_err()
                .contains("never applied")
        );
        history.apply_sent("shop");
        assert!(history.check_deployments(&[]).is_ok());
        assert!(history.check_deployments(&at(1)).is_ok());
        history.applied("shop", 1);
        assert!(history.check_deployments(&[]).unwrap_err().contains("gone"));
        assert!(history.check_deployments(&at(1)).is_ok());
        assert!(
            history
                .check_deployments(&at(2))
                .unwrap_err()
                .contains("revision 2")
        );
        history.apply_sent("shop");
        assert!(history.check_deployments(&at(2)).is_ok());
        assert!(history.check_deployments(&[]).is_err());
        history.applied("shop", 2);
        assert!(
            history
                .check_deployments(&at(1))
                .unwrap_err()
                .contains("revision 1")
        );
    }

    #[test]
    fn acknowledged_delete_must_hold_doubtful_may() {
        let mut history = History::default();
        history.applied("shop", 3);
        history.delete_sent("shop");
        assert!(history.check_deployments(&[]).is_ok());
        assert!(history.check_deployments(&at(3)).is_ok());
        history.deleted("shop");
        assert!(history.check_deployments(&[]).is_ok());
        assert!(
            history
                .check_deployments(&at(3))
                .unwrap_err()
                .contains("delete")
        );
    }

    #[test]
    fn read_resolves_doubt() {
        let mut history = History::default();
        history.applied("shop", 1);
        history.apply_sent("shop");
        history.resolve_doubts(&at(2));
        assert!(history.exists("shop"));
        assert!(history.check_deployments(&at(1)).is_err());
        assert!(history.check_deployments(&at(2)).is_ok());
        history.delete_sent("shop");
        history.resolve_doubts(&[]);
        assert!(!history.exists("shop"));
        assert!(history.check_deployments(&at(2)).is_err());
    }
}
