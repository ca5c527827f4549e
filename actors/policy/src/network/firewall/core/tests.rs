use jaco_proto::v1::{self, NodeStatus, command::Payload};

use super::*;
use crate::network::{
    firewall::ruleset::{POOL_SET, Rule, Span, Verdict},
    readiness::{IsolationStatus, MeshStatus},
    testing::state,
};

const MS: Duration = Duration::from_millis(1);
/// Duration of each read or change of the kernel.
const STEP: Duration = MS;
const SECOND: Duration = Duration::from_secs(1);

/// A core with a kernel that holds one table, a leader that commits, and a clock.
struct Bench {
    core: Core,
    now: Instant,
    start: Instant,
    state: State,
    kernel: Option<Ruleset>,
    apply_error: Option<String>,
    /// Change of the ruleset that another program makes at once.
    spoil: Option<fn(&mut Ruleset)>,
    read_error: Option<String>,
    exemptions: Vec<(Exemption, Outcome)>,
    submitted: Submitted,
    /// Whether the state shows no report yet.
    lags: bool,
    applies: usize,
    reads: usize,
    cuts: usize,
    cut_fails: bool,
    /// Times of the passes, in milliseconds since the start.
    passes: Vec<u128>,
    reports: Vec<Payload>,
    status: Status,
}

impl Bench {
    /// A member `n1` that is ready, with no leader known and no table.
    fn new() -> Self {
        let now = Instant::now();
        let mut state = State::default();
        let node = v1::Node {
            hostname: "n1".into(),
            status: NodeStatus::Ready.into(),
            ..Default::default()
        };
        state.nodes.insert("n1".into(), Arc::new(node));
        Self {
            core: Core::new(now, "n1", Arc::new(state.clone()), Status::default()),
            now,
            start: now,
            state,
            kernel: None,
            apply_error: None,
            spoil: None,
            read_error: None,
            exemptions: Vec::new(),
            submitted: Submitted::Committed,
            lags: false,
            applies: 0,
            reads: 0,
            cuts: 0,
            cut_fails: false,
            passes: Vec::new(),
            reports: Vec::new(),
            status: Status::default(),
        }
    }

    /// A bench whose ruleset is in force.
    fn enforced() -> Self {
        let mut bench = Self::new();
        bench.rows(&[("web", "a", "n1", "10.244.1.0/24")]);
        bench.leader(true);
        bench.advance(SECOND * 3);
        assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
        bench
    }

    fn rows(&mut self, rows: &[(&str, &str, &str, &str)]) {
        self.state.subnets = state(rows).subnets;
        self.publish();
    }

    fn set_node(&mut self, change: impl FnOnce(&mut v1::Node)) {
        change(Arc::make_mut(self.state.nodes.get_mut("n1").unwrap()));
        self.publish();
    }

    fn publish(&mut self) {
        self.state.applied_index += 1;
        self.core
            .handle_state(self.now, Arc::new(self.state.clone()));
        self.run();
    }

    fn leader(&mut self, known: bool) {
        self.core.handle_leader(self.now, known);
        self.run();
    }

    fn event(&mut self) {
        self.core.handle_kernel_event(self.now);
        self.run();
    }

    /// Blocks of the kernel's pool set.
    fn pool(&self) -> Vec<String> {
        let sets = &self.kernel.as_ref().unwrap().sets;
        let pool = sets.iter().find(|set| set.name == POOL_SET);
        let spans = pool.into_iter().flat_map(|set| &set.elements);
        spans.map(ToString::to_string).collect()
    }

