//! Limits of the questions that wait for upstream servers.

use std::{collections::BTreeMap, net::Ipv4Addr};

/// Waiting questions of one client. The engine's resolver sends one for each of a container.
pub const PER_CLIENT: usize = 128;
/// Waiting questions of one deployment, on all of its networks on this host.
pub const PER_DEPLOYMENT: usize = 512;
/// Waiting questions of a node.
pub const PER_NODE: usize = 2048;

/// Number of waiting questions, by client and by deployment.
///
/// Questions beyond a limit fail at once, so that neither a client nor a
/// deployment delays the names of the others.
#[derive(Clone, Debug, Default)]
pub struct Admission {
    clients: BTreeMap<Ipv4Addr, usize>,
    deployments: BTreeMap<String, usize>,
    total: usize,
}

impl Admission {
    /// Counts a question, if it is within the limits; each admitted one must be released.
    pub fn admit(&mut self, client: Ipv4Addr, deployment: &str) -> bool {
        let of_client = self.clients.get(&client).copied().unwrap_or(0);
        let of_deployment = self.deployments.get(deployment).copied().unwrap_or(0);
        if of_client >= PER_CLIENT || of_deployment >= PER_DEPLOYMENT || self.total >= PER_NODE {
            return false;
        }
        self.clients.insert(client, of_client + 1);
        self.deployments
            .insert(deployment.to_owned(), of_deployment + 1);
        self.total += 1;
        true
    }

    /// Releases an admitted question.
    pub fn release(&mut self, client: Ipv4Addr, deployment: &str) {
        self.total = self.total.saturating_sub(1);
        if let Some(count) = self.clients.get_mut(&client) {
            *count -= 1;
            if *count == 0 {
                self.clients.remove(&client);
            }
        }
        if let Some(count) = self.deployments.get_mut(deployment) {
            *count -= 1;
            if *count == 0 {
                self.deployments.remove(deployment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_until_questions_are_released() {
        let mut admission = Admission::default();
        let client = |n: usize| Ipv4Addr::from(u32::try_from(n).unwrap());
        for _ in 0..PER_CLIENT {
            assert!(admission.admit(client(0), "a"));
        }
        assert!(!admission.admit(client(0), "a"));
        for n in PER_CLIENT..PER_DEPLOYMENT {
            assert!(admission.admit(client(n), "a"));
        }
        assert!(!admission.admit(client(9999), "a"));
        assert!(admission.admit(client(9999), "b"), "another deployment");
        admission.release(client(9999), "b");
        admission.release(client(0), "a");
        assert!(admission.admit(client(0), "a"));
        admission.release(client(0), "a");
        for _ in 1..PER_CLIENT {
            admission.release(client(0), "a");
        }
        for n in PER_CLIENT..PER_DEPLOYMENT {
            admission.release(client(n), "a");
        }
        assert!(admission.clients.is_empty() && admission.deployments.is_empty());
        assert_eq!(admission.total, 0);
    }
}
