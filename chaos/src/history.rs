//! What a client was told, to be held against what the state says.

use std::collections::BTreeMap;

use jaco_proto::v1;
use jaco_raftnode::State;

/// What is known about one deployment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    /// Revision of the last acknowledged apply, 0 after an acknowledged delete.
    acknowledged: u64,
    /// An apply or delete after that without an answer: it may have happened.
    apply_in_doubt: bool,
    delete_in_doubt: bool,
}

/// Every apply and delete of a test, with its answer if there was one.
#[derive(Clone, Debug, Default)]
pub struct History(BTreeMap<String, Known>);

impl History {
    /// An apply is about to be sent.
    pub fn apply_sent(&mut self, deployment: &str) {
        self.0
            .entry(deployment.to_owned())
            .or_default()
            .apply_in_doubt = true;
    }

    /// A delete is about to be sent.
    pub fn delete_sent(&mut self, deployment: &str) {
        self.0
            .entry(deployment.to_owned())
            .or_default()
            .delete_in_doubt = true;
    }

    /// The last apply was acknowledged; nothing sent before it is in doubt any more.
    pub fn applied(&mut self, deployment: &str, revision: u64) {
        let known = Known {
            acknowledged: revision,
            ..Known::default()
        };
        self.0.insert(deployment.to_owned(), known);
    }

    /// The last delete was acknowledged.
    pub fn deleted(&mut self, deployment: &str) {
        self.0.insert(deployment.to_owned(), Known::default());
    }

    /// A client has read the deployments: what was in doubt is as it saw, and must stay so.
    pub fn settle(&mut self, deployments: &[v1::Deployment]) {
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

    /// Whether a deployment was acknowledged to be there.
    #[must_use]
    pub fn is_there(&self, deployment: &str) -> bool {
        self.0
            .get(deployment)
            .is_some_and(|known| known.acknowledged > 0)
    }

    /// Checks that a state holds everything that was acknowledged, and nothing that was not sent.
    ///
    /// # Errors
    /// With the first deployment that is not as the answers say.
    pub fn check(&self, state: &State) -> Result<(), String> {
        let deployments = state.deployments.values().map(AsRef::as_ref);
        self.check_deployments(deployments)
    }

    /// [`History::check`] for a list of deployments as the API shows it.
    ///
    /// # Errors
    /// As [`History::check`].
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
            Some(name) => Err(format!("{name}: nobody applied it")),
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
    fn what_was_acknowledged_must_be_there_and_what_is_in_doubt_may_be() {
        let mut history = History::default();
        assert!(
            history
                .check_deployments(&at(1))
                .unwrap_err()
                .contains("nobody")
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
    fn an_acknowledged_delete_must_have_happened_and_one_in_doubt_may_have() {
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
    fn what_was_read_is_in_doubt_no_more() {
        let mut history = History::default();
        history.applied("shop", 1);
        history.apply_sent("shop");
        history.settle(&at(2));
        assert!(history.is_there("shop"));
        assert!(history.check_deployments(&at(1)).is_err());
        assert!(history.check_deployments(&at(2)).is_ok());
        history.delete_sent("shop");
        history.settle(&[]);
        assert!(!history.is_there("shop"));
        assert!(history.check_deployments(&at(2)).is_err());
    }
}