    /// Runs the deadlines of the next `time`.
    fn advance(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.core.poll_timeout().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.core.handle_timeout(self.now);
            self.run();
            let next = self.core.poll_timeout();
            assert!(
                next.is_none_or(|next| next > self.now),
                "the driver would spin"
            );
        }
        self.now = self.now.max(end);
    }

    fn run(&mut self) {
        self.core.handle_timeout(self.now);
        while let Some(action) = self.core.poll_action() {
            self.act(action);
            self.core.handle_timeout(self.now);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Exempt => {
                self.passes.push((self.now - self.start).as_millis());
                self.now += STEP;
                self.core.handle_exempted(&self.exemptions.clone());
            }
            Action::Read => {
                self.reads += 1;
                self.now += STEP;
                let found = self.read_error.clone().map_or(Ok(self.kernel.clone()), Err);
                self.core.handle_read(self.now, found);
            }
            Action::Apply(rendered) => {
                self.applies += 1;
                self.now += STEP;
                if self.apply_error.is_none() {
                    self.kernel = Some(rendered.ruleset.clone());
                    if let Some(spoil) = self.spoil {
                        spoil(self.kernel.as_mut().unwrap());
                    }
                    self.core.handle_kernel_event(self.now);
                }
                let outcome = self.apply_error.clone().map_or(Ok(()), Err);
                self.core.handle_applied(self.now, outcome);
            }
            Action::CutFlows(rendered) => {
                assert_eq!(self.kernel.as_ref(), Some(&rendered.ruleset));
                self.cuts += 1;
                self.core.handle_flows_cut(!self.cut_fails);
            }
            Action::Publish(status) => self.status = status,
            Action::Submit(report) => {
                if let (Payload::NodeStatusUpdate(update), Submitted::Committed, false) =
                    (&report.0, self.submitted, self.lags)
                {
                    let row = Arc::make_mut(self.state.nodes.get_mut("n1").unwrap());
                    row.set_status(update.status());
                    row.status_details = update.details.clone();
                    self.core
                        .handle_state(self.now, Arc::new(self.state.clone()));
                }
                self.reports.push(report.0);
                self.core.handle_submitted(self.now, self.submitted);
            }
        }
    }

    /// Takes the reports: a status with its reason, or the values of an event but the node.
    /// The engine turns out to have no networks.
    fn survey_empty(&mut self) {
        let local = LocalNetworks {
            begun: self.now,
            blocks: Vec::new(),
        };
        self.core.handle_local(self.now, Arc::new(local));
    }

    fn reported(&mut self) -> Vec<String> {
        let line = |payload| match payload {
            Payload::NodeStatusUpdate(v1::NodeStatusUpdate {
                status, details, ..
            }) => {
                let status = NodeStatus::try_from(status).unwrap();
                format!("{status:?}: {}", details["reason"])
            }
            Payload::AuditAppend(append) => {
                let mut event = append.event.unwrap();
                assert_eq!(event.identity, "firewall");
                assert_eq!(event.payload.remove("node").as_deref(), Some("n1"));
                let values: Vec<_> = event.payload.into_values().collect();
                values.join(" ")
            }
            other => panic!("{other:?}"),
        };
        self.reports.drain(..).map(line).collect()
    }
}

#[test]
fn nothing_happens_before_a_leader_is_known() {
    let mut bench = Bench::new();
    bench.advance(SECOND * 100);
    bench.event();
    assert_eq!((bench.reads, bench.status.clone()), (0, Status::default()));
    bench.leader(true);
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    // The state cannot become older than the table from here on.
    bench.leader(false);
    bench.kernel = None;
    bench.advance(QUIET);
    bench.event();
    assert_eq!(bench.applies, 2);
}

#[test]
fn first_load_is_not_audited() {
    let mut bench = Bench::enforced();
    assert_eq!(bench.reported(), Vec::<String>::new());
    let enforced = bench.status.enforced.clone().unwrap();
    assert_eq!(enforced.index, bench.state.applied_index);
    assert_eq!(bench.kernel.as_ref(), Some(&enforced.ruleset));
}

#[test]
fn table_of_an_earlier_process_is_adopted() {
    let mut bench = Bench::new();
    bench.rows(&[("web", "a", "n1", "10.244.1.0/24")]);
    bench.kernel = Some(Ruleset::of_state(&bench.state));
    bench.leader(true);
    assert_eq!(bench.applies, 0);
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    // One that differs was changed while no process watched.
    let mut bench = Bench::new();
    bench.kernel = Some(Ruleset::default());
    bench.leader(true);
    let reported = bench.reported();
    assert_eq!(reported.len(), 1);
    assert!(
        reported[0].contains("missing:chain:forward"),
        "{reported:?}"
    );
}

#[test]
fn own_change_is_applied_without_audit() {
    let mut bench = Bench::enforced();
    let applies = bench.applies;
    bench.rows(&[
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "b", "n1", "10.244.2.0/24"),
    ]);
    assert_eq!(bench.applies, applies, "debounced");
    bench.advance(QUIET);
    assert_eq!(bench.applies, applies + 1);
    assert_eq!(bench.reported(), Vec::<String>::new());
    assert_eq!(bench.status.enforced.as_ref().unwrap().scopes.len(), 2);
}

