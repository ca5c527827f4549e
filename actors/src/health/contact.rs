//! Contact of this node with the cluster, for actors whose effects need one.

use std::{fmt, sync::Arc};

use jaco_policy::health::fencing::ContactEpoch;
use tokio::sync::watch;

use super::FailureDetector;

/// Contact of this node with the cluster. While there is none its state may be stale.
#[derive(Clone)]
pub struct Contact {
    now: Arc<dyn Fn() -> Option<ContactEpoch> + Send + Sync>,
    changes: watch::Receiver<Option<ContactEpoch>>,
}

impl Contact {
    /// The contact that `failure_detector` finds.
    #[must_use]
    pub fn of(failure_detector: &Arc<FailureDetector>) -> Self {
        let changes = failure_detector.contact_changes();
        let failure_detector = Arc::clone(failure_detector);
        Self {
            now: Arc::new(move || failure_detector.contact()),
            changes,
        }
    }

    /// The contact at this moment. [`Contact::changes`] may show it later: until the next event
    /// after a pause of this process they show the contact from before the pause.
    #[must_use]
    pub fn now(&self) -> Option<ContactEpoch> {
        (self.now)()
    }

    /// Changes of the contact as they were noticed.
    #[must_use]
    pub fn changes(&self) -> watch::Receiver<Option<ContactEpoch>> {
        self.changes.clone()
    }
}

impl fmt::Debug for Contact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Contact")
            .field("now", &self.now())
            .finish_non_exhaustive()
    }
}

/// Source of a [`Contact`] that is switched by hand instead of by a failure detector.
#[derive(Debug)]
pub struct ContactSwitch {
    contacts: watch::Sender<u64>,
    now: watch::Sender<Option<ContactEpoch>>,
    changes: watch::Sender<Option<ContactEpoch>>,
}

impl ContactSwitch {
    /// A switch that begins with or without contact.
    #[must_use]
    pub fn new(in_contact: bool) -> Self {
        let this = Self {
            contacts: watch::Sender::new(0),
            now: watch::Sender::new(None),
            changes: watch::Sender::new(None),
        };
        this.set(in_contact);
        this
    }

    /// Begins a new contact or ends the present one.
    pub fn set(&self, in_contact: bool) {
        self.set_unnoticed(in_contact);
        let now = *self.now.borrow();
        self.changes.send_replace(now);
    }

    /// As [`ContactSwitch::set`], but [`Contact::changes`] do not show it, as after a pause of the
    /// process.
    pub fn set_unnoticed(&self, in_contact: bool) {
        self.contacts.send_modify(|contacts| *contacts += 1);
        let epoch = ContactEpoch::new(*self.contacts.borrow());
        self.now.send_replace(in_contact.then_some(epoch));
    }

    /// The contact behind this switch; it stays as it is once the switch is dropped.
    #[must_use]
    pub fn contact(&self) -> Contact {
        let now = self.now.subscribe();
        Contact {
            now: Arc::new(move || *now.borrow()),
            changes: self.changes.subscribe(),
        }
    }
}
