//! Clients that write and read through any node, and the outcomes they received.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::v1::{self, TransportProtocol, command::Payload, service_spec::PlacementMode};
use jaco_state::command;

use super::{
    calls::{CLIENT_TIMEOUT, Change, RETRY_DELAY, Reply, Requester},
    cluster::{Cluster, Event},
    cordons, documents, jobs,
    mutation::Mutation,
    node::{Input, Reader},
    rollouts, secrets, sharing,
    time::{Agenda, MS, SECOND, Time},
};
use crate::Rng;

/// The client that sends requests to every member once the cluster is at rest, and whose requests
/// must all succeed.
const PROBE_CLIENT: usize = usize::MAX;

/// The network that every deployment declares as internal.
const INTERNAL: &str = "back_end";

/// Mean pause of clients in runs that look at issuance.
const RARE_PAUSE: Time = 20 * SECOND;

/// One operation of a client.
#[derive(Clone, Debug)]
struct Op {
    client: usize,
    node: u64,
    /// The write; `None` for a consistent read.
    change: Option<Change>,
    /// Time at which the client gives up.
    until: Time,
    /// For a read: the highest index acknowledged to any requester when the read began.
    acknowledged: u64,
}

/// The clients and their operations in flight.
#[derive(Debug)]
pub(super) struct Clients {
    chance: Rng,
    /// Draws the published ports of services.
    port_chance: Rng,
    /// Draws the networks of services.
    network_chance: Rng,
    /// Draws which services share a network.
    share_chance: Rng,
    /// Draws the files that services mount.
    file_chance: Rng,
    /// Draws what services ask of nodes.
    requirement_chance: Rng,
    /// Draws jobs.
    job_chance: Rng,
    rollout_chance: Rng,
    /// Draws pauses of rollouts, and cordons of nodes.
    hold_chance: Rng,
    /// Draws secrets, and the services that have them.
    secret_chance: Rng,
    ops: BTreeMap<u64, Op>,
    begun: u64,
    /// Operations that certainly failed: their commands must never be committed.
    failed: Vec<String>,
    /// Operations at rest that got no answer.
    unserved: Vec<String>,
    pub(super) acknowledged: u64,
    pub(super) reads: u64,
    pub(super) unknown: u64,
    mean_pause: Time,
    /// Most operations change deployments, which want the same routes.
    contend: bool,
    /// Routes ask for certificates.
    tls_auto: bool,
    /// Each deployment has a domain of its own.
    own_domains: bool,
}

impl Clients {
    pub(super) fn new(mut chance: Rng, contend: bool) -> Self {
        let mean_pause = *chance.choose(&[100, 300, 1_000]).unwrap_or(&300) * MS;
        Self {
            port_chance: Rng::new(chance.clone().number() ^ 1),
            network_chance: Rng::new(chance.clone().number()),
            file_chance: Rng::new(chance.clone().number() ^ 3),
            requirement_chance: Rng::new(chance.clone().number() ^ 2),
            job_chance: Rng::new(chance.clone().number() ^ 4),
            rollout_chance: Rng::new(chance.clone().number() ^ 29),
            hold_chance: Rng::new(chance.clone().number() ^ 30),
            share_chance: Rng::new(chance.clone().number() ^ 5),
            secret_chance: Rng::new(chance.clone().number() ^ 6),
            chance,
            ops: BTreeMap::new(),
            begun: 0,
            failed: Vec::new(),
            unserved: Vec::new(),
            acknowledged: 0,
            reads: 0,
            unknown: 0,
            mean_pause,
            contend,
            tls_auto: false,
            own_domains: false,
        }
    }

    /// Lets routes ask for certificates; if `rarely`, deployments seldom change, and keep their
    /// domains.
    pub(super) fn ask_for_certificates(&mut self, rarely: bool) {
        self.tls_auto = true;
        self.own_domains = rarely;
        if rarely {
            self.mean_pause = RARE_PAUSE;
        }
    }

    pub(super) fn count(&self) -> usize {
        4
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.ops.is_empty()
    }