#[test]
fn steady_changes_are_applied_within_a_second() {
    let mut bench = Bench::enforced();
    let passes = bench.passes.len();
    let start = (bench.now - bench.start).as_millis();
    for n in 0..20 {
        let block = format!("10.244.{n}.0/24");
        bench.rows(&[("web", "a", "n1", &block)]);
        bench.advance(MS * 100);
    }
    let delays: Vec<_> = bench.passes[passes..].iter().map(|at| at - start).collect();
    assert_eq!(delays[0], 1000);
    // The event of each repair causes one more pass.
    let between = |pair: &[u128]| pair[1] - pair[0];
    assert!(
        delays
            .windows(2)
            .map(between)
            .all(|ms| (200..=1010).contains(&ms)),
        "{delays:?}"
    );
}

#[test]
fn unrelated_changes_cause_no_pass() {
    let mut bench = Bench::enforced();
    let reads = bench.reads;
    for n in 0..10 {
        bench.set_node(|node| node.version = n.to_string());
        bench.advance(SECOND);
    }
    assert_eq!(bench.reads, reads);
    bench.advance(TICK);
    assert_eq!(bench.reads, reads + 1, "the timer is the net");
}

#[test]
fn waiting_container_skips_the_debounce() {
    let mut bench = Bench::enforced();
    let (id, block) = (NetworkId::new("web", "b"), "10.244.2.0/24".parse().unwrap());
    let rows = [
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "b", "n1", "10.244.2.0/24"),
    ];
    for row_first in [false, true] {
        bench.rows(&rows[..1]);
        bench.advance(SECOND * 2);
        let applies = bench.applies;
        if row_first {
            bench.rows(&rows);
        }
        bench.core.handle_request(bench.now, &id, block);
        bench.run();
        if !row_first {
            bench.rows(&rows);
        }
        assert_eq!(bench.applies, applies + 1, "row first: {row_first}");
        assert!(bench.status.enforced.as_ref().unwrap().includes(&id, block));
    }
}

