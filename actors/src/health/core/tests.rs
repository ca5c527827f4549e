use proptest::prelude::*;

use super::*;

const TICK: Duration = Duration::from_millis(250);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Core with a clock and a state that accepts its proposals.
struct World {
    core: Core,
    now: Instant,
    began: Instant,
    state: BTreeMap<String, NodeStatus>,
    /// Proposals so far, with their times.
    log: Vec<(Duration, String, NodeStatus)>,
    /// Number of proposals to reject.
    refuse: usize,
}

impl World {
    fn new(members: &[(&str, NodeStatus)]) -> Self {
        let now = Instant::now();
        let mut world = Self {
            core: Core::new("me"),
            now,
            began: now,
            state: BTreeMap::from([("me".to_owned(), NodeStatus::Ready)]),
            log: Vec::new(),
            refuse: 0,
        };
        let members = members.iter().map(|(host, s)| ((*host).to_owned(), *s));
        world.state.extend(members);
        world.show();
        world
    }

    fn leader(members: &[(&str, NodeStatus)]) -> Self {
        let mut world = Self::new(members);
        world.tell(Input::Leads(true));
        world
    }

    fn show(&mut self) {
        self.tell(Input::Members(self.state.clone()));
    }

    fn tell(&mut self, input: Input) {
        for effect in self.core.handle(self.now, input) {
            let Effect::Propose { host, status, .. } = effect;
            self.log.push((self.now - self.began, host.clone(), status));
            if self.refuse > 0 {
                self.refuse -= 1;
            } else {
                self.state.insert(host.clone(), status);
                self.show();
            }
            self.tell(Input::Proposed(host));
        }
    }

    /// Advances the time in ticks, with a heartbeat of each of these members every two seconds.
    fn run(&mut self, time: Duration, beating: &[&str]) {
        let until = self.now + time;
        while self.now < until {
            self.now += TICK;
            let ran = (self.now - self.began).as_millis();
            let beat = ran.is_multiple_of(BEAT.as_millis());
            for host in beating.iter().filter(|_| beat) {
                self.tell(Input::Heard((*host).to_owned()));
            }
            self.tell(Input::Tick);
        }
    }

    fn said(&self) -> Vec<(&str, NodeStatus)> {
        let entries = self.log.iter();
        entries.map(|(_, host, s)| (host.as_str(), *s)).collect()
    }

    fn heard(&self) -> Vec<&str> {
        self.core.heard().collect()
    }
}

use NodeStatus::{DrainTimeout, IsolationUnavailable, Joining, Offline, Ready, Unhealthy};

#[test]
fn halted_member_is_unhealthy_despite_heartbeats() {
    let mut world = World::leader(&[("a", NodeStatus::Ready)]);
    world.run(4 * BEAT, &["a"]);
    assert_eq!(world.said(), []);
    world.tell(Input::Halted("a".to_owned(), true));
    world.run(10 * BEAT, &["a"]);
    assert_eq!(world.said(), [("a", NodeStatus::Unhealthy)]);
    // A newer version applies the entry and continues.
    world.tell(Input::Halted("a".to_owned(), false));
    world.state.insert("a".to_owned(), NodeStatus::Ready);
    world.show();
    world.run(10 * BEAT, &["a"]);
    assert_eq!(world.said().len(), 1);
}

#[test]
fn silent_member_becomes_unhealthy_then_offline_once() {
    let mut world = World::leader(&[("a", Ready), ("b", Ready)]);
    world.run(ms(20_000), &["a", "b"]);
    assert_eq!(world.said(), []);
    world.run(ms(60_000), &["b"]);
    let times: Vec<_> = world.log.iter().map(|(at, ..)| at.as_millis()).collect();
    assert_eq!(world.said(), [("a", Unhealthy), ("a", Offline)]);
    assert_eq!(times, [28_500, 30_000]);
    assert_eq!(world.heard(), ["b"]);
}

#[test]
fn other_statuses_stay() {
    for status in [Joining, IsolationUnavailable, DrainTimeout, Offline] {
        let mut world = World::leader(&[("a", status)]);
        world.run(ms(60_000), &[]);
        assert_eq!(world.said(), [], "{status:?}");
    }
}

#[test]
fn silence_of_new_member_counts_from_listing() {
    let mut world = World::leader(&[]);
    world.run(ms(60_000), &[]);
    world.state.insert("late".to_owned(), Ready);
    world.show();
    assert_eq!(world.heard(), Vec::<&str>::new());
    world.run(ms(8_000), &[]);
    assert_eq!(world.said(), []);
    world.run(ms(1_000), &[]);
    assert_eq!(world.said(), [("late", Unhealthy)]);
}

#[test]
fn removed_member_is_forgotten() {
    let mut world = World::leader(&[("a", Ready)]);
    world.run(ms(7_000), &[]);
    world.state.remove("a");
    world.show();
    world.run(ms(60_000), &[]);
    assert_eq!(world.said(), []);
}

#[test]
fn new_leader_continues_from_own_observations() {
    let mut world = World::new(&[("old", Ready), ("b", Ready)]);
    world.run(ms(10_000), &["old", "b"]);
    // The leader dies; this node is elected two and a half seconds later.
    world.run(ms(2_500), &["b"]);
    world.tell(Input::Leads(true));
    world.run(ms(7_500), &["b"]);
    assert_eq!(world.said(), [("old", Unhealthy), ("old", Offline)]);
}

#[test]
fn only_leader_proposes() {
    let mut world = World::new(&[("a", Ready)]);
    world.run(ms(60_000), &[]);
    assert_eq!(world.said(), []);
    world.tell(Input::Leads(true));
    world.run(TICK, &[]);
    assert_eq!(world.said(), [("a", Unhealthy), ("a", Offline)]);
    world.tell(Input::Leads(false));
    world.state.insert("a".to_owned(), Ready);
    world.show();
    world.run(ms(60_000), &[]);
    assert_eq!(world.log.len(), 2);
}