    pub(super) fn failed(&self) -> &[String] {
        &self.failed
    }

    pub(super) fn unserved(&self) -> &[String] {
        &self.unserved
    }

    /// The client of `op` never learns its outcome.
    pub(super) fn lose(&mut self, op: u64, now: Time, agenda: &mut Agenda<Event>) {
        let Some(asked) = self.ops.remove(&op) else {
            return;
        };
        self.unknown += 1;
        if asked.client == PROBE_CLIENT {
            self.unserved
                .push(format!("op-{op} through n{}", asked.node));
        } else {
            self.pause_client(asked.client, now, agenda);
        }
    }

    fn pause_client(&mut self, client: usize, now: Time, agenda: &mut Agenda<Event>) {
        let pause = self.chance.within(MS..2 * self.mean_pause);
        agenda.add(now + pause, Event::Client(client));
    }

    /// A random write whose identity is the name of the operation.
    fn draw(&mut self, name: &str, hosts: &[String], ts: prost_types::Timestamp) -> Change {
        let chance = &mut self.chance;
        let drawn = match self.contend {
            // A route that was given up is taken by the next apply.
            true => *chance.choose(&[0, 80, 80, 80, 80, 99, 99]).unwrap_or(&0),
            false => chance.within(0..100),
        };
        match drawn {
            0..70 => {
                let token = v1::TokenIssue {
                    identity: format!("key-{}", chance.within(0..6)),
                    hashed_secret: name.as_bytes().to_vec(),
                    allows_privileged: false,
                };
                Change::Command(command(name, ts, Payload::TokenIssue(token)))
            }
            70..75 if self.secret_chance.within(0..2) == 0 => {
                let secret = secrets::draw(&mut self.secret_chance);
                Change::Secret(self.deployment_name(), secret, name.to_owned())
            }
            70..75 => {
                let credential = v1::RegistryCredential {
                    registry: format!("registry-{}.example", chance.within(0..3)),
                    username: name.to_owned(),
                    ..v1::RegistryCredential::default()
                };
                let credential = Some(credential);
                let upsert = v1::RegistryCredentialUpsert { credential };
                let payload = Payload::RegistryCredentialUpsert(upsert);
                Change::Command(command(name, ts, payload))
            }
            75..77 => match self.hold_chance.within(0..3) {
                0 => {
                    let cordon = cordons::draw(&mut self.hold_chance, hosts);
                    Change::Command(command(name, ts, cordon))
                }
                drawn => Change::Hold(self.deployment_name(), drawn == 1, name.to_owned()),
            },
            77 => {
                let payload = Payload::RegistryCredentialRemove(v1::RegistryCredentialRemove {
                    registry: format!("registry-{}.example", chance.within(0..3)),
                });
                Change::Command(command(name, ts, payload))
            }
            78..92 => Change::Apply(self.deployment(hosts), name.to_owned()),
            92..97 => Change::Rollback(self.deployment_name(), name.to_owned()),
            _ => Change::Delete(self.deployment_name(), name.to_owned()),
        }
    }

    fn deployment_name(&mut self) -> String {
        format!("app-{}", self.chance.within(0..3))
    }