#[test]
fn drift_is_repaired_at_once_and_audited() {
    type Change<'a> = &'a dyn Fn(&mut Option<Ruleset>);
    let table: &[(Change<'_>, &str)] = &[
        (
            &|kernel| kernel.as_mut().unwrap().sets[0].elements.clear(),
            { "applied missing:element:dep_net_web_a/10.244.1.0/24" },
        ),
        (
            &|kernel| drop(kernel.as_mut().unwrap().chains[0].rules.pop()),
            "applied missing:rule:forward[2]",
        ),
        (
            &|kernel| kernel.as_mut().unwrap().chains[1].rules.push(Rule::Foreign),
            "applied extra:rule:input[0]",
        ),
    ];
    for (change, expected) in table {
        let mut bench = Bench::enforced();
        change(&mut bench.kernel);
        bench.event();
        assert_eq!(bench.kernel, Some(Ruleset::of_state(&bench.state)));
        assert_eq!(bench.reported(), [*expected]);
        assert_eq!(bench.status.repairs, 1);
        // The event of the repair itself finds nothing to do.
        bench.event();
        bench.advance(SECOND);
        assert_eq!((bench.reported().len(), bench.applies), (0, 2));
    }
    let mut bench = Bench::enforced();
    bench.kernel = None;
    bench.event();
    assert!(bench.reported()[0].starts_with("applied missing:chain:forward,"));
}

#[test]
fn drift_beside_an_own_change_is_audited_alone() {
    let mut bench = Bench::enforced();
    let span = Span { first: 1, last: 2 };
    bench.kernel.as_mut().unwrap().sets[0].elements.push(span);
    bench.rows(&[("web", "b", "n1", "10.244.2.0/24")]);
    bench.advance(QUIET);
    assert_eq!(
        bench.reported(),
        ["applied extra:element:dep_net_web_a/0.0.0.1-0.0.0.2"]
    );
}

#[test]
fn storm_of_kernel_events_is_bounded() {
    let mut bench = Bench::enforced();
    let passes = bench.passes.len();
    for _ in 0..1000 {
        bench.event();
        bench.advance(MS);
    }
    let passes = bench.passes.len() - passes;
    assert!((3..=6).contains(&passes), "{passes}");
}

#[test]
fn failed_load_makes_the_node_unavailable_until_recovered() {
    let mut bench = Bench::new();
    bench.apply_error = Some("out of memory".to_owned());
    bench.leader(true);
    assert_eq!(
        bench.reported(),
        [
            "IsolationUnavailable: out of memory",
            "isolation_self_test_failed out of memory"
        ]
    );
    bench.advance(SECOND * 100);
    assert_eq!(bench.reported(), Vec::<String>::new(), "said once");
    bench.apply_error = None;
    bench.advance(TICK);
    assert_eq!(
        bench.reported(),
        ["Ready: isolation_reload_recovered", "recovered"]
    );
    assert_eq!(bench.state.nodes["n1"].status(), NodeStatus::Ready);
}

#[test]
fn failed_passes_back_off() {
    let mut bench = Bench::new();
    bench.apply_error = Some("no".to_owned());
    bench.leader(true);
    bench.advance(SECOND * 70);
    let seconds: Vec<_> = bench.passes.iter().map(|ms| ms / 1000).collect();
    assert_eq!(seconds, [0, 1, 3, 7, 15, 31, 61]);
}

#[test]
fn ruleset_that_does_not_stick_fails_the_test() {
    let mut bench = Bench::enforced();
    bench.kernel = None;
    bench.spoil = Some(|table| drop(table.chains.pop()));
    bench.event();
    assert_eq!(
        bench.reported(),
        ["IsolationUnavailable: isolation_self_test_failed: missing:chain:output"]
    );
}

#[test]
fn changes_by_others_do_not_shorten_the_retry() {
    let mut bench = Bench::enforced();
    let (passes, start) = (bench.passes.len(), (bench.now - bench.start).as_millis());
    bench.kernel = None;
    bench.spoil = Some(|table| drop(table.chains.pop()));
    for _ in 0..7_000 {
        bench.event();
        bench.advance(MS * 10);
    }
    let seconds: Vec<_> = bench.passes[passes..]
        .iter()
        .map(|at| (at - start) / 1000)
        .collect();
    assert_eq!(seconds, [0, 1, 3, 7, 15, 31, 61]);
}

#[test]
fn change_during_a_pass_causes_one_more() {
    let mut bench = Bench::enforced();
    let passes = bench.passes.len();
    bench.kernel = None;
    bench.event();
    let repaired = bench.now;
    bench.advance(TICK - SECOND);
    let since: Vec<_> = { bench.passes[passes..].iter() }
        .map(|at| bench.start + MS * u32::try_from(*at).unwrap())
        .collect();
    assert_eq!(since[1..], [repaired + QUIET]);
}

#[test]
fn drift_of_a_failed_repair_is_audited_later() {
    let mut bench = Bench::enforced();
    bench.kernel.as_mut().unwrap().chains[0].rules.pop();
    bench.spoil = Some(|table| drop(table.chains.pop()));
    bench.event();
    assert_eq!(bench.reported().len(), 1, "the status");
    // The other program ends; its change of the repaired table is undone by itself.
    bench.spoil = None;
    bench.kernel = Some(Ruleset::of_state(&bench.state));
    bench.advance(TICK);
    assert_eq!(
        bench.reported(),
        [
            "Ready: isolation_reload_recovered",
            "applied missing:rule:forward[2]",
            "recovered"
        ]
    );
    assert_eq!(bench.status.repairs, 1);
}

#[test]
fn ruleset_of_older_rows_is_no_drift() {
    let mut bench = Bench::new();
    let rows = [
        ("api", "b", "n1", "10.244.2.0/24"),
        ("web", "a", "n1", "10.244.1.0/24"),
    ];
    let old = Ruleset::of_state(&state(&rows[..1]));
    bench.rows(&rows);
    bench.kernel = Some(old.clone());
    bench.leader(true);
    assert_eq!((bench.applies, bench.reported()), (1, Vec::<String>::new()));
    // One that no rows explain was changed.
    let mut bench = Bench::new();
    bench.rows(&rows);
    bench.kernel = Some(old);
    bench.kernel.as_mut().unwrap().chains[0].rules.pop();
    bench.leader(true);
    assert_eq!(bench.reported().len(), 1);
}

#[test]
fn own_ruleset_in_another_order_is_no_drift() {
    let mut bench = Bench::enforced();
    bench.rows(&[
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "b", "n1", "10.244.2.0/24"),
    ]);
    bench.now += QUIET;
    bench.core.handle_timeout(bench.now);
    while let Some(action) = bench.core.poll_action() {
        if let Action::Apply(rendered) = action {
            let mut kernel = rendered.ruleset.clone();
            kernel.sets.reverse();
            bench.kernel = Some(kernel);
            let lost = Err("no answer".to_owned());
            bench.core.handle_applied(bench.now, lost);
        } else {
            bench.act(action);
        }
    }
    bench.rows(&[("web", "c", "n1", "10.244.3.0/24")]);
    bench.advance(TICK);
    let reported = bench.reported();
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    assert!(
        !reported.iter().any(|line| line.starts_with("applied")),
        "{reported:?}"
    );
}

