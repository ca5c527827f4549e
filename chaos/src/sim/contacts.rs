//! Contact of each node with the leader, as seen from outside: how long the state that a node has
//! confirmed may be relied on.

use std::collections::BTreeMap;

use jaco_proto::v1::NodeStatus;

use super::time::{SECOND, Time};

/// Time for which a node relies on its last contact: a heartbeat counts for three intervals, and
/// may be under way for up to two seconds.
const LIFETIME: Time = 9 * SECOND;

/// Contact of one run of a daemon.
#[derive(Debug, Default)]
struct Contact {
    run: u64,
    /// Time at which the leader sent the newest sign of contact that has arrived.
    last: Time,
    /// Beginning of the newest successful confirmation, unless contact was lost or the node was
    /// marked as down since.
    confirmed: Option<Time>,
    /// The log was not applied since the last confirmation.
    stalled: bool,
    status: NodeStatus,
}

/// Contacts by raft id.
#[derive(Debug, Default)]
pub(super) struct Contacts(BTreeMap<u64, Contact>);

impl Contacts {
    fn of(&mut self, id: u64, run: u64) -> &mut Contact {
        let contact = self.0.entry(id).or_default();
        if contact.run != run {
            *contact = Contact {
                run,
                ..Contact::default()
            };
        }
        contact
    }

    /// A sign of contact that the leader sent at `sent` has reached the node.
    pub(super) fn heard(&mut self, id: u64, run: u64, sent: Time) {
        let contact = self.of(id, run);
        if sent > contact.last + LIFETIME {
            contact.confirmed = None;
        }
        contact.last = contact.last.max(sent);
    }

    /// The node has applied everything that was committed at `begun`.
    pub(super) fn record_confirmed(&mut self, id: u64, run: u64, begun: Time, now: Time) {
        self.heard(id, run, now);
        let contact = self.of(id, run);
        (contact.confirmed, contact.stalled) = (Some(begun), false);
    }

    /// The node finds that it does not apply the log; it must confirm its state again.
    pub(super) fn record_stalled(&mut self, id: u64, run: u64) {
        let contact = self.of(id, run);
        (contact.confirmed, contact.stalled) = (None, true);
    }

    /// The actor that confirms was restarted.
    pub(super) fn forget_confirmed(&mut self, id: u64, run: u64) {
        self.of(id, run).confirmed = None;
    }

    /// The node sees itself with this status. Marked as down, it must confirm its state again.
    pub(super) fn record_status(&mut self, id: u64, run: u64, status: NodeStatus) {
        let contact = self.of(id, run);
        let down = matches!(status, NodeStatus::Unhealthy | NodeStatus::Offline);
        if std::mem::replace(&mut contact.status, status) != status && down {
            contact.confirmed = None;
        }
    }

    /// Whether the node may still rely on its last contact at `now`.
    pub(super) fn in_touch(&self, id: u64, run: u64, now: Time) -> bool {
        let contact = self.0.get(&id).filter(|contact| contact.run == run);
        contact.is_some_and(|contact| !contact.stalled && now <= contact.last + LIFETIME)
    }

    /// Time up to which the node must know the committed state at `now`: the beginning of its
    /// confirmation, or a short while ago if it has none that counts.
    pub(super) fn confirmed(&self, id: u64, run: u64, now: Time) -> Time {
        let contact = self.0.get(&id).filter(|_| self.in_touch(id, run, now));
        let confirmed = contact.and_then(|contact| contact.confirmed);
        confirmed.unwrap_or(now.saturating_sub(LIFETIME))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = 100 * SECOND;

    /// Contacts of node 1 in run 7, which confirmed its state at `START` and receives a heartbeat of
    /// the leader every two seconds for `seconds`.
    fn confirmed(seconds: u64) -> Contacts {
        let mut contacts = Contacts::default();
        contacts.record_confirmed(1, 7, START, START + SECOND);
        for second in (0..seconds).step_by(2) {
            contacts.heard(1, 7, START + second * SECOND);
        }
        contacts
    }

    #[test]
    fn confirmation_counts_while_contact_lasts() {
        let now = START + 61 * SECOND;
        assert_eq!(confirmed(60).confirmed(1, 7, now), START);
        let short_ago = now - LIFETIME;
        assert_eq!(confirmed(50).confirmed(1, 7, now), short_ago, "lost");
        let mut again = confirmed(50);
        again.heard(1, 7, now);
        assert_eq!(again.confirmed(1, 7, now), short_ago, "not confirmed anew");
        assert_eq!(confirmed(60).confirmed(1, 8, now), short_ago, "restarted");
        assert_eq!(confirmed(60).confirmed(2, 7, now), short_ago, "another");
    }

    #[test]
    fn every_mark_as_down_requires_new_confirmation() {
        let now = START + 61 * SECOND;
        for (statuses, counts) in [
            (&[NodeStatus::Ready][..], true),
            (&[NodeStatus::Unhealthy], false),
            (&[NodeStatus::Offline], false),
        ] {
            let mut contacts = confirmed(60);
            for status in statuses {
                contacts.record_status(1, 7, *status);
            }
            assert_eq!(contacts.confirmed(1, 7, now) == START, counts);
        }
        let mut contacts = confirmed(0);
        contacts.record_status(1, 7, NodeStatus::Unhealthy);
        contacts.record_confirmed(1, 7, now, now);
        contacts.record_status(1, 7, NodeStatus::Unhealthy);
        assert_eq!(contacts.confirmed(1, 7, now), now, "the same mark");
        contacts.record_status(1, 7, NodeStatus::Offline);
        assert_eq!(contacts.confirmed(1, 7, now), now - LIFETIME);
    }

    #[test]
    fn stalled_node_must_confirm_its_state_again() {
        let now = START + 61 * SECOND;
        let mut contacts = confirmed(60);
        assert!(contacts.in_touch(1, 7, now));
        contacts.record_stalled(1, 7);
        contacts.heard(1, 7, now);
        assert!(!contacts.in_touch(1, 7, now), "heartbeats do not count");
        contacts.record_confirmed(1, 7, now, now);
        assert!(contacts.in_touch(1, 7, now));
    }

    #[test]
    fn heartbeat_from_before_pause_is_no_contact() {
        let mut contacts = confirmed(60);
        let now = START + 90 * SECOND;
        contacts.heard(1, 7, START + 60 * SECOND);
        assert!(!contacts.in_touch(1, 7, now));
        assert_eq!(contacts.confirmed(1, 7, now), now - LIFETIME);
    }
}