    fn deployment(&mut self, hosts: &[String]) -> v1::DeploymentApply {
        let deployment = self.deployment_name();
        let chance = &mut self.chance;
        let mut images = Vec::new();
        let mut services = Vec::new();
        for service in ["db", "web"] {
            if chance.within(0..4) == 0 {
                continue;
            }
            let image = chance.within(0..3);
            images.push((
                service,
                rollouts::draw_image(&mut self.rollout_chance, image),
            ));
            let modes = [
                PlacementMode::Spread,
                PlacementMode::Spread,
                PlacementMode::Pack,
                PlacementMode::Global,
                PlacementMode::Hosts,
            ];
            let mode = *chance.choose(&modes).unwrap_or(&PlacementMode::Spread);
            let replicas = match mode {
                PlacementMode::Hosts => i32::try_from(chance.within(1..3)).unwrap_or(1),
                _ => i32::try_from(chance.within(1..4)).unwrap_or(1),
            };
            let mut spec = v1::ServiceSpec {
                name: service.to_owned(),
                replicas,
                placement: mode.into(),
                hosts: match mode {
                    PlacementMode::Hosts => {
                        let listed = hosts.iter().filter(|_| chance.within(0..3) > 0);
                        listed.cloned().collect()
                    }
                    _ => Vec::new(),
                },
                networks: draw_networks(&mut self.network_chance),
                ..Default::default()
            };
            sharing::draw(&mut self.share_chance, &mut spec.networks);
            draw_requirements(&mut self.requirement_chance, &mut spec);
            spec.files = draw_files(&mut self.file_chance);
            spec.secrets = secrets::draw_used(&mut self.secret_chance);
            services.push(spec);
        }
        if self.job_chance.within(0..4) == 0 {
            images.push((jobs::JOB, self.job_chance.within(0..3)));
            services.push(v1::ServiceSpec {
                name: jobs::JOB.to_owned(),
                replicas: 1,
                placement: PlacementMode::Spread.into(),
                ..Default::default()
            });
        }
        // Deployments contend for a few domains.
        let (domains, share) = match self.contend {
            true => (1, 0),
            false if self.own_domains => (3, 0),
            false => (3, 1),
        };
        let service = services.first().filter(|_| chance.within(0..3) >= share);
        let routes = service.map(|service: &v1::ServiceSpec| v1::Route {
            domain: match self.own_domains {
                true => format!("{deployment}.example"),
                false => format!("{}.example", chance.within(0..domains)),
            },
            tls_auto: self.tls_auto,
            deployment: deployment.clone(),
            service: service.name.clone(),
            port: 80,
            ..v1::Route::default()
        });
        let tcp_routes = self.draw_ports(&deployment, &services);
        v1::DeploymentApply {
            contents: contents(&deployment, &services),
            tcp_routes,
            routes: routes.into_iter().collect(),
            deployment,
            compose_yaml: documents::write(&images),
            services,
            networks: vec![v1::NetworkSpec {
                name: INTERNAL.to_owned(),
                internal: true,
            }],
            ..v1::DeploymentApply::default()
        }
    }
}

impl Clients {
    /// Published ports of a deployment; rarely one that another deployment may have.
    fn draw_ports(&mut self, deployment: &str, services: &[v1::ServiceSpec]) -> Vec<v1::TcpRoute> {
        let chance = &mut self.port_chance;
        let own = 9_000 + i32::from(deployment.as_bytes().last().copied().unwrap_or(0));
        let Some(service) = chance.choose(services).filter(|_| !self.contend) else {
            return Vec::new();
        };
        let published_port = match chance.within(0..12) {
            0..4 => return Vec::new(),
            4 => 9_000,
            _ => own,
        };
        let protocol = *chance
            .choose(&[TransportProtocol::Tcp, TransportProtocol::Udp])
            .unwrap_or(&TransportProtocol::Tcp);
        vec![v1::TcpRoute {
            published_port,
            deployment: deployment.to_owned(),
            service: service.name.clone(),
            container_port: 5432,
            protocol: protocol.into(),
            proxy_protocol: 0,
        }]
    }
}

impl Cluster {
    /// Begins the next operation of a client, through a random member.
    pub(super) fn client(&mut self, client: usize) {
        // In a long outage the domains stay the same.
        if self.faults_over || self.in_long_outage() {
            return;
        }
        let members = self.members();
        let node = self.clients.chance.choose(&members).copied();
        let up = node.and_then(|id| self.machines.get(&id));
        let Some(machine) = up.filter(|m| m.daemon.is_some()) else {
            let now = self.now;
            return self.clients.pause_client(client, now, &mut self.agenda);
        };
        let (node, ts) = (machine.id, machine.clock.timestamp(self.now));
        let hosts: Vec<String> = self.oracle.newest().nodes.keys().cloned().collect();
        let clients = &mut self.clients;
        clients.begun += 1;
        let number = clients.begun;
        let reads = clients.chance.within(0..6) == 0;
        let change = (!reads).then(|| clients.draw(&format!("op-{number}"), &hosts, ts));
        let op = Op {
            client,
            node,
            change,
            until: self.now + CLIENT_TIMEOUT,
            acknowledged: self.oracle.acknowledged,
        };
        self.note(&[40, number, node], || match &op.change {
            Some(change) => format!("op-{number} through n{node}: {}", what(change)),
            None => format!("op-{number} through n{node}: read"),
        });
        self.clients.ops.insert(number, op);
        self.attempt(number);
    }