#[test]
fn restarted_actor_needs_no_leader() {
    let mut bench = Bench::enforced();
    let state = Arc::new(bench.state.clone());
    bench.core = Core::new(bench.now, "n1", state, bench.status.clone());
    bench.kernel = None;
    bench.event();
    assert_eq!(bench.kernel, Some(Ruleset::of_state(&bench.state)));
}

#[test]
fn unreadable_kernel_leaves_the_status() {
    let mut bench = Bench::enforced();
    bench.read_error = Some("operation not permitted".to_owned());
    bench.event();
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
    assert_eq!(bench.reported(), Vec::<String>::new());
    // A node that never passed the test has nothing to rely on.
    let mut bench = Bench::new();
    bench.read_error = Some("operation not permitted".to_owned());
    bench.leader(true);
    assert_eq!(
        bench.reported()[0],
        "IsolationUnavailable: operation not permitted"
    );
}

#[test]
fn marked_node_recovers_after_a_restart() {
    let mut bench = Bench::new();
    bench.set_node(|node| node.set_status(NodeStatus::IsolationUnavailable));
    bench.leader(true);
    assert_eq!(
        bench.reported(),
        ["Ready: isolation_reload_recovered", "recovered"]
    );
}

#[test]
fn recovered_node_joins_before_its_network_is_up() {
    let broken = MeshStatus::Unavailable("no /dev/net/tun".to_owned());
    for (mesh, members, expected) in [
        (MeshStatus::Up, 2, "Ready"),
        (broken.clone(), 2, "Joining"),
        (broken, 1, "Ready"),
    ] {
        let mut bench = Bench::new();
        if members == 2 {
            let other = Arc::new(v1::Node::default());
            bench.state.nodes.insert("n2".into(), other);
        }
        bench.set_node(|node| {
            node.set_status(NodeStatus::IsolationUnavailable);
            let details = [("reason", "lost"), ("pressure", "high")];
            let details = details.map(|(key, value)| (key.to_owned(), value.to_owned()));
            node.status_details = details.into();
        });
        bench.core.handle_mesh(mesh);
        bench.leader(true);
        let status = format!("{expected}: isolation_reload_recovered");
        assert_eq!(bench.reported(), [&*status, "recovered"], "{members}");
        let details = &bench.state.nodes["n1"].status_details;
        assert_eq!(details["pressure"], "high");
        let unavailable = (members == 1).then_some("unavailable");
        assert_eq!(details.get("mesh").map(String::as_str), unavailable);
    }
}

#[test]
fn details_of_others_are_kept() {
    let mut bench = Bench::new();
    bench.apply_error = Some("no".to_owned());
    bench.set_node(|node| {
        let detail = ("pressure".to_owned(), "high".to_owned());
        node.status_details.extend([detail]);
    });
    bench.leader(true);
    assert_eq!(bench.reported().len(), 2);
    let details = bench.state.nodes["n1"].status_details.clone();
    assert_eq!(details["pressure"], "high");
    assert_eq!(details["reason"], "no");
    bench.set_node(|node| drop(node.status_details.remove("pressure")));
    bench.advance(TICK);
    assert_eq!(bench.reported(), Vec::<String>::new());
}

#[test]
fn committed_status_is_not_repeated() {
    for submitted in [Submitted::Committed, Submitted::Unknown] {
        let mut bench = Bench::new();
        bench.apply_error = Some("no".to_owned());
        (bench.lags, bench.submitted) = (true, submitted);
        bench.leader(true);
        assert_eq!(bench.reported().len(), 2, "status and event");
        bench.advance(MS * 900);
        bench.publish();
        assert_eq!(bench.reported(), Vec::<String>::new());
        // It was lost after all.
        bench.advance(MS * 200);
        assert_eq!(bench.reported(), ["IsolationUnavailable: no"]);
        bench.set_node(|node| {
            node.set_status(NodeStatus::IsolationUnavailable);
            node.status_details = [("reason".to_owned(), "no".to_owned())].into();
        });
        bench.advance(SECOND * 5);
        assert_eq!(bench.reported(), Vec::<String>::new());
    }
}

