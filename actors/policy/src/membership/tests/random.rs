//! Random changes of members.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Join,
    Drain(usize),
    Leave(usize),
    Silence(usize),
    Wake(usize),
    NewLeader(usize),
    LoseRow(usize),
    Tick,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => Just(Op::Join),
        1 => (0..16_usize).prop_map(Op::Drain),
        2 => (0..16_usize).prop_map(Op::Leave),
        1 => (0..16_usize).prop_map(Op::Silence),
        1 => (0..16_usize).prop_map(Op::Wake),
        1 => (0..16_usize).prop_map(Op::NewLeader),
        1 => (0..16_usize).prop_map(Op::LoseRow),
        8 => Just(Op::Tick),
    ]
}

fn pick(ids: &BTreeSet<u64>, at: usize) -> Option<u64> {
    ids.iter().copied().nth(at % ids.len().max(1))
}

proptest! {
    /// `act` checks after every step that the leader is a voter, that there are at most seven
    /// voters and that a majority of them is active.
    #[test]
    fn random_changes_converge_on_target_voters(ops in prop::collection::vec(op(), 0..120)) {
        let mut cluster = Cluster::new();
        for op in ops {
            let all: BTreeSet<u64> = cluster.view.rows.keys().copied().collect();
            match op {
                Op::Join => cluster.join(&format!("n{:03}", (cluster.next_id * 7919) % 1000)),
                // At least one member has to stay.
                Op::Drain(at) => {
                    let staying = all.iter().filter(|id| !cluster.view.is_marked(**id)).count();
                    let unmarked = |id: &u64| !cluster.view.is_marked(*id);
                    if let Some(id) = pick(&all, at).filter(unmarked).filter(|_| staying > 1) {
                        cluster.set_departure(id, Departure::Draining);
                    }
                }
                Op::Leave(at) => {
                    let staying = all.iter().filter(|id| !cluster.view.is_marked(**id)).count();
                    let marked = |id: &u64| cluster.view.is_marked(*id);
                    if let Some(id) = pick(&all, at).filter(|id| staying > 1 || marked(id)) {
                        cluster.set_departure(id, Departure::Leaving);
                    }
                }
                Op::Silence(at) => {
                    if let Some(id) = pick(&all, at).filter(|id| *id != cluster.view.leader) {
                        cluster.set_active(id, false);
                        if !cluster.has_quorum() {
                            cluster.set_active(id, true);
                        }
                    }
                }
                Op::Wake(at) => {
                    if let Some(id) = pick(&all, at) {
                        cluster.set_active(id, true);
                    }
                }
                Op::NewLeader(at) => {
                    if let Some(id) = pick(&cluster.view.voters, at)
                        && cluster.view.active(id)
                    {
                        cluster.act(Action::Transfer(id));
                    }
                }
                Op::LoseRow(at) => {
                    let staying = all.iter().filter(|id| !cluster.view.is_marked(**id)).count();
                    if let Some(id) = pick(&all, at).filter(|_| staying > 1) {
                        cluster.view.rows.remove(&id);
                    }
                }
                Op::Tick => {
                    cluster.now += TICK;
                    if let Decision::Act(action) = cluster.plan() {
                        cluster.act(action);
                    }
                }
            }
        }
        let known: BTreeSet<u64> =
            cluster.view.rows.keys().chain(&cluster.view.voters).copied().collect();
        for id in known {
            cluster.set_active(id, true);
            if cluster.view.departure(id) == Departure::Draining {
                cluster.set_departure(id, Departure::Leaving);
            }
        }
        // `Leave` and `LoseRow` count rows, so at least one member stays.
        cluster.run_until_idle();
        let view = &cluster.view;
        let members: BTreeSet<u64> = view.voters.union(&view.learners).copied().collect();
        let rows: BTreeSet<u64> = view.rows.keys().copied().collect();
        prop_assert_eq!(members, rows);
        prop_assert!(view.rows.values().all(|row| row.departure == Departure::Staying));
        prop_assert_eq!(view.voters.len(), target_voters(view.rows.len()));
        prop_assert_eq!(cluster.plan(), Decision::Idle);
    }
}