    /// Lets every member, at rest, take a write and answer a consistent read.
    pub(super) fn probe_members(&mut self) {
        for node in self.members() {
            let until = self.now + CLIENT_TIMEOUT;
            self.probe(node, true, until);
            self.probe(node, false, until);
        }
    }

    fn probe(&mut self, node: u64, writes: bool, until: Time) {
        let Some(machine) = self.machines.get(&node) else {
            return;
        };
        let ts = machine.clock.timestamp(self.now);
        self.clients.begun += 1;
        let number = self.clients.begun;
        let token = v1::TokenIssue {
            identity: format!("last-{number}"),
            hashed_secret: number.to_be_bytes().to_vec(),
            allows_privileged: false,
        };
        let payload = Payload::TokenIssue(token);
        let change = Change::Command(command(format!("op-{number}"), ts, payload));
        let op = Op {
            client: PROBE_CLIENT,
            node,
            change: writes.then_some(change),
            until,
            acknowledged: self.oracle.acknowledged,
        };
        self.note(&[43, number, node], || {
            format!("op-{number} asks n{node} at rest")
        });
        self.clients.ops.insert(number, op);
        self.attempt(number);
    }

    fn attempt(&mut self, number: u64) {
        let Some(op) = self.clients.ops.get(&number).cloned() else {
            return;
        };
        let without_quorum = self.has(Mutation::ReadWithoutQuorum);
        let Some(daemon) = self.daemon(op.node) else {
            let now = self.now;
            return self.clients.lose(number, now, &mut self.agenda);
        };
        match op.change {
            Some(change) => self.submit(op.node, Requester::Client(number), change),
            None if without_quorum => {
                let applied = daemon.state.applied_index;
                self.read_done(number, applied);
            }
            None => {
                let ticket = daemon.ticket();
                daemon.reads.insert(ticket, Reader::Client(number));
                self.input(op.node, Input::Read(ticket));
            }
        }
    }

    /// Retries an operation.
    pub(super) fn retry(&mut self, number: u64) {
        self.attempt(number);
    }

    /// Ends a consistent read that was answered from the state at `applied`.
    pub(super) fn read_done(&mut self, number: u64, applied: u64) {
        let Some(op) = self.clients.ops.remove(&number) else {
            return;
        };
        self.clients.reads += 1;
        self.note(&[41, number, applied], || {
            format!("op-{number} read at {applied}")
        });
        if applied < op.acknowledged {
            let what = format!(
                "op-{number} read the state at {applied} from n{}, after {} was acknowledged",
                op.node, op.acknowledged
            );
            self.oracle.violate("consistent reads", what);
        }
        if op.client != PROBE_CLIENT {
            let now = self.now;
            self.clients.pause_client(op.client, now, &mut self.agenda);
        }
    }

