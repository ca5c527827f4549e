//! A cluster of three nodes, a balancer in front of it, and an authority.

use std::time::{Duration, Instant};

use jaco_chaos::{Lab, Rng, lab::Builder, test_permits, until};
use jaco_proto::v1::{self, AuditEventType, AuditQueryRequest, NodeStatus};
use rustls_pki_types::CertificateDer;
use serde_json::json;
use tokio::sync::SemaphorePermit;

use crate::{
    authority::{Authority, Environment, Identity, Mode},
    balancer::Balancer,
    client::{self, Connection},
};

/// Far more than any step here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// The domain of the deployment.
pub(crate) const DOMAIN: &str = "shop.example.org";
/// Limit of the time in which all nodes serve a certificate that is stored.
pub(crate) const SERVED_WITHIN: Duration = Duration::from_secs(2);
/// Number of nodes.
pub(crate) const NODES: u8 = 3;

/// The running cluster. Its nodes have engines, without which they would not become ready, and run
/// no container: a route needs no replica to be served.
pub(crate) struct Running {
    pub(crate) authority: Authority,
    pub(crate) balancer: Balancer,
    pub(crate) lab: Lab,
    /// Root of the staging directory.
    pub(crate) staging: CertificateDer<'static>,
    /// Root of the production directory.
    pub(crate) production: CertificateDer<'static>,
    /// Released after the lab is removed.
    _permits: Option<SemaphorePermit<'static>>,
}

/// Settings of a cluster.
#[derive(Default)]
pub(crate) struct Settings {
    /// Lines of the daemons' configuration.
    pub(crate) config: &'static str,
    /// Lifetime of the production directory's certificates; zero for the default.
    pub(crate) validity: Duration,
    /// Whether the nodes check a domain before they order; they do not resolve the domains of the
    /// tests unless a test tells them.
    pub(crate) preflight: bool,
    /// Whether networks are isolated and joined by the mesh, without which a node serves only its own
    /// replicas.
    pub(crate) mesh: bool,
    /// Whether the clocks of the nodes can be set.
    pub(crate) clocks: bool,
    /// Seed of the balancer's choices; drawn and printed if the test has none.
    pub(crate) seed: Option<u64>,
}

impl Running {
    pub(crate) async fn start(settings: Settings) -> Self {
        let permits = test_permits::heavy().await;
        let identity = Identity::new();
        let isolation = if settings.mesh {
            ""
        } else {
            "isolation: off\n"
        };
        let config = format!(
            "{isolation}{}{}",
            identity.config(settings.preflight),
            settings.config
        );
        let builder: Builder = Lab::builder().nodes(NODES).engines(true);
        let builder = builder.clocks(settings.clocks);
        let builder = builder.hosts(&Identity::hosts()).config(&config);
        let mut lab = builder.start().await.unwrap();
        let authority = Authority::start(&lab, identity, settings.validity).await;
        let choices = settings.seed.map_or_else(Rng::announced, Rng::new);
        let balancer = Balancer::start(&lab, choices);
        lab.join_all().await.unwrap();
        lab.wait_voters(NODES.into()).await.unwrap();
        let staging = authority.root(Environment::Staging).await;
        let production = authority.root(Environment::Production).await;
        let running = Self {
            authority,
            balancer,
            lab,
            staging,
            production,
            _permits: permits,
        };
        running.all_ready().await;
        running
    }

    /// Waits until the leader reports every node as ready.
    pub(crate) async fn all_ready(&self) {
        until("all nodes are ready", LIMIT, || async {
            let leader = self.lab.leader().await.map_err(|error| error.to_string())?;
            let status = self.lab.node(leader).api().status().await;
            let status = status.map_err(|error| error.to_string())?;
            let ready = |node: &&v1::Node| node.status() == NodeStatus::Ready;
            match status.nodes.iter().filter(ready).count() {
                count if count == usize::from(NODES) => Ok(()),
                _ => Err(format!("{:?}", status.nodes)),
            }
        })
        .await
        .unwrap();
    }

    /// Applies a deployment with one route.
    pub(crate) async fn deploy(&self) {
        self.deploy_domains(&[DOMAIN], None).await;
    }

