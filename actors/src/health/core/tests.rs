use proptest::prelude::*;

use super::*;

const TICK: Duration = Duration::from_millis(250);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A core, its clock and a state that takes what it proposes.
struct World {
    core: Core,
    now: Instant,
    began: Instant,
    state: BTreeMap<String, NodeStatus>,
    /// Proposals so far, with their time.
    log: Vec<(Duration, String, NodeStatus)>,
    /// Proposals that will be refused.
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

    /// Lets time pass in ticks, while these members beat every two seconds.
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
fn a_member_that_stopped_applying_the_log_is_unhealthy_though_it_is_heard() {
    let mut world = World::leader(&[("a", NodeStatus::Ready)]);
    world.run(4 * BEAT, &["a"]);
    assert_eq!(world.said(), []);
    world.tell(Input::Halted("a".to_owned(), true));
    world.run(10 * BEAT, &["a"]);
    assert_eq!(world.said(), [("a", NodeStatus::Unhealthy)]);
    // A newer version goes on.
    world.tell(Input::Halted("a".to_owned(), false));
    world.state.insert("a".to_owned(), NodeStatus::Ready);
    world.show();
    world.run(10 * BEAT, &["a"]);
    assert_eq!(world.said().len(), 1);
}

#[test]
fn a_silent_member_is_unhealthy_then_offline_each_said_once() {
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
fn statuses_that_say_something_else_stay() {
    for status in [Joining, IsolationUnavailable, DrainTimeout, Offline] {
        let mut world = World::leader(&[("a", status)]);
        world.run(ms(60_000), &[]);
        assert_eq!(world.said(), [], "{status:?}");
    }
}

#[test]
fn a_member_that_was_never_heard_is_counted_from_when_it_is_known() {
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
fn a_removed_member_is_forgotten_and_this_node_never_judged() {
    let mut world = World::leader(&[("a", Ready)]);
    world.run(ms(7_000), &[]);
    world.state.remove("a");
    world.show();
    world.run(ms(60_000), &[]);
    assert_eq!(world.said(), []);
}

#[test]
fn a_new_leader_goes_on_from_what_it_heard_itself() {
    let mut world = World::new(&[("old", Ready), ("b", Ready)]);
    world.run(ms(10_000), &["old", "b"]);
    // The leader dies; two and a half seconds later this node leads.
    world.run(ms(2_500), &["b"]);
    world.tell(Input::Leads(true));
    world.run(ms(7_500), &["b"]);
    assert_eq!(world.said(), [("old", Unhealthy), ("old", Offline)]);
}

#[test]
fn only_a_leader_says_something() {
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
fn what_was_not_written_is_proposed_again_at_the_next_tick() {
    let mut world = World::leader(&[("a", Ready)]);
    world.refuse = 3;
    world.run(ms(9_250), &[]);
    assert_eq!(world.said(), [("a", Unhealthy); 4]);
    assert_eq!(world.state["a"], Unhealthy);
}

#[test]
fn a_proposal_in_flight_is_not_repeated_unless_leadership_was_lost_over_it() {
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
fn the_time_this_process_was_paused_is_nobodys_silence() {
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
fn a_judge_that_stutters_still_finds_the_dead() {
    let mut world = World::leader(&[("a", Ready)]);
    for _ in 0..30 {
        world.now += ms(900);
        world.tell(Input::Tick);
    }
    assert_eq!(world.said(), [("a", Unhealthy), ("a", Offline)]);
}

#[test]
fn a_member_heard_again_stays_unhealthy_until_it_says_otherwise() {
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

/// One beat of the member: how long it is paused before it sends, how long the way takes, and
/// whether it is lost.
type Beat = (u64, u64, bool);

#[test]
fn a_pause_of_almost_six_seconds_just_before_a_beat_is_no_illness() {
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

/// When these beats arrive: a process that was paused sends the beat it owes at once, and goes
/// on every two seconds from then.
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
    fn pauses_below_six_seconds_and_slow_ways_are_no_illness(beats in quiet_beats(6_000)) {
        let mut world = World::leader(&[("a", Ready)]);
        for at in arrivals(&beats) {
            let gap = (world.began + ms(at)).saturating_duration_since(world.now);
            world.run(gap, &[]);
            world.tell(Input::Heard("a".to_owned()));
        }
        prop_assert_eq!(world.said(), []);
    }

    #[test]
    fn no_verdict_without_the_silence_it_names(
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
    fn a_dead_member_is_offline_within_ten_seconds_and_a_tick(alive in 0_u64..30) {
        let mut world = World::leader(&[("a", Ready)]);
        world.run(ms(alive * 1_000), &["a"]);
        let died = world.now - world.began;
        world.run(ms(10_250), &[]);
        let (at, _, status) = world.log.last().unwrap();
        prop_assert_eq!(*status, Offline);
        prop_assert!(*at - died <= OFFLINE_AFTER + TICK);
    }
}