#[test]
fn refused_status_does_not_hold_up_events() {
    let mut bench = Bench::new();
    bench.apply_error = Some("no".to_owned());
    bench.submitted = Submitted::Refused;
    bench.leader(true);
    assert_eq!(
        bench.reported(),
        ["IsolationUnavailable: no", "isolation_self_test_failed no"]
    );
    bench.advance(SECOND * 29);
    assert_eq!(bench.reported(), Vec::<String>::new());
}

#[test]
fn status_that_others_decide_stays() {
    for (status, draining) in [
        (NodeStatus::Unhealthy, false),
        (NodeStatus::Offline, false),
        (NodeStatus::DrainTimeout, false),
        (NodeStatus::Ready, true),
    ] {
        let mut bench = Bench::new();
        bench.set_node(|node| {
            node.set_status(status);
            node.draining = draining;
        });
        bench.apply_error = Some("no".to_owned());
        bench.leader(true);
        assert_eq!(
            bench.reported(),
            ["isolation_self_test_failed no"],
            "{status:?}"
        );
    }
}

#[test]
fn reports_wait_for_a_leader() {
    let mut bench = Bench::enforced();
    bench.submitted = Submitted::Unavailable;
    bench.kernel = None;
    bench.event();
    assert_eq!(bench.reported().len(), 1);
    bench.leader(false);
    bench.advance(SECOND * 60);
    assert_eq!(bench.reported(), Vec::<String>::new());
    bench.submitted = Submitted::Committed;
    bench.leader(true);
    assert_eq!(bench.reported().len(), 1);
    bench.advance(SECOND * 60);
    assert_eq!(bench.reported(), Vec::<String>::new());
}

#[test]
fn event_with_unknown_outcome_is_not_repeated() {
    let mut bench = Bench::enforced();
    bench.submitted = Submitted::Unknown;
    bench.kernel = None;
    bench.event();
    bench.submitted = Submitted::Committed;
    bench.advance(SECOND * 60);
    assert_eq!(bench.reported().len(), 1);
}

#[test]
fn failed_exemption_is_audited_once_per_error() {
    let mut bench = Bench::enforced();
    let failed = |error: &str| vec![(Exemption::Masquerade, Outcome::Failed(error.to_owned()))];
    for (outcomes, reported) in [
        (failed("a"), &["SNAT_EXEMPT_FAILED a"][..]),
        (failed("a"), &[]),
        (failed("b"), &["SNAT_EXEMPT_FAILED b"]),
        (vec![(Exemption::Masquerade, Outcome::InPlace)], &[]),
        (failed("b"), &["SNAT_EXEMPT_FAILED b"]),
    ] {
        bench.exemptions = outcomes;
        bench.advance(TICK);
        assert_eq!(bench.reported(), reported);
    }
    assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
}

#[test]
fn restarted_actor_knows_its_own_ruleset() {
    let mut bench = Bench::enforced();
    bench.rows(&[("web", "b", "n1", "10.244.2.0/24")]);
    // The actor dies after the kernel took the ruleset, and the blocks change once more.
    bench.advance(QUIET - MS);
    bench.now += MS;
    bench.core.handle_timeout(bench.now);
    while let Some(action) = bench.core.poll_action() {
        if let Action::Apply(rendered) = action {
            bench.kernel = Some(rendered.ruleset.clone());
            break;
        }
        bench.act(action);
    }
    bench.rows(&[("web", "c", "n1", "10.244.3.0/24")]);
    let state = Arc::new(bench.state.clone());
    bench.core = Core::new(bench.now, "n1", state, bench.status.clone());
    bench.leader(true);
    assert_eq!(bench.reported(), Vec::<String>::new());
    let blocks = ["10.244.1.0/24", "10.244.2.0/24", "10.244.3.0/24"];
    assert_eq!(bench.pool(), blocks);
}

