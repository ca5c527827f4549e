//! What members say of who is a member, having applied more of the log than this node.
//!
//! A node that was away may not know the very member that leads now, and without it would never
//! hear of it. So one member's word is enough to speak to somebody whom the state here does not
//! know; but it is only a word, and nothing that the state here says changes by it:
//!
//! - A member that the state names is known by the certificate that the state names. One that
//!   renewed it shows the former one as well, for the same key, and needs nobody's word.
//! - A member that moved is dialled where others say it is, after its own address.
//! - One that left and came back under its name has another raft id: it is known beside the one
//!   that the state names, until the state says that this one is gone.
//!
//! Who is known by hearsay has no more rights than whoever vouched for it: calls are admitted,
//! and heartbeats heard, by the state alone.
//!
//! How much a member has applied is only its word too. It counts no longer than the state here
//! calls the speaker a member, with a certificate it has shown, never for the speaker itself, and
//! not after a read that was confirmed later: by then the state here holds all that was true.

use std::{cmp::Reverse, collections::BTreeMap};

use jaco_net::{pki::Fingerprint, quic::Member};
use jaco_proto::config::is_hostname;

use super::{
    Sender,
    roster::{Origin, Record},
};

/// Addresses that others may add to that of one member.
const ELSEWHERE: usize = 3;

/// The roster of another member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    /// Index of the last entry that the member has applied.
    pub(super) applied: u64,
    /// The members at that index, all of them.
    pub(super) members: Vec<Record>,
}

/// What was said, by whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    pub(super) speaker: Sender,
    pub(super) told: Told,
    /// Counts what is heard.
    pub(super) serial: u64,
}

/// Whether `record` is the member that `sender` proved to be.
fn is(record: &Record, sender: &Sender) -> bool {
    let member = &record.member;
    member.hostname == sender.hostname
        && member.raft_id == sender.raft_id
        && sender.showed(record.fingerprint.as_bytes())
}

/// The members `own` as this node knows them at `applied`, and whom else those of them name who
/// know more.
#[must_use]
pub(super) fn with_told<'a>(
    own: Vec<Record>,
    applied: u64,
    heard: impl Iterator<Item = &'a Heard>,
    origin: &Origin,
) -> Vec<Record> {
    // Nobody known by hearsay alone is believed about others.
    let believed = |heard: &&Heard| {
        heard.told.applied > applied && own.iter().any(|record| is(record, &heard.speaker))
    };
    // Who is said by most comes first, then who is said by whoever knows more.
    let mut said: BTreeMap<(&str, u64, Fingerprint), (usize, u64, &Record)> = BTreeMap::new();
    for Heard { speaker, told, .. } in heard.filter(believed) {
        for record in &told.members {
            let member = &record.member;
            let sound = is_hostname(&member.hostname) && member.raft_id != 0;
            if !sound || member.hostname == speaker.hostname || !origin.is_other(record) {
                continue;
            }
            let who = (&*member.hostname, member.raft_id, record.fingerprint);
            let entry = said.entry(who).or_insert((0, told.applied, record));
            let newest = if told.applied > entry.1 {
                record
            } else {
                entry.2
            };
            *entry = (entry.0 + 1, entry.1.max(told.applied), newest);
        }
    }
    let mut said: Vec<_> = said.into_values().collect();
    said.sort_by_key(|(speakers, applied, _)| Reverse((*speakers, *applied)));

    let mut members = own;
    for (_, _, told) in said {
        let Member {
            hostname, raft_id, ..
        } = &*told.member;
        let same = |known: &&mut Record| {
            known.member.hostname == *hostname && known.member.raft_id == *raft_id
        };
        if let Some(known) = members.iter_mut().find(same) {
            let news = told
                .member
                .address
                .filter(|at| known.addresses().all(|k| k != *at));
            if known.elsewhere.len() < ELSEWHERE {
                known.elsewhere.extend(news);
            }
            continue;
        }
        // Two names with one raft id, or one certificate, could not be told apart.
        let taken = |known: &Record| {
            known.member.raft_id == *raft_id || known.fingerprint == told.fingerprint
        };
        if !members.iter().any(taken) {
            let namesake = members
                .iter()
                .any(|known| known.member.hostname == *hostname);
            members.push(Record {
                namesake,
                ..told.clone()
            });
        }
    }
    members
}

