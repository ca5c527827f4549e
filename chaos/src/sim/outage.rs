//! Judge of an outage of the authority of an hour, in which renewals fall due: the old certificates
//! stay, and exactly one certificate per domain lands afterwards.

use std::collections::BTreeMap;

use jaco_policy::ingress::certificate::{Chain, Slot, domains};

use super::{
    certificates::{of_slot, stored},
    cluster::{Cluster, Plan},
    fault::LONG_OUTAGE,
    issuance::renewal,
    time::Time,
};

/// Record of a long outage.
#[derive(Debug, Default)]
pub(super) struct Outage {
    begin: Time,
    ended: bool,
    /// Certificate of each domain that had one when the outage began.
    old: BTreeMap<String, Chain>,
    /// Production certificates issued since the outage ended, by domain.
    issued: BTreeMap<String, u32>,
}

impl Outage {
    /// The long outage of a plan; `None` if it has none.
    pub(super) fn of(plan: &Plan) -> Option<Self> {
        let mut faults = plan.faults.iter();
        let fault = faults.find(|fault| fault.is_long_outage())?;
        Some(Self {
            begin: fault.at,
            ..Self::default()
        })
    }

    /// Whether the certificate of a domain is still the one from before the outage.
    pub(super) fn awaits(&self, domain: &str, production: Option<&Chain>) -> bool {
        let old = self.old.get(domain);
        old.is_some_and(|old| production.is_none_or(|new| new == old))
    }
}

impl Cluster {
    /// Whether a long outage has begun and not ended.
    pub(super) fn in_long_outage(&self) -> bool {
        let outage = self.outage.as_ref();
        outage.is_some_and(|outage| self.now >= outage.begin && !outage.ended)
    }

    pub(super) fn begin_long_outage(&mut self) {
        let old = self.production_chains();
        if let Some(outage) = &mut self.outage {
            outage.old = old;
        }
    }

    pub(super) fn end_long_outage(&mut self) {
        self.authority.end_outage();
        let wall = self.true_wall();
        let Some(outage) = &mut self.outage else {
            return;
        };
        outage.ended = true;
        let mut due = outage.old.values().filter(|chain| renewal(chain) < wall);
        if self.now >= outage.begin + LONG_OUTAGE && due.next().is_some() {
            self.count("outages of an hour");
        }
    }

    /// Production certificates of the domains with a route that asks for one.
    fn production_chains(&self) -> BTreeMap<String, Chain> {
        let (directories, newest) = (self.directories(), self.oracle.newest());
        let wanted = domains::wanted(newest, "").into_keys();
        let chains = wanted.filter_map(|domain| {
            let chain = of_slot(&stored(newest, &directories, &domain), Slot::Production)?;
            Some((domain, chain))
        });
        chains.collect()
    }

    /// Judges a certificate that the authority issues: one per domain is enough after an outage.
    pub(super) fn judge_issued(&mut self, domain: &str, slot: Slot) {
        let outage = self.outage.as_mut().filter(|outage| outage.ended);
        let Some(outage) = outage.filter(|_| slot == Slot::Production) else {
            return;
        };
        let issued = outage.issued.entry(domain.to_owned()).or_default();
        *issued += 1;
        let (issued, renewed) = (*issued, outage.old.contains_key(domain));
        if renewed {
            self.count("renewals after an outage");
        }
        if issued > 1 {
            let what = format!("{domain} got {issued} certificates after the outage");
            self.oracle.violate("one certificate after an outage", what);
        }
    }

    /// No certificate from before the outage goes or expires before another one lands.
    pub(super) fn judge_outage(&mut self) {
        if self.outage.is_none() {
            return;
        }
        let wall = self.true_wall();
        let wanted = domains::wanted(self.oracle.newest(), "");
        let chains = self.production_chains();
        let Some(outage) = &mut self.outage else {
            return;
        };
        // A domain without a route has no certificate.
        outage.old.retain(|domain, _| wanted.contains_key(domain));
        let mut old = outage.old.keys();
        let bare = old.find(|domain| chains.get(*domain).is_none_or(|it| it.not_after <= wall));
        if let Some(domain) = bare {
            let what = format!(
                "{domain} has no valid certificate: {:?}",
                chains.get(domain)
            );
            self.oracle.violate("certificates outlive an outage", what);
        }
    }
}
