//! Membership gossip: members reported by peers whose applied index is higher than this node's.
//!
//! A node that was offline may not know the current leader, and could then never catch up. So the
//! report of one member is enough to connect to a peer missing from the local state. Reports only
//! add to that state:
//!
//! - A member in the state is authenticated by its certificate in the state. After a renewal it
//!   presents the previous certificate as well, for the same key, and needs no report.
//! - A member that moved is dialled at its address in the state first, then at reported addresses.
//! - A member that was removed and rejoined under its hostname has a new raft id. It is kept next
//!   to the one in the state until the state drops that one.
//!
//! A reported member has no more rights than the member that reported it: admission of calls and
//! heartbeats uses the state only.
//!
//! The applied index of a report is unverified as well. A report counts only while the state lists
//! the reporter with a certificate that it presented, never for the reporter's own entry, and only
//! until a read index taken later is confirmed: the state then includes every entry committed when
//! the report arrived.

use std::{cmp::Reverse, collections::BTreeMap};

use jaco_proto::config::is_hostname;

use super::members::{Origin, PeerInfo};

/// Maximum number of reported addresses of one member.
const MAX_REPORTED_ADDRESSES: usize = 3;

/// Membership view of another member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MembershipView {
    /// Index of the last entry applied by that member.
    pub applied: u64,
    /// Its complete member list at that index.
    pub members: Vec<PeerInfo>,
}

/// Authenticated sender of a report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// Its hostname.
    pub hostname: String,
    /// Its raft id.
    pub raft_id: u64,
    /// SHA-256 of each certificate it presented, all of one key.
    pub presented: Vec<[u8; 32]>,
}

/// A [`MembershipView`] and the member that sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerReport {
    /// Member that sent it.
    pub speaker: Speaker,
    /// The view it sent.
    pub view: MembershipView,
    /// Number of the report, increasing in order of arrival.
    pub serial: u64,
}

/// Whether `record` is the authenticated `speaker`.
fn is(record: &PeerInfo, speaker: &Speaker) -> bool {
    record.hostname == speaker.hostname
        && record.raft_id == speaker.raft_id
        && speaker.presented.contains(&record.fingerprint)
}

/// A reported member. Those with more reporters have priority, then those reported at a higher
/// applied index.
struct Candidate<'a> {
    reporters: usize,
    /// Highest applied index of the reporters.
    applied: u64,
    /// The member as reported at that index.
    member: &'a PeerInfo,
}

