//! The certificates that a node presents, selected from what it has.

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use jaco_policy::ingress::certificate::{
    Slot,
    served::{Candidate, Origin, import_names, next_check, select},
};
use jaco_state::State;
use jaco_supervision::{Context, Worker};
use prost_types::Timestamp;
use tokio::time::Instant;

use super::{Imported, Material};

/// Selects certificates at one time, and notes when that would end otherwise.
pub(super) struct Selection<'a> {
    now: SystemTime,
    imported: &'a Imported,
    served: BTreeMap<String, Arc<Material>>,
    /// Ends of the validities that the selection depends on.
    ends: Vec<SystemTime>,
}

impl<'a> Selection<'a> {
    pub(super) fn new(now: SystemTime, imported: &'a Imported) -> Self {
        Self {
            now,
            imported,
            served: BTreeMap::new(),
            ends: Vec::new(),
        }
    }

    /// Selects the certificate of a domain from those of operators and `materials`.
    pub(super) fn add(&mut self, domain: &str, materials: &[Arc<Material>]) {
        let imports = import_names(domain).filter_map(|(origin, name)| {
            let material = self.imported.by_name.get(&name)?;
            Some(candidate(origin, material))
        });
        let usable = materials.iter().filter(|material| material.chain.covers);
        let issued = usable.map(|material| {
            let origin = match material.slot {
                Slot::Staging => Origin::Staging,
                Slot::Production => Origin::Production,
            };
            candidate(origin, material)
        });
        let candidates: Vec<_> = issued.chain(imports).collect();
        self.ends.extend(candidates.iter().map(|one| one.not_after));
        if let Some(selected) = select(self.now, candidates) {
            self.served.insert(domain.to_owned(), selected.certificate);
        }
    }

    /// Whether an operator supplied a certificate for this very domain that has not expired. One that
    /// is not opened yet counts too, so that a node that starts orders none.
    pub(super) fn is_valid_import(&mut self, state: &State, domain: &str) -> bool {
        let stored = state.imported_certs.get(domain);
        let end = stored.and_then(|cert| time(cert.not_after.as_ref()?));
        self.ends.extend(end);
        end.is_some_and(|end| self.now < end)
    }

    /// Sends `wake` when one of the certificates expires, and returns the selected ones.
    pub(super) fn finish<W: Worker>(
        self,
        ctx: &Context<W>,
        wake: W::Msg,
    ) -> Arc<BTreeMap<String, Arc<Material>>> {
        let wait = next_check(self.now, self.ends);
        ctx.set_deadline(wait.map(|wait| Instant::now() + wait), wake);
        Arc::new(self.served)
    }
}

fn candidate(origin: Origin, material: &Arc<Material>) -> Candidate<Arc<Material>> {
    Candidate {
        origin,
        not_after: material.chain.not_after,
        certificate: Arc::clone(material),
    }
}

pub(super) fn time(at: &Timestamp) -> Option<SystemTime> {
    SystemTime::try_from(*at).ok()
}
