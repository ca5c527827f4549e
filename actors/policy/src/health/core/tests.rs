use proptest::prelude::*;

use super::*;

const TICK: Duration = Duration::from_millis(250);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Core with a clock and a state that accepts its proposals.
struct Fixture {
    core: Core,
    now: Instant,
    began: Instant,
    state: BTreeMap<String, NodeStatus>,
    /// Proposals so far, with their times.
    log: Vec<(Duration, String, NodeStatus)>,
    /// Number of proposals to reject.
    refuse: usize,
}

impl Fixture {
    fn new(members: &[(&str, NodeStatus)]) -> Self {
        let now = Instant::now();
        let mut fixture = Self {
            core: Core::new("me"),
            now,
            began: now,
            state: BTreeMap::from([("me".to_owned(), NodeStatus::Ready)]),
            log: Vec::new(),
            refuse: 0,
        };
        let members = members.iter().map(|(host, s)| ((*host).to_owned(), *s));
        fixture.state.extend(members);
        fixture.show();
        fixture
    }

    fn leader(members: &[(&str, NodeStatus)]) -> Self {
        let mut fixture = Self::new(members);
        fixture.lead(true);
        fixture
    }

    fn show(&mut self) {
        self.core.handle_members(self.now, self.state.clone());
        self.drive();
    }

    fn lead(&mut self, leads: bool) {
        self.core.handle_leads(self.now, leads);
        self.drive();
    }

    fn beat(&mut self, host: &str) {
        self.core.handle_heartbeat(self.now, host);
        self.drive();
    }

    fn halt(&mut self, host: &str, halted: bool) {
        self.core.handle_halted(self.now, host, halted);
        self.drive();
    }

    fn tick(&mut self) {
        self.core.handle_tick(self.now);
        self.drive();
    }

    /// Carries out the actions.
    fn drive(&mut self) {
        while let Some(Action::Propose { host, status, .. }) = self.core.poll_action() {
            self.log.push((self.now - self.began, host.clone(), status));
            if self.refuse > 0 {
                self.refuse -= 1;
            } else {
                self.state.insert(host.clone(), status);
                self.show();
            }
            self.core.handle_proposed(self.now, &host);
        }
    }

    /// Advances the time in ticks, with a heartbeat of each of these members every two seconds.
    fn run(&mut self, time: Duration, beating: &[&str]) {
        let until = self.now + time;
        while self.now < until {
            self.now += TICK;
            let ran = (self.now - self.began).as_millis();
            let beat = ran.is_multiple_of(HEARTBEAT_INTERVAL.as_millis());
            for host in beating.iter().filter(|_| beat) {
                self.beat(host);
            }
            self.tick();
        }
    }

    fn said(&self) -> Vec<(&str, NodeStatus)> {
        let entries = self.log.iter();
        entries.map(|(_, host, s)| (host.as_str(), *s)).collect()
    }

    fn live(&self) -> Vec<&str> {
        self.core.live().collect()
    }
}

use NodeStatus::{DrainTimeout, IsolationUnavailable, Joining, Offline, Ready, Unhealthy};

#[test]
fn halted_member_is_unhealthy_despite_heartbeats() {
    let mut fixture = Fixture::leader(&[("a", NodeStatus::Ready)]);
    fixture.run(4 * HEARTBEAT_INTERVAL, &["a"]);
    assert_eq!(fixture.said(), []);
    fixture.halt("a", true);
    fixture.run(10 * HEARTBEAT_INTERVAL, &["a"]);
    assert_eq!(fixture.said(), [("a", NodeStatus::Unhealthy)]);
    // A newer version applies the entry and continues.
    fixture.halt("a", false);
    fixture.state.insert("a".to_owned(), NodeStatus::Ready);
    fixture.show();
    fixture.run(10 * HEARTBEAT_INTERVAL, &["a"]);
    assert_eq!(fixture.said().len(), 1);
}

#[test]
fn silent_member_becomes_unhealthy_then_offline_once() {
    let mut fixture = Fixture::leader(&[("a", Ready), ("b", Ready)]);
    fixture.run(ms(20_000), &["a", "b"]);
    assert_eq!(fixture.said(), []);
    fixture.run(ms(60_000), &["b"]);
    let times: Vec<_> = fixture.log.iter().map(|(at, ..)| at.as_millis()).collect();
    assert_eq!(fixture.said(), [("a", Unhealthy), ("a", Offline)]);
    assert_eq!(times, [28_500, 30_000]);
    assert_eq!(fixture.live(), ["b"]);
}