/// Returns the members `own`, known at index `applied`, plus members and addresses from reports of
/// members in `own` with a higher applied index.
#[must_use]
pub fn merge_reports<'a>(
    own: Vec<PeerInfo>,
    applied: u64,
    reports: impl Iterator<Item = &'a PeerReport>,
    origin: &Origin,
) -> Vec<PeerInfo> {
    // Only members in the state are trusted reporters, so trust is not transitive.
    let believed = |report: &&PeerReport| {
        report.view.applied > applied && own.iter().any(|record| is(record, &report.speaker))
    };
    let mut candidates: BTreeMap<_, Candidate<'_>> = BTreeMap::new();
    for PeerReport { speaker, view, .. } in reports.filter(believed) {
        for member in &view.members {
            let valid = is_hostname(&member.hostname) && member.raft_id != 0;
            if !valid || member.hostname == speaker.hostname || !origin.is_other(member) {
                continue;
            }
            let identity = (&*member.hostname, member.raft_id, member.fingerprint);
            let candidate = candidates.entry(identity).or_insert(Candidate {
                reporters: 0,
                applied: view.applied,
                member,
            });
            candidate.reporters += 1;
            if view.applied > candidate.applied {
                candidate.applied = view.applied;
                candidate.member = member;
            }
        }
    }
    let mut candidates: Vec<_> = candidates.into_values().collect();
    candidates.sort_by_key(|candidate| Reverse((candidate.reporters, candidate.applied)));

    let mut members = own;
    for Candidate {
        member: reported, ..
    } in candidates
    {
        let PeerInfo {
            hostname, raft_id, ..
        } = reported;
        let same = |known: &&mut PeerInfo| known.hostname == *hostname && known.raft_id == *raft_id;
        if let Some(known) = members.iter_mut().find(same) {
            let address = reported
                .address
                .filter(|at| known.addresses().all(|k| k != *at));
            if known.reported_addresses.len() < MAX_REPORTED_ADDRESSES {
                known.reported_addresses.extend(address);
            }
            continue;
        }
        // Ambiguous entries are dropped: raft ids and certificates must be unique.
        let taken = |known: &PeerInfo| {
            known.raft_id == *raft_id || known.fingerprint == reported.fingerprint
        };
        if !members.iter().any(taken) {
            let namesake = members.iter().any(|known| known.hostname == *hostname);
            members.push(PeerInfo {
                namesake,
                ..reported.clone()
            });
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::{
        super::members::{
            members,
            tests::{origin, state},
        },
        *,
    };

    /// Report of `speaker` at index `applied` with members of these names, raft ids and
    /// fingerprints; the address of each derives from its fingerprint.
    fn report(speaker: (&str, u64, u8), applied: u64, rows: &[(&str, u64, u8)]) -> PeerReport {
        let members = rows
            .iter()
            .map(|&(name, id, print)| {
                PeerInfo::new(name, id, &format!("10.0.0.{print}:1"), [print; 32])
            })
            .collect();
        PeerReport {
            speaker: Speaker {
                hostname: speaker.0.to_owned(),
                raft_id: speaker.1,
                presented: vec![[speaker.2; 32]],
            },
            view: MembershipView { applied, members },
            serial: 0,
        }
    }

    const A: (&str, u64, u8) = ("a", 1, 1);
    const B: (&str, u64, u8) = ("b", 2, 2);
    const MOST: u64 = u64::MAX;

    fn two() -> Vec<PeerInfo> {
        let state = state(&[("a", 1, "10.0.0.1:1", 1), ("b", 2, "10.0.0.2:1", 2)]);
        members(&state, &origin(&[]))
    }

    /// Key, raft id and fingerprint of the members that `reports` adds to [`two`]; asserts that the
    /// records of `two` change in their addresses only.
    fn added(reports: &[PeerReport]) -> Vec<(String, u64, u8)> {
        let mut found = merge_reports(two(), 10, reports.iter(), &origin(&[]));
        let added = found.split_off(2);
        for record in &mut found {
            record.reported_addresses.clear();
        }
        assert_eq!(found, two());
        added
            .iter()
            .map(|r| (r.key(), r.raft_id, r.fingerprint[0]))
            .collect()
    }

    #[test]
    fn reports_with_higher_index_add_unknown_members() {
        const C: (&str, u64, u8) = ("c", 3, 3);
        const D: (&str, u64, u8) = ("d", 4, 4);
        let added = |reports: &[PeerReport]| -> Vec<_> {
            let added = added(reports).into_iter();
            added.map(|(_, id, print)| (id, print)).collect()
        };
        assert_eq!(added(&[report(A, 11, &[B, C])]), [(3, 3)]);
        let both = [report(A, 12, &[B, C]), report(B, 11, &[A, D])];
        assert_eq!(added(&both), [(3, 3), (4, 4)]);
        // For contradicting reports the higher applied index wins.
        let other = ("c", 3, 5);
        let two_words = [report(A, 11, &[C]), report(B, 12, &[other])];
        assert_eq!(added(&two_words), [(3, 5)]);
    }

    #[test]
    fn majority_of_reporters_outranks_highest_index() {
        let mut own = two();
        own.push(PeerInfo::new("e", 5, "", [9; 32]));
        let reports = [
            report(A, 11, &[("c", 3, 3)]),
            report(B, 12, &[("c", 3, 3)]),
            report(("e", 5, 9), MOST, &[("c", 3, 5), ("d", 4, 4)]),
        ];
        let found = merge_reports(own, 10, reports.iter(), &origin(&[]));
        let prints = found[3..].iter().map(|r| r.fingerprint[0]);
        assert_eq!(Vec::from_iter(prints), [3, 4]);
    }

    #[test]
    fn reports_never_change_members_of_state() {
        let table: &[(&str, &[PeerReport])] = &[
            ("another certificate", &[report(A, MOST, &[("b", 2, 6)])]),
            (
                "another certificate, said by everybody",
                &[
                    report(A, MOST, &[("b", 2, 6)]),
                    report(B, MOST, &[("a", 1, 7), ("b", 2, 6)]),
                ],
            ),
            ("nobody is left", &[report(A, MOST, &[])]),
            (
                "this node",
                &[report(A, MOST, &[("me", 4, 6), ("x", 9, 6)])],
            ),
            ("late", &[report(A, 10, &[("c", 3, 3)])]),
            (
                "gone",
                &[report(("gone", 5, 5), MOST, &[("gone", 5, 5), ("c", 3, 3)])],
            ),
            (
                "known by the word of somebody who is gone",
                &[
                    report(("gone", 5, 5), MOST, &[("d", 6, 6), ("e", 7, 7)]),
                    report(("d", 6, 6), MOST, &[("e", 7, 7), ("gone", 5, 5)]),
                    report(("e", 7, 7), MOST, &[("d", 6, 6), ("gone", 5, 5)]),
                ],
            ),
            (
                "a member's name with another certificate",
                &[report(("a", 1, 8), MOST, &[("c", 3, 3), ("b", 2, 8)])],
            ),
            (
                "a member's name with another raft id",
                &[report(("a", 8, 1), MOST, &[("c", 3, 3), ("b", 2, 8)])],
            ),
            ("of itself", &[report(A, MOST, &[("a", 1, 8), ("a", 5, 8)])]),
            (
                "a raft id or a certificate of somebody else",
                &[report(
                    A,
                    MOST,
                    &[("c", 2, 3), ("d", 4, 2), ("e", 1, 5), ("b", 4, 1)],
                )],
            ),
            (
                "what is no name, or no raft id",
                &[report(
                    A,
                    MOST,
                    &[("b~2", 4, 4), ("../c", 5, 5), ("c", 0, 6), ("", 7, 7)],
                )],
            ),
        ];
        for (case, reports) in table {
            assert_eq!(added(reports), [], "{case}");
        }
    }

    #[test]
    fn report_with_duplicate_id_or_certificate_is_dropped() {
        let same_id = added(&[report(A, 11, &[("c", 3, 3), ("d", 3, 4)])]);
        assert_eq!(same_id, [("c".to_owned(), 3, 3)]);
        let same_print = added(&[report(A, 11, &[("c", 3, 3), ("d", 4, 3)])]);
        assert_eq!(same_print, [("c".to_owned(), 3, 3)]);
    }

    #[test]
    fn rejoined_member_is_kept_next_to_old_record() {
        let returned = report(A, 11, &[("b", 7, 7)]);
        assert_eq!(added(&[returned]), [("b~7".to_owned(), 7, 7)]);
        // Two raft ids of one hostname: the name was reused in between.
        let twice = [report(A, 12, &[("c", 8, 8)]), report(B, 11, &[("c", 7, 7)])];
        let expected = [("c".to_owned(), 8, 8), ("c~7".to_owned(), 7, 7)];
        assert_eq!(added(&twice), expected);
    }

    #[test]
    fn moved_member_is_dialled_at_own_address_first() {
        let moved = |print| report(A, 11, &[("b", 2, print)]);
        let addresses = |reports: &[PeerReport]| {
            let found = merge_reports(two(), 10, reports.iter(), &origin(&[]));
            let addresses: Vec<_> = found[1].addresses().map(|at| at.to_string()).collect();
            addresses
        };
        assert_eq!(addresses(&[moved(2)]), ["10.0.0.2:1"]);
        // The record also has a new certificate; the member presents both.
        assert_eq!(addresses(&[moved(6)]), ["10.0.0.2:1", "10.0.0.6:1"]);
        let many: Vec<_> = (20..40).map(|print| ("b", 2, print)).collect();
        assert_eq!(
            addresses(&[report(A, MOST, &many)]).len(),
            1 + MAX_REPORTED_ADDRESSES
        );
    }
}
