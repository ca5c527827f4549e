//! A cluster of machines on one host: real daemons in network namespaces, and a network with
//! faults.
//!
//! A [`Lab`] owns, under one [`Name`], a directory, a namespace per [`Node`] and one that connects
//! them, the [`LabNetwork`]. Dropping it removes all of it; the next lab that starts finds the
//! remains of a lab with a killed owner by name and removes them.
//!
//! - [`clean`]: finding and removing by name.
//! - [`control`]: commands to a running lab.
//! - [`impair`]: loss, delay and reordering of packets.
//! - [`netns`]: network namespaces.
//! - [`node`]: a machine and the faults that can be injected into it.
//! - [`registry`]: the image registry of the engines.
//! - [`network`]: the network between the machines.
//! - `store`: keeps descriptors from one daemon to the next.

use std::{path::PathBuf, process::Child};

use anyhow::{Context, Result, ensure};
use jaco_proto::v1::{self, node_suffrage::Kind};

use crate::{Api, Rng, until, wait::WAIT_TIMEOUT};

pub mod clean;
pub mod control;
pub mod impair;
pub mod netns;
pub mod network;
pub mod node;
pub mod registry;
mod store;

pub use clean::Name;
pub use impair::Impairment;
pub use network::LabNetwork;
pub use node::Node;

use impair::Direction;
use node::NodeOptions;

/// Most nodes of a lab.
pub const NODES_MAX: u8 = 16;
/// Lines of each log that are printed when the lab is dropped.
const LOG_TAIL: usize = 60;

/// Settings of a lab.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    nodes: u8,
    options: NodeOptions,
    seed: Option<u64>,
    quiet: bool,
}

impl Builder {
    /// Sets the number of nodes at the start; they run daemons without a cluster.
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Sets whether every node has a container engine, and the lab a registry.
    #[must_use]
    pub fn engines(mut self, engines: bool) -> Self {
        self.options.engines = engines;
        self
    }

    /// Sets whether containers survive a restart of their engine (`live-restore` of dockerd).
    #[must_use]
    pub fn live_restore(mut self, live_restore: bool) -> Self {
        self.options.live_restore = live_restore;
        self
    }

    /// Gives every daemon a disk of `bytes` bytes, which can be filled.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.options.disk = Some(bytes);
        self
    }

    /// Gives every daemon a clock that can be set.
    #[must_use]
    pub fn clocks(mut self, clocks: bool) -> Self {
        self.options.clock = clocks;
        self
    }

    /// Adds lines to the configuration of every daemon.
    #[must_use]
    pub fn config(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.options.config);
        self
    }

    /// Gives every daemon these lines as `/etc/hosts`, to let names of the internet lead into the
    /// lab.
    #[must_use]
    pub fn hosts(mut self, lines: &str) -> Self {
        self.options.hosts = Some(lines.to_owned());
        self
    }

    /// Seeds the choices about packets on impaired links; random unless given.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Suppresses the ends of the logs that are printed on drop.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Builds the lab and waits until all daemons answer.
    ///
    /// # Errors
    /// Without root, without the binaries, or when a part does not come up; the error names the
    /// lab. Nothing is left behind.
    pub async fn start(self) -> Result<Lab> {
        clean::stale()?;
        let name = Name::create()?;
        let said = format!("lab {}", name.as_str());
        self.build(name).await.context(said)
    }

    async fn build(self, name: Name) -> Result<Lab> {
        let mut guard = Guard(Some(name.clone()));
        let seed = self.seed.unwrap_or_else(|| Rng::announced().number());
        let mut lab = Lab {
            network: LabNetwork::create(&name.resource_name("hub"), seed)?,
            name,
            options: self.options,
            nodes: Vec::new(),
            registry: None,
            cluster_id: String::new(),
            operator_token: String::new(),
            quiet: self.quiet,
        };
        guard.0 = None; // from here on dropping the lab cleans up
        if lab.options.engines {
            let hub = lab.network.namespace().to_owned();
            lab.registry = Some(registry::start(&hub, &lab.name.dir()).await?);
        }
        lab.add(self.nodes).await?;
        Ok(lab)
    }
}

/// Removes a lab whose construction failed.
struct Guard(Option<Name>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            let _ = clean::remove(name); // the first error is the one to report
        }
    }
}