#[test]
fn silent_member_without_isolation_becomes_offline() {
    let mut fixture = Fixture::leader(&[("a", IsolationUnavailable)]);
    fixture.run(ms(20_000), &["a"]);
    assert_eq!(fixture.said(), []);
    fixture.run(ms(60_000), &[]);
    assert_eq!(fixture.said(), [("a", Unhealthy), ("a", Offline)]);
}

#[test]
fn other_statuses_stay() {
    for status in [Joining, DrainTimeout, Offline] {
        let mut fixture = Fixture::leader(&[("a", status)]);
        fixture.run(ms(60_000), &[]);
        assert_eq!(fixture.said(), [], "{status:?}");
    }
}

#[test]
fn silence_of_new_member_counts_from_listing() {
    let mut fixture = Fixture::leader(&[]);
    fixture.run(ms(60_000), &[]);
    fixture.state.insert("late".to_owned(), Ready);
    fixture.show();
    assert_eq!(fixture.live(), Vec::<&str>::new());
    fixture.run(ms(8_000), &[]);
    assert_eq!(fixture.said(), []);
    fixture.run(ms(1_000), &[]);
    assert_eq!(fixture.said(), [("late", Unhealthy)]);
}

#[test]
fn removed_member_is_forgotten() {
    let mut fixture = Fixture::leader(&[("a", Ready)]);
    fixture.run(ms(7_000), &[]);
    fixture.state.remove("a");
    fixture.show();
    fixture.run(ms(60_000), &[]);
    assert_eq!(fixture.said(), []);
}

#[test]
fn new_leader_continues_from_own_observations() {
    let mut fixture = Fixture::new(&[("old", Ready), ("b", Ready)]);
    fixture.run(ms(10_000), &["old", "b"]);
    // The leader dies; this node is elected two and a half seconds later.
    fixture.run(ms(2_500), &["b"]);
    fixture.lead(true);
    fixture.run(ms(7_500), &["b"]);
    assert_eq!(fixture.said(), [("old", Unhealthy), ("old", Offline)]);
}

#[test]
fn only_leader_proposes() {
    let mut fixture = Fixture::new(&[("a", Ready)]);
    fixture.run(ms(60_000), &[]);
    assert_eq!(fixture.said(), []);
    fixture.lead(true);
    fixture.run(TICK, &[]);
    assert_eq!(fixture.said(), [("a", Unhealthy), ("a", Offline)]);
    fixture.lead(false);
    fixture.state.insert("a".to_owned(), Ready);
    fixture.show();
    fixture.run(ms(60_000), &[]);
    assert_eq!(fixture.log.len(), 2);
}

#[test]
fn failed_proposal_is_repeated_at_next_tick() {
    let mut fixture = Fixture::leader(&[("a", Ready)]);
    fixture.refuse = 3;
    fixture.run(ms(9_250), &[]);
    assert_eq!(fixture.said(), [("a", Unhealthy); 4]);
    assert_eq!(fixture.state["a"], Unhealthy);
}

#[test]
fn proposal_in_flight_repeats_only_after_leadership_loss() {
    let mut core = Core::new("me");
    let mut now = Instant::now();
    let members = BTreeMap::from([("a".to_owned(), Ready)]);
    core.handle_members(now, members);
    core.handle_leads(now, true);
    let actions = |core: &mut Core| std::iter::from_fn(|| core.poll_action()).count();
    let mut asked = actions(&mut core);
    for _ in 0..200 {
        now += TICK;
        core.handle_tick(now);
        asked += actions(&mut core);
    }
    assert_eq!(asked, 1);
    core.handle_leads(now, false);
    assert_eq!(core.poll_action(), None);
    core.handle_leads(now, true);
    assert_eq!(actions(&mut core), 1);
}

#[test]
fn own_pause_does_not_count_as_silence() {
    for pause in [1_500, 5_000, 8_000, 60_000, 3_600_000] {
        let mut fixture = Fixture::leader(&[("a", Ready)]);
        fixture.run(ms(20_000), &["a"]);
        fixture.now += ms(pause);
        fixture.tick();
        fixture.run(ms(2_000), &[]);
        fixture.beat("a");
        fixture.run(ms(2_000), &[]);
        assert_eq!(fixture.said(), [], "{pause} ms");
    }
}