    /// Applies a deployment with a route for each of these domains.
    pub(crate) async fn deploy_domains(&self, domains: &[&str], tls: Option<&str>) {
        let routes = domains.iter().map(|domain| match tls {
            None => json!({ "domain": domain, "service": "web", "port": 80 }),
            Some(tls) => json!({ "domain": domain, "service": "web", "port": 80, "tls": tls }),
        });
        let jaco = json!({ "deployment": "shop", "routes": routes.collect::<Vec<_>>() });
        let compose = json!({ "services": { "web": { "image": "none" } } });
        let request = v1::ApplyRequest {
            jaco_yaml: jaco.to_string().into_bytes(),
            compose_yaml: compose.to_string().into_bytes(),
            dry_run: false,
            files: Vec::new(),
            secret_values: Default::default(),
        };
        let leader = self.lab.leader().await.unwrap();
        self.lab
            .node(leader)
            .api()
            .deploy()
            .apply(request)
            .await
            .unwrap();
    }

    /// The leaf of a node that verifies under `root`.
    pub(crate) async fn leaf(
        &self,
        node: u8,
        root: &CertificateDer<'static>,
    ) -> Result<CertificateDer<'static>, String> {
        let (hub, node) = (
            self.lab.network().namespace(),
            self.lab.node(node).address(),
        );
        let connection = Connection::open(hub, node, DOMAIN, root).await?;
        Ok(connection.leaf())
    }

    /// Waits until every node answers plain requests.
    pub(crate) async fn all_listen(&self) {
        let hub = self.lab.network().namespace();
        until("all nodes listen", LIMIT, || async {
            for node in self.lab.nodes() {
                let answer = client::get_plain(hub, node.address(), DOMAIN, "/").await;
                answer.map_err(|error| error.to_string())?;
            }
            Ok::<_, String>(())
        })
        .await
        .unwrap();
    }

    /// Waits until a node presents a leaf that verifies under the production root, then until all do,
    /// and returns the leaf and the time in between.
    pub(crate) async fn landed(&self) -> (CertificateDer<'static>, Duration) {
        until("a node serves a production certificate", LIMIT, || async {
            let mut leaf = Err(String::new());
            for node in 1..=NODES {
                leaf = leaf.or(self.leaf(node, &self.production).await);
            }
            leaf
        })
        .await
        .unwrap();
        let first = Instant::now();
        (self.promoted().await, first.elapsed())
    }

    /// Waits until all nodes present one leaf that verifies under the production root.
    pub(crate) async fn promoted(&self) -> CertificateDer<'static> {
        self.promoted_within(LIMIT).await
    }

    /// As [`Running::promoted`], with a limit of its own.
    pub(crate) async fn promoted_within(&self, limit: Duration) -> CertificateDer<'static> {
        until(
            "all nodes serve one production certificate",
            limit,
            || async {
                let mut leaves = Vec::new();
                for node in 1..=NODES {
                    let leaf = self.leaf(node, &self.production).await;
                    leaves.push(leaf.map_err(|error| format!("n{node}: {error}"))?);
                }
                leaves.dedup();
                match &leaves[..] {
                    [leaf] => Ok(leaf.clone()),
                    _ => Err("the nodes serve different certificates".to_owned()),
                }
            },
        )
        .await
        .unwrap()
    }

    /// Waits until the log has an event of this kind with these values.
    pub(crate) async fn audited(&self, kind: AuditEventType, values: &[(&str, &str)]) {
        until("the event is audited", LIMIT, || async {
            let events = self.events().await?;
            let holds = |event: &v1::AuditEvent| {
                let mut values = values.iter();
                event.r#type() == kind
                    && values
                        .all(|(key, value)| event.payload.get(*key).is_some_and(|v| v == value))
            };
            let found = events.iter().any(holds);
            found.then_some(()).ok_or_else(|| format!("{events:?}"))
        })
        .await
        .unwrap();
    }

    /// Events about certificates.
    pub(crate) async fn events(&self) -> Result<Vec<v1::AuditEvent>, String> {
        let leader = self.lab.leader().await.map_err(|error| error.to_string())?;
        let mut api = self.lab.node(leader).api().audit();
        let stream = api.query(AuditQueryRequest::default()).await;
        let mut stream = stream.map_err(|error| error.to_string())?.into_inner();
        let mut events = Vec::new();
        while let Some(event) = stream.message().await.map_err(|error| error.to_string())? {
            if event.identity == "ingress" {
                events.push(event);
            }
        }
        Ok(events)
    }

    /// Kinds and environments of the events about certificates.
    pub(crate) async fn history(&self) -> Vec<(AuditEventType, String)> {
        let events = self.events().await.unwrap().into_iter();
        let named = events.map(|event| (event.r#type(), event.payload["acme_environment"].clone()));
        named.collect()
    }

    /// Sets what the authority answers.
    pub(crate) fn set_mode(&self, mode: Mode) {
        self.authority.set_mode(mode);
    }
}