    /// Ends a write, or schedules its retry.
    pub(super) fn client_answered(&mut self, number: u64, reply: Reply) {
        let Some(op) = self.clients.ops.get(&number) else {
            return;
        };
        let (client, node, until, now) = (op.client, op.node, op.until, self.now);
        if reply == Reply::NotAppended && now + RETRY_DELAY < op.until {
            return self.agenda.add(now + RETRY_DELAY, Event::Retry(number));
        }
        self.note(&[42, number], || format!("op-{number} gets {reply:?}"));
        // A sync slower than the election timeout costs a leader its leadership, even at rest:
        // retry.
        let again = client == PROBE_CLIENT && reply == Reply::Unknown && now < until;
        if client == PROBE_CLIENT && !again && !matches!(reply, Reply::Done(_)) {
            let what = format!("op-{number} through n{node} gets {reply:?}");
            self.clients.unserved.push(what);
        }
        match reply {
            Reply::Done(_) => self.clients.acknowledged += 1,
            Reply::Unknown => self.clients.unknown += 1,
            Reply::Rejected(_) | Reply::Block(_) | Reply::Exhausted => {}
            Reply::NotAppended => self.clients.failed.push(format!("op-{number}")),
        }
        self.clients.ops.remove(&number);
        if again {
            self.probe(node, true, until);
        } else if client != PROBE_CLIENT {
            self.clients.pause_client(client, now, &mut self.agenda);
        }
    }
}

/// Files that a service mounts: mostly none.
fn draw_files(chance: &mut Rng) -> Vec<v1::MountedFile> {
    let drawn = chance.within(0..6);
    let file = (drawn < 3).then(|| v1::MountedFile {
        kind: v1::FileKind::Config.into(),
        name: "site".to_owned(),
        target: "/site".to_owned(),
        mode: 0o444,
        content_id: format!("content-{drawn}"),
        ..Default::default()
    });
    file.into_iter().collect()
}

/// Contents of all files of these services, whether the state has them or not.
fn contents(deployment: &str, services: &[v1::ServiceSpec]) -> Vec<v1::FileContent> {
    let files = services.iter().flat_map(|spec| &spec.files);
    let ids: BTreeSet<&str> = files.map(|file| file.content_id.as_str()).collect();
    let content = |id: &str| v1::FileContent {
        deployment: deployment.to_owned(),
        id: id.to_owned(),
        content: id.as_bytes().to_vec(),
        size: u64::try_from(id.len()).unwrap_or(0),
        ..Default::default()
    };
    ids.into_iter().map(content).collect()
}

/// Sets what a service asks of the nodes of its replicas: mostly nothing.
fn draw_requirements(chance: &mut Rng, spec: &mut v1::ServiceSpec) {
    match chance.within(0..8) {
        limit @ 0..2 => {
            spec.max_replicas_per_node = if limit == 0 { 1 } else { 2 };
            // Replicas that are spread out seldom reach it.
            if spec.placement() == PlacementMode::Spread {
                spec.set_placement(PlacementMode::Pack);
            }
        }
        2 => spec.platform = "linux/arm64".to_owned(),
        at @ 3..5 => spec.constraints.push(v1::PlacementConstraint {
            attribute: "node.labels.zone".to_owned(),
            excludes: at == 3,
            value: "odd".to_owned(),
        }),
        _ => {}
    }
}

/// Networks of a service. Two of the names are equal once characters that a set name cannot have
/// are replaced.
fn draw_networks(chance: &mut Rng) -> Vec<String> {
    let networks: [&[&str]; 8] = [
        &[],
        &[],
        &[],
        &[],
        &["back-end"],
        &[INTERNAL],
        &["back-end", "default"],
        &["default", INTERNAL],
    ];
    let drawn = chance.choose(&networks).copied().unwrap_or_default();
    drawn.iter().map(|name| (*name).to_owned()).collect()
}

fn what(change: &Change) -> String {
    match change {
        Change::Command(command) => jaco_state::command_name(command).to_owned(),
        Change::Apply(apply, _) => format!(
            "apply {} as {}",
            apply.deployment,
            String::from_utf8_lossy(&apply.compose_yaml)
        ),
        Change::Rollback(name, _) => format!("roll {name} back"),
        Change::Delete(name, _) => format!("delete {name}"),
        Change::Hold(name, true, _) => format!("pause the rollouts of {name}"),
        Change::Hold(name, false, _) => format!("resume the rollouts of {name}"),
        Change::Secret(deployment, name, _) => format!("set {name} of {deployment}"),
        Change::Block(key, _) => format!("the block of {key}"),
    }
}