#[test]
fn failed_proposal_is_repeated_at_next_tick() {
    let mut world = World::leader(&[("a", Ready)]);
    world.refuse = 3;
    world.run(ms(9_250), &[]);
    assert_eq!(world.said(), [("a", Unhealthy); 4]);
    assert_eq!(world.state["a"], Unhealthy);
}

#[test]
fn proposal_in_flight_repeats_only_after_leadership_loss() {
    let mut core = Core::new("me");
    let mut now = Instant::now();
    let members = BTreeMap::from([("a".to_owned(), Ready)]);
    core.handle(now, Input::Members(members));
    core.handle(now, Input::Leads(true));
    let mut asked = 0;
    for _ in 0..200 {
        now += TICK;
        asked += core.handle(now, Input::Tick).len();
    }
    assert_eq!(asked, 1);
    assert_eq!(core.handle(now, Input::Leads(false)), []);
    assert_eq!(core.handle(now, Input::Leads(true)).len(), 1);
}

#[test]
fn own_pause_does_not_count_as_silence() {
    for pause in [1_500, 5_000, 8_000, 60_000, 3_600_000] {
        let mut world = World::leader(&[("a", Ready)]);
        world.run(ms(20_000), &["a"]);
        world.now += ms(pause);
        world.tell(Input::Tick);
        world.run(ms(2_000), &[]);
        world.tell(Input::Heard("a".to_owned()));
        world.run(ms(2_000), &[]);
        assert_eq!(world.said(), [], "{pause} ms");
    }
}

#[test]
fn irregular_ticks_still_detect_dead_member() {
    let mut world = World::leader(&[("a", Ready)]);
    for _ in 0..30 {
        world.now += ms(900);
        world.tell(Input::Tick);
    }
    assert_eq!(world.said(), [("a", Unhealthy), ("a", Offline)]);
}

#[test]
fn returning_member_stays_unhealthy_until_state_changes() {
    let mut world = World::leader(&[("a", Ready)]);
    world.run(ms(9_000), &[]);
    world.run(ms(60_000), &["a"]);
    assert_eq!(world.said(), [("a", Unhealthy)]);
    world.state.insert("a".to_owned(), Ready);
    world.show();
    world.run(ms(60_000), &["a"]);
    assert_eq!(world.log.len(), 1);
    world.run(ms(12_000), &[]);
    assert_eq!(world.said()[1..], [("a", Unhealthy), ("a", Offline)]);
}

/// One heartbeat: the pause before it is sent (ms), the network delay (ms), and whether it is lost.
type Beat = (u64, u64, bool);

#[test]
fn pause_just_under_six_seconds_is_tolerated() {
    for pause in [5_000, 5_500, 5_999] {
        let mut world = World::leader(&[("a", Ready)]);
        world.run(ms(20_000), &["a"]);
        world.run(ms(2_000 + pause + 200), &[]);
        world.tell(Input::Heard("a".to_owned()));
        world.run(ms(20_000), &["a"]);
        assert_eq!(world.said(), [], "{pause} ms");
    }
}

fn quiet_beats(longest_pause: u64) -> impl Strategy<Value = Vec<Beat>> {
    let beat = (
        prop_oneof![8 => Just(0), 1 => 0..longest_pause],
        0_u64..=200,
        Just(false),
    );
    prop::collection::vec(beat, 1..60)
}

/// Arrival times of these heartbeats: a process sends an overdue heartbeat right after its pause,
/// then one every two seconds.
fn arrivals(beats: &[Beat]) -> Vec<u64> {
    let mut sent = 0;
    let mut arrivals = Vec::new();
    for (pause, way, lost) in beats {
        sent += 2_000 + pause;
        if !lost {
            arrivals.push(sent + way);
        }
    }
    arrivals.sort_unstable();
    arrivals
}

proptest! {
    #[test]
    fn short_pauses_and_network_delay_are_tolerated(beats in quiet_beats(6_000)) {
        let mut world = World::leader(&[("a", Ready)]);
        for at in arrivals(&beats) {
            let gap = (world.began + ms(at)).saturating_duration_since(world.now);
            world.run(gap, &[]);
            world.tell(Input::Heard("a".to_owned()));
        }
        prop_assert_eq!(world.said(), []);
    }

    #[test]
    fn status_change_implies_minimum_silence(
        gaps in prop::collection::vec((0_u64..4_000, any::<bool>()), 1..80),
    ) {
        let mut world = World::leader(&[("a", Ready)]);
        let mut heard = world.now;
        let mut seen = 0;
        for (gap, beats) in gaps {
            world.now += ms(gap);
            world.tell(if beats { Input::Heard("a".to_owned()) } else { Input::Tick });
            if beats {
                heard = world.now;
            }
            for (_, _, status) in &world.log[seen..] {
                let least = if *status == Offline { OFFLINE_AFTER } else { UNHEALTHY_AFTER };
                prop_assert!(world.now - heard >= least);
            }
            seen = world.log.len();
        }
    }

    #[test]
    fn dead_member_is_offline_within_ten_seconds(alive in 0_u64..30) {
        let mut world = World::leader(&[("a", Ready)]);
        world.run(ms(alive * 1_000), &["a"]);
        let died = world.now - world.began;
        world.run(ms(10_250), &[]);
        let (at, _, status) = world.log.last().unwrap();
        prop_assert_eq!(*status, Offline);
        prop_assert!(*at - died <= OFFLINE_AFTER + TICK);
    }
}