#[test]
fn deleted_deployment_stays_apart_until_its_containers_ended() {
    let mut bench = Bench::enforced();
    let (web, api) = (
        ("web", "a", "n1", "10.244.1.0/24"),
        ("api", "b", "n1", "10.244.2.0/24"),
    );
    bench.rows(&[web, api]);
    bench.advance(QUIET);
    bench.rows(&[api]);
    bench.advance(SECOND * 299);
    let kernel = bench.kernel.as_ref().unwrap();
    let (of_web, of_api) = ([10, 244, 1, 2].into(), [10, 244, 2, 2].into());
    assert_eq!(kernel.sets.len(), 2, "its scope is gone");
    assert_eq!(kernel.verdict(of_web, of_api, false), Verdict::Drop);
    assert_eq!(bench.pool(), [web.3, api.3]);
    bench.advance(TICK * 2);
    assert_eq!(bench.pool(), [web.3, api.3], "the engine was not asked");
    bench.survey_empty();
    bench.advance(SECOND);
    assert_eq!(bench.pool(), [api.3]);
    assert_eq!(bench.reported(), Vec::<String>::new());
    // A block that is allocated again is part of its new scope alone.
    bench.rows(&[]);
    bench.rows(&[("web", "c", "n2", api.3)]);
    bench.advance(QUIET);
    bench.survey_empty();
    bench.advance(SECOND);
    assert_eq!(bench.kernel, Some(Ruleset::of_state(&bench.state)));
}

#[test]
fn blocks_of_an_earlier_process_stay_apart() {
    let mut bench = Bench::new();
    bench.rows(&[("api", "b", "n1", "10.244.2.0/24")]);
    let before = state(&[
        ("api", "b", "n1", "10.244.2.0/24"),
        ("web", "a", "n1", "10.244.1.0/24"),
    ]);
    bench.kernel = Some(Ruleset::of_state(&before));
    bench.leader(true);
    assert_eq!(bench.pool(), ["10.244.1.0/24", "10.244.2.0/24"]);
    assert_eq!(bench.kernel.as_ref().unwrap().sets.len(), 2);
    bench.survey_empty();
    bench.advance(SECOND * 299);
    assert_eq!(bench.pool().len(), 2, "quarantine");
    bench.advance(TICK * 2);
    assert_eq!(bench.pool(), ["10.244.2.0/24"]);
}

#[test]
fn block_of_former_containers_joins_no_network() {
    let mut bench = Bench::enforced();
    let (id, block) = (NetworkId::new("web", "b"), "10.244.1.0/24".parse().unwrap());
    let local = |network: &str, begun| {
        Arc::new(LocalNetworks {
            begun,
            blocks: vec![(Some(NetworkId::new("web", network)), block)],
        })
    };
    bench.rows(&[
        ("web", "b", "n1", "10.244.1.0/24"),
        ("web", "b", "n2", "10.244.2.0/24"),
    ]);
    bench.advance(SECOND);
    let includes = |bench: &Bench| bench.status.enforced.as_ref().unwrap().includes(&id, block);
    let (old, new) = ([10, 244, 1, 2].into(), [10, 244, 2, 2].into());
    let fate = |bench: &Bench| bench.kernel.as_ref().unwrap().verdict(old, new, false);
    assert_eq!((includes(&bench), fate(&bench)), (false, Verdict::Drop));
    bench.core.handle_local(bench.now, local("a", bench.now));
    bench.advance(SECOND);
    assert_eq!((includes(&bench), fate(&bench)), (false, Verdict::Drop));
    bench.core.handle_local(bench.now, local("b", bench.now));
    bench.advance(SECOND);
    assert_eq!((includes(&bench), fate(&bench)), (true, Verdict::Accept));
    assert_eq!(bench.reported(), Vec::<String>::new());
}

#[test]
fn restarted_firewall_withholds_a_lost_block() {
    let mut bench = Bench::enforced();
    let table = bench.kernel.clone();
    let rows = [("web", "b", "n1", "10.244.1.0/24")];
    // A new instance of the process, and a new process.
    for status in [bench.status.clone(), Status::default()] {
        bench.kernel = table.clone();
        bench.state.subnets = state(&rows).subnets;
        bench.core = Core::new(bench.now, "n1", Arc::new(bench.state.clone()), status);
        bench.leader(true);
        bench.advance(SECOND);
        let enforced = bench.status.enforced.clone().unwrap();
        assert_eq!(enforced.scopes, []);
        assert_eq!(bench.pool(), ["10.244.1.0/24"]);
    }
}

