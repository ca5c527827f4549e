//! Several machines on one: real daemons in network namespaces, and a network that can be broken.
//!
//! A [`Lab`] owns, under one [`Name`], a directory, a namespace per [`Node`] and one that joins
//! them, the [`Wire`]. Dropping it removes all of it; what a killed owner leaves behind is found
//! by name and removed when the next lab starts.
//!
//! - [`clean`]: finding and removing by name.
//! - [`control`]: verbs from a command line.
//! - [`impair`]: the fate of packets on a bad line.
//! - [`netns`]: network namespaces.
//! - [`node`]: a machine and what can be done to it.
//! - [`registry`]: where images are pulled from.
//! - [`wire`]: the network between them.

use std::{path::PathBuf, process::Child};

use anyhow::{Context, Result, ensure};
use jaco_proto::v1::{self, node_suffrage::Kind};

use crate::{Api, Rng, until, wait::PATIENCE};

pub mod clean;
pub mod control;
pub mod impair;
pub mod netns;
pub mod node;
pub mod registry;
pub mod wire;

pub use clean::Name;
pub use impair::Impairment;
pub use node::Node;
pub use wire::Wire;

use impair::Direction;
use node::Equipment;

/// Most nodes of a lab.
pub const NODES_MAX: u8 = 16;
/// Lines of each log that are shown when a test fails.
const LOG_TAIL: usize = 60;

/// What a lab shall be like.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    nodes: u8,
    equipment: Equipment,
    seed: Option<u64>,
    quiet: bool,
}

impl Builder {
    /// How many nodes it has at first; they run daemons without a cluster.
    #[must_use]
    pub fn nodes(mut self, nodes: u8) -> Self {
        self.nodes = nodes;
        self
    }

    /// Whether every node has a container engine, and all a registry.
    #[must_use]
    pub fn engines(mut self, engines: bool) -> Self {
        self.equipment.engines = engines;
        self
    }

    /// Gives every daemon a disk of so many bytes, which can be filled.
    #[must_use]
    pub fn disk(mut self, bytes: u64) -> Self {
        self.equipment.disk = Some(bytes);
        self
    }

    /// Gives every daemon a clock that can be set.
    #[must_use]
    pub fn clocks(mut self, clocks: bool) -> Self {
        self.equipment.clock = clocks;
        self
    }

    /// More lines for the configuration of every daemon.
    #[must_use]
    pub fn config(mut self, lines: &str) -> Self {
        lines.clone_into(&mut self.equipment.config);
        self
    }

    /// Decides the fate of packets on impaired lines; drawn unless given.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Does not print the ends of the logs when it is dropped.
    #[must_use]
    pub fn quiet(mut self) -> Self {
        self.quiet = true;
        self
    }

    /// Builds it; all daemons answer.
    ///
    /// # Errors
    /// Without root, without the binaries, or when something does not come up; said of the lab by
    /// its name. Nothing is left then.
    pub async fn start(self) -> Result<Lab> {
        clean::stale()?;
        let name = Name::claim()?;
        let said = format!("lab {}", name.as_str());
        self.build(name).await.context(said)
    }

    async fn build(self, name: Name) -> Result<Lab> {
        let mut guard = Guard(Some(name.clone()));
        let seed = self.seed.unwrap_or_else(|| Rng::announced().number());
        let mut lab = Lab {
            wire: Wire::create(&name.place("hub"), seed)?,
            name,
            equipment: self.equipment,
            nodes: Vec::new(),
            registry: None,
            cluster_id: String::new(),
            operator_token: String::new(),
            quiet: self.quiet,
        };
        guard.0 = None; // from here on the lab cleans up
        if lab.equipment.engines {
            let hub = lab.wire.namespace().to_owned();
            lab.registry = Some(registry::start(&hub, &lab.name.dir()).await?);
        }
        lab.add(self.nodes).await?;
        Ok(lab)
    }
}

/// Removes a lab that was never finished.
struct Guard(Option<Name>);

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(name) = &self.0 {
            let _ = clean::remove(name); // the error that led here is the one to tell
        }
    }
}