#[test]
fn repeated_short_pauses_do_not_add_up() {
    let mut fixture = Fixture::leader(&[("a", Ready)]);
    fixture.run(ms(20_000), &["a"]);
    // Each pause is too short to restart the silence; all of them last for 48 seconds.
    for _ in 0..8 {
        fixture.now += PAUSE_THRESHOLD - ms(1);
        fixture.tick();
    }
    assert_eq!(fixture.said(), []);
    // Of each pause one second counts.
    fixture.run(ms(500), &[]);
    assert_eq!(fixture.said(), [("a", Unhealthy)]);
}

#[test]
fn long_pause_restarts_silence_of_members() {
    let mut fixture = Fixture::leader(&[("a", Ready)]);
    fixture.run(ms(20_000), &["a"]);
    fixture.run(UNHEALTHY_AFTER - ms(500), &[]);
    fixture.now += PAUSE_THRESHOLD;
    fixture.tick();
    assert_eq!(fixture.said(), [], "its connections may have broken here");
    fixture.run(UNHEALTHY_AFTER - TICK, &[]);
    assert_eq!(fixture.said(), []);
    fixture.run(TICK, &[]);
    assert_eq!(fixture.said(), [("a", Unhealthy)]);
}

#[test]
fn irregular_ticks_still_detect_dead_member() {
    let mut fixture = Fixture::leader(&[("a", Ready)]);
    for _ in 0..30 {
        fixture.now += ms(900);
        fixture.tick();
    }
    assert_eq!(fixture.said(), [("a", Unhealthy), ("a", Offline)]);
}

#[test]
fn returning_member_stays_unhealthy_until_state_changes() {
    let mut fixture = Fixture::leader(&[("a", Ready)]);
    fixture.run(ms(9_000), &[]);
    fixture.run(ms(60_000), &["a"]);
    assert_eq!(fixture.said(), [("a", Unhealthy)]);
    fixture.state.insert("a".to_owned(), Ready);
    fixture.show();
    fixture.run(ms(60_000), &["a"]);
    assert_eq!(fixture.log.len(), 1);
    fixture.run(ms(12_000), &[]);
    assert_eq!(fixture.said()[1..], [("a", Unhealthy), ("a", Offline)]);
}

/// One heartbeat: the pause before it is sent (ms), the network delay (ms), and whether it is lost.
type Beat = (u64, u64, bool);

#[test]
fn pause_just_under_six_seconds_is_tolerated() {
    for pause in [5_000, 5_500, 5_999] {
        let mut fixture = Fixture::leader(&[("a", Ready)]);
        fixture.run(ms(20_000), &["a"]);
        fixture.run(ms(2_000 + pause + 200), &[]);
        fixture.beat("a");
        fixture.run(ms(20_000), &["a"]);
        assert_eq!(fixture.said(), [], "{pause} ms");
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
        let mut fixture = Fixture::leader(&[("a", Ready)]);
        for at in arrivals(&beats) {
            let gap = (fixture.began + ms(at)).saturating_duration_since(fixture.now);
            fixture.run(gap, &[]);
            fixture.beat("a");
        }
        prop_assert_eq!(fixture.said(), []);
    }

    #[test]
    fn status_change_implies_minimum_silence(
        gaps in prop::collection::vec((0_u64..4_000, any::<bool>()), 1..80),
    ) {
        let mut fixture = Fixture::leader(&[("a", Ready)]);
        let mut heard = fixture.now;
        let mut seen = 0;
        for (gap, beats) in gaps {
            fixture.now += ms(gap);
            if beats {
                fixture.beat("a");
                heard = fixture.now;
            } else {
                fixture.tick();
            }
            for (_, _, status) in &fixture.log[seen..] {
                let least = if *status == Offline { OFFLINE_AFTER } else { UNHEALTHY_AFTER };
                prop_assert!(fixture.now - heard >= least);
            }
            seen = fixture.log.len();
        }
    }

    #[test]
    fn dead_member_is_offline_within_ten_seconds(alive in 0_u64..30) {
        let mut fixture = Fixture::leader(&[("a", Ready)]);
        fixture.run(ms(alive * 1_000), &["a"]);
        let died = fixture.now - fixture.began;
        fixture.run(ms(10_250), &[]);
        let (at, _, status) = fixture.log.last().unwrap();
        prop_assert_eq!(*status, Offline);
        prop_assert!(*at - died <= OFFLINE_AFTER + TICK);
    }
}
