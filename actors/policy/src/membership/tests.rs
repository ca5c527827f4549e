//! Policy of the leader on a cluster that carries out its decisions.

mod drains;
mod random;
mod removals;

use jaco_proto::v1;

use super::*;

const TICK: Duration = Duration::from_secs(3);

/// Cluster that carries out the decisions of its leader's policy.
struct Cluster {
    view: View,
    policy: Policy,
    now: Instant,
    next_id: u64,
}

impl Cluster {
    /// A cluster with one member, `a`.
    fn new() -> Self {
        let mut cluster = Self {
            view: View::default(),
            policy: Policy::new(),
            now: Instant::now(),
            next_id: 1,
        };
        cluster.join("a");
        cluster.view.leader = 1;
        cluster.view.voters.insert(1);
        cluster
    }

    fn of(members: usize) -> Self {
        let mut cluster = Self::new();
        for name in NAMES.iter().take(members).skip(1) {
            cluster.join(name);
        }
        cluster.run_until_idle();
        cluster
    }

    fn join(&mut self, hostname: &str) {
        let id = self.next_id;
        self.next_id += 1;
        let row = Member {
            hostname: hostname.to_owned(),
            departure: Departure::Staying,
            remaining: BTreeSet::new(),
        };
        self.view.rows.insert(id, row);
        self.set_active(id, true);
    }

    fn id(&self, hostname: &str) -> u64 {
        let mut rows = self.view.rows.iter();
        rows.find(|(_, row)| row.hostname == hostname)
            .map_or(0, |(id, _)| *id)
    }

    fn leave(&mut self, hostname: &str) {
        self.set_departure(self.id(hostname), Departure::Leaving);
    }

    fn drain(&mut self, hostname: &str) {
        self.set_departure(self.id(hostname), Departure::Draining);
    }

    fn set_departure(&mut self, id: u64, departure: Departure) {
        self.view.rows.get_mut(&id).unwrap().departure = departure;
    }

    fn set_active(&mut self, id: u64, active: bool) {
        let matched = self.view.commit;
        self.view.progress.insert(id, Progress { matched, active });
    }

    fn plan(&mut self) -> Decision {
        self.policy.handle_view(self.now, &self.view);
        let action = self.policy.poll_action();
        assert_eq!(self.policy.poll_action(), None);
        match (action, self.policy.blocked()) {
            (None, None) => Decision::Idle,
            (Some(action), None) => Decision::Act(action),
            (None, Some(blocked)) => Decision::Blocked(blocked),
            (Some(_), Some(_)) => panic!("an action despite a block"),
        }
    }

    fn act(&mut self, action: Action) {
        let view = &mut self.view;
        match action {
            Action::Add(id) => assert!(view.learners.insert(id)),
            Action::Promote(id) => {
                assert!(view.learners.remove(&id));
                view.voters.insert(id);
            }
            Action::Demote(id) => {
                assert!(view.voters.remove(&id));
                view.learners.insert(id);
            }
            Action::Remove(id) => assert!(view.learners.remove(&id)),
            Action::Transfer(id) => {
                assert!(view.voters.contains(&id));
                view.leader = id;
                self.policy = Policy::new();
            }
            Action::DeleteRow(id) => assert!(view.rows.remove(&id).is_some()),
            Action::ClearMark(id) => {
                assert_eq!(id, view.leader);
                assert_eq!(view.departure(id), Departure::Leaving);
                self.set_departure(id, Departure::Staying);
            }
            Action::EndDrain(id) => {
                assert_eq!(view.departure(id), Departure::Draining);
                self.set_departure(id, Departure::Staying);
            }
        }
        assert!(self.view.voters.contains(&self.view.leader));
        assert!(self.view.voters.len() <= MAX_VOTERS);
        assert!(self.has_quorum(), "{:?}", self.view);
    }

    /// Whether a majority of the voters is active.
    fn has_quorum(&self) -> bool {
        let voters = &self.view.voters;
        2 * voters.iter().filter(|id| self.view.active(**id)).count() > voters.len()
    }

    /// Ticks until no action is left, and returns the actions.
    fn run_until_idle(&mut self) -> Vec<Action> {
        let mut done = Vec::new();
        let mut idle = 0;
        // A learner is eligible two ticks after it was added at the latest.
        while idle < 3 {
            self.now += TICK;
            match self.plan() {
                Decision::Act(action) => {
                    self.act(action);
                    done.push(action);
                    idle = 0;
                }
                Decision::Idle | Decision::Blocked(_) => idle += 1,
            }
            assert!(done.len() < 200, "does not converge: {done:?}");
        }
        done
    }

    fn voters(&self) -> String {
        self.names(&self.view.voters)
    }

    fn learners(&self) -> String {
        self.names(&self.view.learners)
    }

    fn names(&self, ids: &BTreeSet<u64>) -> String {
        let mut names: Vec<&str> = ids
            .iter()
            .map(|id| self.view.rows.get(id).map_or("?", |row| &row.hostname))
            .collect();
        names.sort_unstable();
        names.concat()
    }
}

const NAMES: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];

#[test]
fn target_voters_match_specified_table() {
    let targets: Vec<usize> = (0..=12).map(target_voters).collect();
    assert_eq!(targets, [0, 1, 1, 3, 3, 5, 5, 7, 7, 7, 7, 7, 7]);
}