/// Several machines on one.
#[derive(Debug)]
pub struct Lab {
    name: Name,
    wire: Wire,
    equipment: Equipment,
    nodes: Vec<Node>,
    registry: Option<Child>,
    cluster_id: String,
    operator_token: String,
    quiet: bool,
}

impl Lab {
    /// A lab of three nodes without engines, unless told otherwise.
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

    /// The `index`th node, to do something to it.
    ///
    /// # Panics
    /// When there is none.
    pub fn node_mut(&mut self, index: u8) -> &mut Node {
        &mut self.nodes[usize::from(index) - 1]
    }

    /// The network between them.
    #[must_use]
    pub fn wire(&self) -> &Wire {
        &self.wire
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

    /// The API of a node over TLS, as a client sees it that no fault of the network touches.
    ///
    /// # Errors
    /// Before the node has a cluster.
    pub fn remote_api(&self, index: u8) -> Result<Api> {
        let node = self.node(index);
        node.remote_api(self.wire.namespace(), &self.operator_token)
    }

    /// Adds machines whose daemons answer, and belong to no cluster.
    ///
    /// # Errors
    /// When there would be too many, or one does not come up.
    pub async fn add(&mut self, count: u8) -> Result<()> {
        let first = u8::try_from(self.nodes.len())?.saturating_add(1);
        let last = first.saturating_add(count).saturating_sub(1);
        ensure!(last <= NODES_MAX, "a lab has at most {NODES_MAX} nodes");
        for index in first..=last {
            let node = Node::create(&self.name, &self.wire, index, self.equipment.clone())?;
            self.nodes.push(node);
        }
        for index in first..=last {
            if self.equipment.engines {
                self.node(index).engine().await?;
            }
            self.node_mut(index).spawn()?;
        }
        for index in first..=last {
            self.node_mut(index).answers().await?;
        }
        Ok(())
    }

    /// Founds the cluster on the first node.
    ///
    /// # Errors
    /// As the daemon answers.
    pub async fn init(&mut self) -> Result<()> {
        let founded = self.node(1).api().init().await?;
        (self.cluster_id, self.operator_token) = (founded.cluster_id, founded.operator_token);
        self.leader().await?;
        Ok(())
    }

    /// Makes a node join the cluster through the node `through`.
    ///
    /// # Errors
    /// As the daemons answer.
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

    /// Removes a node from the cluster through the node `through`, after its replicas have moved,
    /// and kills its daemon: it belongs to no cluster any more.
    ///
    /// # Errors
    /// As the daemons answer.
    pub async fn remove(&mut self, index: u8, through: u8) -> Result<()> {
        let mut request = tonic::Request::new(v1::NodeRemoveRequest {
            hostname: self.node(index).host().to_owned(),
            force: false,
        });
        request.set_timeout(PATIENCE);
        let mut member = self.node(through).api().cluster();
        let removed = member.node_remove(request).await;
        removed.with_context(|| format!("n{index} is removed through n{through}"))?;
        self.node_mut(index).kill()
    }

    /// Founds the cluster on the first node and makes all others join it.
    ///
    /// # Errors
    /// As the daemons answer.
    pub async fn join_all(&mut self) -> Result<()> {
        self.init().await?;
        for index in 2..=u8::try_from(self.nodes.len())? {
            self.join(index, 1).await?;
        }
        self.agree(self.nodes.len()).await
    }

    /// Waits until all nodes that are up and belong to a cluster know of so many members, and of
    /// one leader.
    ///
    /// # Errors
    /// When they never do.
    pub async fn agree(&self, members: usize) -> Result<()> {
        until(
            &format!("{members} members everywhere"),
            PATIENCE,
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

    /// Waits until a node that is up says that it leads, and a majority of all that are up agrees;
    /// returns its number.
    ///
    /// # Errors
    /// When there never is one.
    pub async fn leader(&self) -> Result<u8> {
        until("a leader", PATIENCE, || self.sees_leader()).await
    }

    async fn sees_leader(&self) -> Result<u8, String> {
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

    /// Waits until the cluster has so many voters; returns their hostnames, sorted.
    ///
    /// # Errors
    /// When it never has.
    pub async fn wait_voters(&self, count: usize) -> Result<Vec<String>> {
        until(&format!("{count} voters"), PATIENCE, || async {
            let voters = self.voters().await?;
            if voters.len() == count {
                Ok(voters)
            } else {
                Err(format!("{voters:?}"))
            }
        })
        .await
    }

    /// Hostnames of the voters as the leader knows them, sorted.
    ///
    /// # Errors
    /// With the reason why they are not known now.
    pub async fn voters(&self) -> Result<Vec<String>, String> {
        let leader = self.sees_leader().await?;
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

    /// Waits until all members show the same state at one log index; returns that.
    ///
    /// # Errors
    /// When they never do.
    pub async fn same_state(&self) -> Result<u64> {
        until("one state", PATIENCE, || async {
            let leader = self.sees_leader().await?;
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
        self.wire.cut(both_ways(some, others))
    }

    /// Cuts only what `from` sends to `to`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn cut_one_way(&mut self, from: &[u8], to: &[u8]) -> Result<()> {
        self.wire.cut(one_way(from, to))
    }

    /// Cuts these nodes off from all others; among themselves they stay connected.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn isolate(&mut self, nodes: &[u8]) -> Result<()> {
        let others = self.others(nodes);
        self.cut(nodes, &others)
    }

    /// Makes the lines between these nodes bad, in both directions.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn impair(&mut self, some: &[u8], others: &[u8], how: Impairment) -> Result<()> {
        self.wire.impair(both_ways(some, others), how)
    }

    /// Makes the lines between all nodes bad.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn impair_all(&mut self, how: Impairment) -> Result<()> {
        let all = self.others(&[]);
        self.impair(&all, &all, how)
    }

    /// Makes the lines between these nodes whole again.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn heal(&mut self, some: &[u8], others: &[u8]) -> Result<()> {
        self.wire.heal(both_ways(some, others))
    }

    /// Makes all lines whole again.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn heal_all(&mut self) -> Result<()> {
        self.wire.heal_all()
    }

    /// Ends everything on a machine at once, as if its power were cut: daemon, engine, containers
    /// and the kernel's network. The disk stays.
    ///
    /// # Errors
    /// When something does not end.
    pub fn crash(&mut self, index: u8) -> Result<()> {
        self.nodes[usize::from(index) - 1].crash(&self.wire)
    }

    /// Turns a machine on that was crashed; returns when its daemon answers.
    ///
    /// # Errors
    /// When it does not come up.
    pub async fn boot(&mut self, index: u8) -> Result<()> {
        self.nodes[usize::from(index) - 1].boot(&self.wire).await
    }

    /// All nodes but these.
    #[must_use]
    pub fn others(&self, but: &[u8]) -> Vec<u8> {
        let all = self.nodes.iter().map(Node::index);
        all.filter(|index| !but.contains(index)).collect()
    }

    /// Pushes an image of busybox whose file `/about` holds `about`, and returns the reference
    /// that all nodes pull it by. The engines keep nothing of it.
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

    /// Shows the ends of all logs, and copies them whole to the directory in `JACO_LAB_LOGS`.
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
                // Nothing depends on it.
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
        // The TUN interface holds the namespace.
        self.wire.close();
        if let Err(error) = clean::remove(&self.name) {
            show(&format!(
                "{} is not cleaned up: {error:#}",
                self.name.as_str()
            ));
        }
    }
}

#[expect(clippy::print_stdout, reason = "a drop has nobody else to tell")]
fn show(text: &str) {
    println!("{text}");
}

fn one_way(from: &[u8], to: &[u8]) -> Vec<Direction> {
    let pairs = from.iter().flat_map(|a| to.iter().map(move |b| (*a, *b)));
    let pairs = pairs.filter(|(a, b)| a != b);
    pairs
        .map(|(a, b)| (wire::address(a), wire::address(b)))
        .collect()
}

fn both_ways(some: &[u8], others: &[u8]) -> Vec<Direction> {
    [one_way(some, others), one_way(others, some)].concat()
}
