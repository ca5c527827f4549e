//! Tests of the firewall's core, one module per story.

mod cuts;
mod passes;
mod reports;
mod withheld;

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
    /// Whether the engine's rules let the packets of containers pass.
    accepts: bool,
    /// Whether they did when connections were last ended.
    /// Outcome of the table's replacement, unless it fails.
    applied: Applied,
    accepted_at_cut: bool,
    last_apply: Option<Instant>,
    submitted: Submitted,
    /// Whether the state shows no report yet.
    lags: bool,
    applies: usize,
    reads: usize,
    cuts: usize,
    cut_fails: bool,
    /// Whether the kernel lists connections.
    lists_flows: bool,
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
            accepts: false,
            applied: Applied::Undisturbed,
            accepted_at_cut: false,
            last_apply: None,
            submitted: Submitted::Committed,
            lags: false,
            applies: 0,
            reads: 0,
            cuts: 0,
            cut_fails: false,
            lists_flows: true,
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
        let spans = pool.into_iter().flat_map(|set| set.spans());
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
            Action::Exempt { accepts } => {
                self.now += STEP;
                self.accepts = accepts;
                let outcomes = self.exemptions.clone();
                self.core.handle_exempted(self.now, &outcomes);
            }
            Action::Read => {
                // One that verifies what was applied belongs to the same pass.
                if self.last_apply != Some(self.now) {
                    self.passes.push((self.now - self.start).as_millis());
                }
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
                let outcome = self.apply_error.clone().map_or(Ok(self.applied), Err);
                self.last_apply = Some(self.now);
                self.core.handle_applied(self.now, outcome);
            }
            Action::CutFlows(rendered) => {
                assert_eq!(self.kernel.as_ref(), Some(&rendered.ruleset));
                self.cuts += 1;
                self.accepted_at_cut = self.accepts;
                self.core.handle_flows_cut(match self.cut_fails {
                    true => FlowsCut::Failed,
                    false if self.lists_flows => FlowsCut::Done,
                    false => FlowsCut::Unsupported,
                });
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

    /// The engine turns out to have no networks.
    fn survey_empty(&mut self) {
        let local = LocalNetworks {
            begun: self.now,
            blocks: Vec::new(),
            bridges: Default::default(),
        };
        self.core.handle_local(self.now, Arc::new(local));
    }

    /// Takes the reports: a status with its reason, or the values of an event but the node.
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