#[test]
fn cluster_grows_to_nine_and_shrinks_to_one() {
    let mut cluster = Cluster::new();
    let up = [
        "a", "a", "abc", "abc", "abcde", "abcde", "abcdefg", "abcdefg", "abcdefg",
    ];
    for (name, voters) in NAMES.iter().zip(up) {
        if *name != "a" {
            cluster.join(name);
        }
        cluster.run_until_idle();
        assert_eq!(cluster.voters(), voters);
    }
    assert_eq!(cluster.learners(), "hi");

    let down = [
        ("i", "abcdefg"),
        ("c", "abdefgh"),
        ("h", "abdef"),
        ("a", "bdefg"), // the leader transfers leadership; a learner replaces its vote
        ("g", "bde"),
        ("d", "bef"),
        ("e", "b"),
        ("f", "b"),
    ];
    for (name, voters) in down {
        cluster.leave(name);
        cluster.run_until_idle();
        assert_eq!(cluster.voters(), voters, "after {name} left");
        assert_eq!(cluster.id(name), 0);
    }
    assert_eq!(cluster.learners(), "");
}

#[test]
fn two_learners_are_promoted_one_after_another() {
    let mut cluster = Cluster::of(2);
    assert_eq!(
        (cluster.voters(), cluster.learners()),
        ("a".into(), "b".into())
    );
    cluster.join("c");
    let done = cluster.run_until_idle();
    let expected = [Action::Add(3), Action::Promote(2), Action::Promote(3)];
    assert_eq!(done, expected);
}

#[test]
fn change_in_progress_blocks_next_action() {
    let mut cluster = Cluster::new();
    cluster.join("b");
    cluster.view.changing = true;
    assert_eq!(cluster.plan(), Decision::Idle);
    cluster.view.changing = false;
    assert_eq!(cluster.plan(), Decision::Act(Action::Add(2)));
}

#[test]
fn only_known_active_current_learner_is_promoted() {
    let cluster = || {
        let mut cluster = Cluster::of(2);
        cluster.join("c");
        cluster.view.commit = 1000;
        cluster.set_active(2, true);
        cluster.set_active(3, true);
        assert_eq!(cluster.plan(), Decision::Act(Action::Add(3)));
        cluster.act(Action::Add(3));
        // The age of `c` counts from here.
        assert_eq!(cluster.plan(), Decision::Idle);
        cluster
    };
    let promote_b = Decision::Act(Action::Promote(2));
    let almost = MIN_LEARNER_AGE - Duration::from_millis(1);
    type Case = (&'static str, fn(&mut Cluster), Duration, Decision);
    let cases: [Case; 6] = [
        ("too new", |_| (), almost, Decision::Idle),
        ("settled", |_| (), MIN_LEARNER_AGE, promote_b),
        (
            "silent",
            |w| w.set_active(3, false),
            MIN_LEARNER_AGE,
            Decision::Idle,
        ),
        (
            "far behind",
            |w| w.view.progress.get_mut(&3).unwrap().matched = 1000 - MAX_LAG - 1,
            MIN_LEARNER_AGE,
            Decision::Idle,
        ),
        (
            "close enough",
            |w| w.view.progress.get_mut(&3).unwrap().matched = 1000 - MAX_LAG,
            MIN_LEARNER_AGE,
            promote_b,
        ),
        (
            "a new leader",
            |w| {
                w.policy = Policy::new();
                w.plan();
            },
            Duration::from_secs(1),
            Decision::Idle,
        ),
    ];
    for (name, change, later, expected) in cases {
        let mut cluster = cluster();
        change(&mut cluster);
        cluster.now += later;
        assert_eq!(cluster.plan(), expected, "{name}");
    }
}

#[test]
fn leadership_goes_to_voter_with_longest_log() {
    let mut cluster = Cluster::of(3);
    cluster.view.commit = 50;
    cluster.set_active(3, true);
    cluster.leave("a");
    assert_eq!(cluster.plan(), Decision::Act(Action::Transfer(3)));
    cluster.set_active(2, true);
    assert_eq!(cluster.plan(), Decision::Act(Action::Transfer(2)));
    cluster.set_active(2, false);
    assert_eq!(cluster.plan(), Decision::Act(Action::Transfer(3)));
}

#[test]
fn interrupted_change_is_completed() {
    // Row without configuration entry: an interrupted join.
    let mut cluster = Cluster::of(3);
    cluster.join("d");
    assert_eq!(cluster.plan(), Decision::Act(Action::Add(4)));
    // Configuration entry without row: an interrupted removal.
    let mut cluster = Cluster::of(4);
    cluster.view.rows.remove(&4);
    assert_eq!(cluster.run_until_idle(), [Action::Remove(4)]);
    let mut cluster = Cluster::of(4);
    cluster.view.rows.remove(&2);
    cluster.run_until_idle();
    assert_eq!(cluster.voters(), "acd");
    // Row of a leaving member without configuration entry.
    let mut cluster = Cluster::of(2);
    cluster.leave("b");
    cluster.view.learners.clear();
    assert_eq!(cluster.run_until_idle(), [Action::DeleteRow(2)]);
}

#[test]
fn rows_contain_members_with_raft_id() {
    let mut state = State::default();
    for (host, raft_id, draining) in [("a", 1, false), ("b", 2, true), ("c", 0, false)] {
        let node = v1::Node {
            hostname: host.to_owned(),
            raft_id,
            draining,
            ..Default::default()
        };
        state.nodes.insert(host.into(), node.into());
    }
    let rows = rows(&state);
    let rows: Vec<_> = rows
        .iter()
        .map(|(id, row)| (*id, &*row.hostname, row.departure))
        .collect();
    let expected = [(1, "a", Departure::Staying), (2, "b", Departure::Leaving)];
    assert_eq!(rows, expected);
}