#[cfg(test)]
mod tests {
    use super::{
        super::roster::{
            members,
            tests::{origin, state},
        },
        *,
    };

    /// Members of raft ids and fingerprints, as `speaker` has them at `applied`, each at an
    /// address that its fingerprint names.
    fn told(speaker: (&str, u64, u8), applied: u64, rows: &[(&str, u64, u8)]) -> Heard {
        let print = Fingerprint::from_bytes([speaker.2; 32]);
        let members = rows
            .iter()
            .map(|&(name, id, print)| {
                Record::new(name, id, &format!("10.0.0.{print}:1"), [print; 32])
            })
            .collect();
        Heard {
            speaker: Sender::new(speaker.0, speaker.1, [print]),
            told: Told { applied, members },
            serial: 0,
        }
    }

    const A: (&str, u64, u8) = ("a", 1, 1);
    const B: (&str, u64, u8) = ("b", 2, 2);
    const MOST: u64 = u64::MAX;

    fn two() -> Vec<Record> {
        let state = state(&[("a", 1, "10.0.0.1:1", 1), ("b", 2, "10.0.0.2:1", 2)]);
        members(&state, &origin(&[]))
    }

    /// Key, raft id and fingerprint of whom `heard` makes known beside [`two`], whose records
    /// must be as they were, but for addresses.
    fn added(heard: &[Heard]) -> Vec<(String, u64, u8)> {
        let mut found = with_told(two(), 10, heard.iter(), &origin(&[]));
        let added = found.split_off(2);
        for record in &mut found {
            record.elsewhere.clear();
        }
        assert_eq!(found, two());
        added
            .iter()
            .map(|r| (r.key(), r.member.raft_id, r.fingerprint.as_bytes()[0]))
            .collect()
    }

    #[test]
    fn who_has_applied_more_is_believed_about_whom_this_node_does_not_know() {
        const C: (&str, u64, u8) = ("c", 3, 3);
        const D: (&str, u64, u8) = ("d", 4, 4);
        let added = |heard: &[Heard]| -> Vec<_> {
            let added = added(heard).into_iter();
            added.map(|(_, id, print)| (id, print)).collect()
        };
        assert_eq!(added(&[told(A, 11, &[B, C])]), [(3, 3)]);
        let both = [told(A, 12, &[B, C]), told(B, 11, &[A, D])];
        assert_eq!(added(&both), [(3, 3), (4, 4)]);
        // Of two that contradict each other, whoever knows more.
        let other = ("c", 3, 5);
        let two_words = [told(A, 11, &[C]), told(B, 12, &[other])];
        assert_eq!(added(&two_words), [(3, 5)]);
    }

    #[test]
    fn most_are_believed_rather_than_whoever_claims_to_know_most() {
        let mut own = two();
        own.push(Record::new("e", 5, "", [9; 32]));
        let heard = [
            told(A, 11, &[("c", 3, 3)]),
            told(B, 12, &[("c", 3, 3)]),
            told(("e", 5, 9), MOST, &[("c", 3, 5), ("d", 4, 4)]),
        ];
        let found = with_told(own, 10, heard.iter(), &origin(&[]));
        let prints = found[3..].iter().map(|r| r.fingerprint.as_bytes()[0]);
        assert_eq!(Vec::from_iter(prints), [3, 4]);
    }