#[test]
fn repair_cuts_connections_begun_without_the_ruleset() {
    let mut bench = Bench::enforced();
    // The table was absent at the start.
    assert_eq!(bench.cuts, 1);
    bench.rows(&[
        ("web", "a", "n1", "10.244.1.0/24"),
        ("web", "b", "n1", "10.244.2.0/24"),
    ]);
    bench.advance(SECOND * 3);
    assert_eq!(bench.cuts, 1, "an ordinary change");
    let changes: [fn(&mut Option<Ruleset>); 2] = [
        |table| *table = None,
        |table| table.as_mut().unwrap().sets[0].elements.clear(),
    ];
    for change in changes {
        let before = bench.cuts;
        change(&mut bench.kernel);
        bench.event();
        bench.advance(SECOND);
        assert_eq!(bench.cuts, before + 1);
        assert!(!bench.status.has_stale_flows);
    }
    // Nothing is cut while the ruleset is not in force, and a failure is tried again.
    let before = bench.cuts;
    (bench.kernel, bench.apply_error) = (None, Some("no".into()));
    bench.event();
    bench.advance(SECOND * 10);
    assert_eq!((bench.cuts, bench.status.has_stale_flows), (before, true));
    (bench.apply_error, bench.cut_fails) = (None, true);
    bench.advance(TICK);
    assert!(bench.cuts > before && bench.status.has_stale_flows);
    bench.cut_fails = false;
    bench.advance(TICK * 2);
    assert!(!bench.status.has_stale_flows);
}

#[test]
fn drift_during_a_cut_causes_another() {
    let mut bench = Bench::enforced();
    bench.core.suspect_flows();
    assert!(matches!(bench.core.poll_action(), Some(Action::Publish(_))));
    let cut = bench.core.poll_action();
    assert!(matches!(cut, Some(Action::CutFlows(_))), "{cut:?}");
    bench.core.suspect_flows();
    bench.core.handle_flows_cut(true);
    let cut = bench.core.poll_action();
    assert!(matches!(cut, Some(Action::CutFlows(_))), "{cut:?}");
    bench.core.handle_flows_cut(true);
    assert!(matches!(bench.core.poll_action(), Some(Action::Publish(_))));
    assert!(bench.core.poll_action().is_none());
}

#[test]
fn unreadable_table_is_replaced_after_three_attempts() {
    for enforced in [true, false] {
        let mut bench = Bench::new();
        if enforced {
            bench = Bench::enforced();
        }
        let (applies, before) = (bench.applies, bench.status.isolation.clone());
        (bench.kernel, bench.read_error) = (None, Some("a malformed answer".into()));
        bench.leader(true);
        bench.event();
        bench.advance(SECOND * 2);
        if enforced {
            assert_eq!((bench.applies, &bench.status.isolation), (applies, &before));
        }
        bench.advance(SECOND * 6);
        assert!(bench.applies > applies);
        assert_eq!(bench.kernel, Some(Ruleset::of_state(&bench.state)));
        let unavailable = IsolationStatus::Unavailable("a malformed answer".into());
        assert_eq!(bench.status.isolation, unavailable);
        bench.read_error = None;
        bench.advance(TICK);
        assert_eq!(bench.status.isolation, IsolationStatus::Enforced);
        let applies = bench.applies;
        bench.advance(TICK * 3);
        assert_eq!(bench.applies, applies);
    }
}

#[test]
fn status_shows_legacy_rules_of_the_engine() {
    let mut bench = Bench::enforced();
    let detail = |bench: &Bench| {
        let row = &bench.state.nodes["n1"];
        assert_eq!(row.status(), NodeStatus::Ready);
        row.status_details.get("coexistence").cloned()
    };
    for (outcome, shown) in [
        (Outcome::Legacy, Some("unsupported")),
        (Outcome::InPlace, None),
        (Outcome::NoChain, None),
    ] {
        bench.exemptions = vec![(Exemption::InterNetwork, outcome)];
        bench.advance(TICK * 2);
        assert_eq!(detail(&bench).as_deref(), shown);
    }
    let events = |report: &&Payload| matches!(report, Payload::AuditAppend(_));
    assert_eq!(bench.reports.iter().filter(events).count(), 0);
    assert_eq!(bench.reports.len(), 2, "{:?}", bench.reports);
}