/// A cluster of machines on one host.
#[derive(Debug)]
pub struct Lab {
    name: Name,
    network: LabNetwork,
    options: NodeOptions,
    nodes: Vec<Node>,
    registry: Option<Child>,
    cluster_id: String,
    operator_token: String,
    quiet: bool,
}

impl Lab {
    /// Settings of a lab of three nodes without engines.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            nodes: 3,
            ..Builder::default()
        }
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Its directory.
    #[must_use]
    pub fn dir(&self) -> PathBuf {
        self.name.dir()
    }

    /// All nodes, in order.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The `index`th node, from 1.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn node(&self, index: u8) -> &Node {
        &self.nodes[usize::from(index) - 1]
    }

    /// Mutable access to the `index`th node.
    ///
    /// # Panics
    /// When there is none.
    pub fn node_mut(&mut self, index: u8) -> &mut Node {
        &mut self.nodes[usize::from(index) - 1]
    }

    /// The network between the nodes.
    #[must_use]
    pub fn network(&self) -> &LabNetwork {
        &self.network
    }

    /// Id of the cluster; empty before [`Lab::init`].
    #[must_use]
    pub fn cluster_id(&self) -> &str {
        &self.cluster_id
    }

    /// The operator token of the cluster; empty before [`Lab::init`].
    #[must_use]
    pub fn operator_token(&self) -> &str {
        &self.operator_token
    }

    /// The API of a node over TLS, from a client that network faults do not affect.
    ///
    /// # Errors
    /// Before the node has a cluster.
    pub fn remote_api(&self, index: u8) -> Result<Api> {
        let node = self.node(index);
        node.remote_api(self.network.namespace(), &self.operator_token)
    }

    /// Adds machines with running daemons that belong to no cluster.
    ///
    /// # Errors
    /// When there would be too many, or one does not come up.
    pub async fn add(&mut self, count: u8) -> Result<()> {
        let first = u8::try_from(self.nodes.len())?.saturating_add(1);
        let last = first.saturating_add(count).saturating_sub(1);
        ensure!(last <= NODES_MAX, "a lab has at most {NODES_MAX} nodes");
        for index in first..=last {
            let node = Node::create(&self.name, &self.network, index, self.options.clone())?;
            self.nodes.push(node);
        }
        for index in first..=last {
            if self.options.engines {
                self.node(index).engine().await?;
            }
            self.node_mut(index).spawn()?;
        }
        for index in first..=last {
            self.node_mut(index).wait_ready().await?;
        }
        Ok(())
    }

    /// Initialises the cluster on the first node.
    ///
    /// # Errors
    /// The error that the daemon returns.
    pub async fn init(&mut self) -> Result<()> {
        let founded = self.node(1).api().init().await?;
        (self.cluster_id, self.operator_token) = (founded.cluster_id, founded.operator_token);
        self.leader().await?;
        Ok(())
    }

    /// Makes a node join the cluster through the node `through`.
    ///
    /// # Errors
    /// The error that a daemon returns.
    pub async fn join(&self, index: u8, through: u8) -> Result<()> {
        let mut member = self.node(through).api().cluster();
        let issued = member
            .issue_join_token(v1::IssueJoinTokenRequest {})
            .await?;
        let request = v1::ClusterJoinRequest {
            peer_addr: self.node(through).api_address().to_string(),
            join_token: issued.into_inner().token,
        };
        let joined = self.node(index).api().cluster().join(request).await;
        joined.with_context(|| format!("n{index} joins through n{through}"))?;
        Ok(())
    }

    /// Removes a node from the cluster through the node `through`, which moves its replicas first,
    /// and kills its daemon.
    ///
    /// # Errors
    /// The error that a daemon returns.
    pub async fn remove(&mut self, index: u8, through: u8) -> Result<()> {
        let mut request = tonic::Request::new(v1::NodeRemoveRequest {
            hostname: self.node(index).host().to_owned(),
            force: false,
        });
        request.set_timeout(WAIT_TIMEOUT);
        let mut member = self.node(through).api().cluster();
        let removed = member.node_remove(request).await;
        removed.with_context(|| format!("n{index} is removed through n{through}"))?;
        self.node_mut(index).kill()
    }

    /// Initialises the cluster on the first node and joins all others to it.
    ///
    /// # Errors
    /// The error that a daemon returns.
    pub async fn join_all(&mut self) -> Result<()> {
        self.init().await?;
        for index in 2..=u8::try_from(self.nodes.len())? {
            self.join(index, 1).await?;
        }
        self.wait_members(self.nodes.len()).await
    }

    /// Waits until all running nodes with a cluster report this number of members and one common
    /// leader.
    ///
    /// # Errors
    /// When they do not within [`WAIT_TIMEOUT`].
    pub async fn wait_members(&self, members: usize) -> Result<()> {
        until(
            &format!("{members} members everywhere"),
            WAIT_TIMEOUT,
            || async {
                let mut leaders = std::collections::BTreeSet::new();
                for node in self.nodes.iter().filter(|node| node.is_up()) {
                    let status = node.api().status().await.map_err(|e| e.to_string())?;
                    if !status.initialized {
                        continue;
                    }
                    if status.nodes.len() != members || status.leader_hostname.is_empty() {
                        return Err(format!("{}: {status:?}", node.host()));
                    }
                    leaders.insert(status.leader_hostname);
                }
                if leaders.len() == 1 {
                    Ok(())
                } else {
                    Err(format!("leaders: {leaders:?}"))
                }
            },
        )
        .await
    }

    /// Waits until a majority of the running nodes reports a running node as leader; returns its
    /// number.
    ///
    /// # Errors
    /// When there is none within [`WAIT_TIMEOUT`].
    pub async fn leader(&self) -> Result<u8> {
        until("a leader", WAIT_TIMEOUT, || self.find_leader()).await
    }

    async fn find_leader(&self) -> Result<u8, String> {
        let up: Vec<&Node> = self.nodes.iter().filter(|node| node.is_up()).collect();
        let asked = up.iter().map(|node| node.api().status());
        let answers = futures::future::join_all(asked).await;
        let mut votes = Vec::new();
        let mut members = 0;
        for status in answers
            .into_iter()
            .flatten()
            .filter(|status| status.initialized)
        {
            members += 1;
            votes.push(status.leader_hostname);
        }
        let of = |host: &str| votes.iter().filter(|vote| *vote == host).count();
        let leads = up.iter().find(|node| of(node.host()) * 2 > members);
        leads
            .map(|node| node.index())
            .ok_or_else(|| format!("{votes:?}"))
    }

    /// Waits until the cluster has this number of voters; returns their hostnames, sorted.
    ///
    /// # Errors
    /// When it does not within [`WAIT_TIMEOUT`].
    pub async fn wait_voters(&self, count: usize) -> Result<Vec<String>> {
        until(&format!("{count} voters"), WAIT_TIMEOUT, || async {
            let voters = self.voters().await?;
            if voters.len() == count {
                Ok(voters)
            } else {
                Err(format!("{voters:?}"))
            }
        })
        .await
    }

    /// Hostnames of the voters as the leader reports them, sorted.
    ///
    /// # Errors
    /// When the leader cannot be determined or does not answer.
    pub async fn voters(&self) -> Result<Vec<String>, String> {
        let leader = self.find_leader().await?;
        let status = self
            .node(leader)
            .api()
            .status()
            .await
            .map_err(|e| e.to_string())?;
        let voters = status
            .suffrages
            .into_iter()
            .filter(|s| s.kind() == Kind::Voter);
        let mut voters: Vec<String> = voters.map(|s| s.hostname).collect();
        voters.sort();
        Ok(voters)
    }

    /// Waits until all members report equal state digests at one log index; returns that index.
    ///
    /// # Errors
    /// When they do not within [`WAIT_TIMEOUT`].
    pub async fn wait_same_state(&self) -> Result<u64> {
        until("one state", WAIT_TIMEOUT, || async {
            let leader = self.find_leader().await?;
            let mut cluster = self.node(leader).api().cluster();
            let seen = cluster.digest(v1::DigestRequest {}).await;
            let seen = seen.map_err(|e| e.to_string())?.into_inner();
            let same = |node: &v1::NodeDigest| {
                node.index == seen.index
                    && !node.digest.is_empty()
                    && node.digest == seen.nodes[0].digest
            };
            if seen.nodes.iter().all(same) {
                Ok(seen.index)
            } else {
                Err(format!("{seen:?}"))
            }
        })
        .await
    }

    /// Cuts every pair of a node of `some` and one of `others`, in both directions.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn cut(&mut self, some: &[u8], others: &[u8]) -> Result<()> {
        self.network.cut(both_ways(some, others))
    }

    /// Drops only packets from `from` to `to`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn cut_one_way(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.network.cut(one_way(from, to))
    }

    /// Partitions these nodes from all others; among themselves they stay connected.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn isolate(&mut self, nodes: &[u8]) -> Result<()> {
        let others = self.others(nodes);
        self.cut(nodes, &others)
    }

    /// Impairs the links between these nodes, in both directions.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn impair(&mut self, some: &[u8], others: &[u8], how: Impairment) -> Result<()> {
        self.network.impair(both_ways(some, others), how)
    }

    /// Impairs the links between all nodes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn impair_all(&mut self, how: Impairment) -> Result<()> {
        let all = self.others(&[]);
        self.impair(&all, &all, how)
    }

    /// Removes all faults from the links between these nodes.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn heal(&mut self, some: &[u8], others: &[u8]) -> Result<()> {
        self.network.heal(both_ways(some, others))
    }

    /// Removes all faults from all links.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn heal_all(&mut self) -> Result<()> {
        self.network.heal_all()
    }

    /// Ends everything on a machine at once, as a power cut would: daemon, engine, containers and
    /// the kernel's network. The disk stays.
    ///
    /// # Errors
    /// When something does not end.
    pub fn crash(&mut self, index: u8) -> Result<()> {
        self.nodes[usize::from(index) - 1].crash(&self.network)
    }

    /// Restarts a machine that was crashed; returns when its daemon answers.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn boot(&mut self, index: u8) -> Result<()> {
        self.power_on(index).await?;
        self.node_mut(index).start().await
    }

    /// Restarts a machine that was crashed, without its daemon; returns when its engine answers.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn power_on(&mut self, index: u8) -> Result<()> {
        let node = &mut self.nodes[usize::from(index) - 1];
        node.power_on(&self.network)?;
        if self.options.engines {
            node.engine().await?;
        }
        Ok(())
    }

    /// All nodes but these.
    #[must_use]
    pub fn others(&self, but: &[u8]) -> Vec<u8> {
        let all = self.nodes.iter().map(Node::index);
        all.filter(|index| !but.contains(index)).collect()
    }

    /// Pushes an image of busybox whose file `/about` holds `about`, and returns the reference by
    /// which all nodes pull it. The image is removed from the engine that pushed it.
    ///
    /// # Errors
    /// Without engines, or when the engine or the registry refuses.
    pub async fn push(&self, name: &str, about: &str) -> Result<String> {
        let image = format!("{}/{name}", registry::address());
        let engine = self.node(1).engine().await?;
        engine.import_as(&image, about).await?;
        registry::push(&self.node(1).engine_socket(), &image).await?;
        engine.remove_image(&image).await?;
        Ok(image)
    }

    /// Prints the ends of all logs, and copies whole logs to the directory in `JACO_LAB_LOGS`.
    #[expect(
        clippy::print_stdout,
        reason = "the test harness shows it if the test fails"
    )]
    fn show_logs(&self) {
        for node in &self.nodes {
            println!(
                "--- end of the log of {}\n{}\n---",
                node.host(),
                node.log_tail(LOG_TAIL)
            );
            if let Some(dir) = std::env::var_os("JACO_LAB_LOGS").map(PathBuf::from) {
                let to = dir.join(format!("{}-{}.log", self.name.as_str(), node.host()));
                // A failed copy is ignored: the logs are for diagnosis only.
                let _ = std::fs::create_dir_all(dir);
                let _ = std::fs::copy(node.path("jacod.log"), to);
            }
        }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if !self.quiet {
            self.show_logs();
        }
        self.nodes.iter_mut().for_each(Node::reap);
        if let Some(mut registry) = self.registry.take() {
            let _ = registry.kill(); // it may have ended by itself
            let _ = registry.wait();
        }
        // Closing the TUN interface releases the namespace.
        self.network.close();
        if let Err(error) = clean::remove(&self.name) {
            show(&format!(
                "{} is not cleaned up: {error:#}",
                self.name.as_str()
            ));
        }
    }
}

#[expect(clippy::print_stdout, reason = "drop cannot return an error")]
fn show(text: &str) {
    println!("{text}");
}

fn one_way(from: &[u8], to: &[u8]) -> Vec<Direction> {
    let pairs = from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b)));
    let pairs = pairs.filter(|(a, b)| a != b);
    pairs
        .map(|(a, b)| (network::address(a), network::address(b)))
        .collect()
}

fn both_ways(some: &[u8], others: &[u8]) -> Vec<Direction> {
    [one_way(some, others), one_way(others, some)].concat()
}