    #[test]
    fn nothing_that_the_state_says_changes_by_what_is_said() {
        let table: &[(&str, &[Heard])] = &[
            ("another certificate", &[told(A, MOST, &[("b", 2, 6)])]),
            (
                "another certificate, said by everybody",
                &[
                    told(A, MOST, &[("b", 2, 6)]),
                    told(B, MOST, &[("a", 1, 7), ("b", 2, 6)]),
                ],
            ),
            ("nobody is left", &[told(A, MOST, &[])]),
            ("this node", &[told(A, MOST, &[("me", 4, 6), ("x", 9, 6)])]),
            ("late", &[told(A, 10, &[("c", 3, 3)])]),
            (
                "gone",
                &[told(("gone", 5, 5), MOST, &[("gone", 5, 5), ("c", 3, 3)])],
            ),
            (
                "known by the word of somebody who is gone",
                &[
                    told(("gone", 5, 5), MOST, &[("d", 6, 6), ("e", 7, 7)]),
                    told(("d", 6, 6), MOST, &[("e", 7, 7), ("gone", 5, 5)]),
                    told(("e", 7, 7), MOST, &[("d", 6, 6), ("gone", 5, 5)]),
                ],
            ),
            (
                "a member's name with another certificate",
                &[told(("a", 1, 8), MOST, &[("c", 3, 3), ("b", 2, 8)])],
            ),
            (
                "a member's name with another raft id",
                &[told(("a", 8, 1), MOST, &[("c", 3, 3), ("b", 2, 8)])],
            ),
            ("of itself", &[told(A, MOST, &[("a", 1, 8), ("a", 5, 8)])]),
            (
                "a raft id or a certificate of somebody else",
                &[told(
                    A,
                    MOST,
                    &[("c", 2, 3), ("d", 4, 2), ("e", 1, 5), ("b", 4, 1)],
                )],
            ),
            (
                "what is no name, or no raft id",
                &[told(
                    A,
                    MOST,
                    &[("b~2", 4, 4), ("../c", 5, 5), ("c", 0, 6), ("", 7, 7)],
                )],
            ),
        ];
        for (case, heard) in table {
            assert_eq!(added(heard), [], "{case}");
        }
    }

    #[test]
    fn of_two_that_could_not_be_told_apart_one_is_known() {
        let same_id = added(&[told(A, 11, &[("c", 3, 3), ("d", 3, 4)])]);
        assert_eq!(same_id, [("c".to_owned(), 3, 3)]);
        let same_print = added(&[told(A, 11, &[("c", 3, 3), ("d", 4, 3)])]);
        assert_eq!(same_print, [("c".to_owned(), 3, 3)]);
    }

    #[test]
    fn who_came_back_under_its_name_is_known_beside_the_one_that_the_state_names() {
        let returned = told(A, 11, &[("b", 7, 7)]);
        assert_eq!(added(&[returned]), [("b~7".to_owned(), 7, 7)]);
        // Before the name was free, it was somebody else's again.
        let twice = [told(A, 12, &[("c", 8, 8)]), told(B, 11, &[("c", 7, 7)])];
        let expected = [("c".to_owned(), 8, 8), ("c~7".to_owned(), 7, 7)];
        assert_eq!(added(&twice), expected);
    }

    #[test]
    fn a_member_that_moved_is_dialled_at_its_own_address_first() {
        let moved = |print| told(A, 11, &[("b", 2, print)]);
        let addresses = |heard: &[Heard]| {
            let found = with_told(two(), 10, heard.iter(), &origin(&[]));
            let addresses: Vec<_> = found[1].addresses().map(|at| at.to_string()).collect();
            addresses
        };
        assert_eq!(addresses(&[moved(2)]), ["10.0.0.2:1"]);
        // With another certificate as well, which it shows by itself.
        assert_eq!(addresses(&[moved(6)]), ["10.0.0.2:1", "10.0.0.6:1"]);
        let many: Vec<_> = (20..40).map(|print| ("b", 2, print)).collect();
        assert_eq!(addresses(&[told(A, MOST, &many)]).len(), 1 + ELSEWHERE);
    }
}
