//! A deployment whose replicas answer HTTP and a published port, and certificates to import for it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    sync::Arc,
};

use jaco_chaos::{
    lab::Node,
    rng, until,
    upstream::{self, ECHO_PORT, HTTP_PORT, IMAGE, PROGRAM, name_of},
};
use jaco_proto::v1::{self, ReplicaState};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::RootCertStore;
use rustls_pki_types::CertificateDer;
use serde_json::json;

use crate::{
    client,
    fixture::{DOMAIN, LIMIT, NODES, Running},
    load::Target,
};

/// Domain that is served without TLS.
pub(crate) const PLAIN: &str = "plain.example.org";
/// The port of all nodes that leads to the echo port of the replicas.
pub(crate) const PUBLISHED: u16 = 9001;
const NAME: &str = "load";

/// A container that serves, by the name in its answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Serving {
    pub(crate) node: u8,
    /// Engine id.
    pub(crate) container: String,
    pub(crate) replica: String,
}

/// The deployment and its number of replicas.
pub(crate) struct Service {
    pub(crate) replicas: u32,
    /// Whether there is a route without requests.
    extra: bool,
    issuer: TestCa,
}

/// A CA of operators.
struct TestCa {
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl TestCa {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(DnType::CommonName, "operators");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().der().clone();
        Self {
            issuer: Issuer::new(params, key),
            root,
        }
    }
}

impl Service {
    /// Deploys it, and waits until every node serves it.
    pub(crate) async fn deploy(running: &Running, replicas: u32) -> Self {
        for node in running.lab.nodes() {
            upstream::import(&node.engine().await.unwrap())
                .await
                .unwrap();
        }
        let service = Self {
            replicas,
            extra: false,
            issuer: TestCa::new(),
        };
        service.apply(running).await;
        running.promoted().await;
        service.settled(running, &BTreeSet::new()).await;
        for node in 1..=NODES {
            service.served(running, node).await;
        }
        service
    }

    /// Clients of the deployment from outside of the cluster.
    pub(crate) fn target(&self, running: &Running) -> Target {
        let mut roots = RootCertStore::empty();
        roots.add(running.production.clone()).unwrap();
        roots.add(self.issuer.root.clone()).unwrap();
        Target {
            hub: running.lab.network().namespace().to_owned(),
            nodes: running.lab.nodes().iter().map(Node::address).collect(),
            plain: PLAIN,
            secure: DOMAIN,
            port: PUBLISHED,
            roots: Arc::new(roots),
        }
    }

    /// Applies a number of replicas.
    pub(crate) async fn scale(&mut self, running: &Running, replicas: u32) {
        self.replicas = replicas;
        self.apply(running).await;
    }

    /// Adds or removes a route without requests.
    pub(crate) async fn change_routes(&mut self, running: &Running) {
        self.extra = !self.extra;
        self.apply(running).await;
    }

    async fn apply(&self, running: &Running) {
        let check = format!("http://127.0.0.1:{HTTP_PORT}/");
        let service = json!({
            "image": IMAGE, "pull_policy": "never", "command": [PROGRAM],
            "ports": [format!("{PUBLISHED}:{ECHO_PORT}")],
            "healthcheck": {
                "test": ["CMD", "/bin/busybox", "wget", "-q", "-O", "/dev/null", check],
                "interval": "2s", "timeout": "5s", "retries": 3,
            },
        });
        let compose = json!({ "services": { "web": service } });
        let route = |domain, tls| json!({ "domain": domain, "service": "web", "port": HTTP_PORT, "tls": tls });
        let mut routes = vec![route(DOMAIN, "auto"), route(PLAIN, "off")];
        if self.extra {
            routes.push(route("extra.example.org", "off"));
        }
        let services = json!([{ "name": "web", "replicas": self.replicas }]);
        let jaco = json!({ "deployment": NAME, "services": services, "routes": routes });
        let request = v1::ApplyRequest {
            jaco_yaml: jaco.to_string().into_bytes(),
            compose_yaml: compose.to_string().into_bytes(),
            dry_run: false,
            files: Vec::new(),
            secret_values: Default::default(),
        };
        until("the deployment is applied", LIMIT, || async {
            let leader = running
                .lab
                .leader()
                .await
                .map_err(|error| error.to_string())?;
            let mut api = running.lab.node(leader).api().deploy();
            let applied = api.apply(request.clone()).await;
            applied.map(drop).map_err(|error| error.to_string())
        })
        .await
        .unwrap();
    }

    /// Waits until exactly the wanted number of replicas runs, none of them in a container of `but`,
    /// and returns their containers.
    pub(crate) async fn settled(&self, running: &Running, but: &BTreeSet<String>) -> Vec<Serving> {
        until("the replicas run", LIMIT, || async {
            let leader = running
                .lab
                .leader()
                .await
                .map_err(|error| error.to_string())?;
            let api = running.lab.node(leader).api();
            let replicas = api
                .replicas(NAME)
                .await
                .map_err(|error| error.to_string())?;
            let ready = replicas.iter().all(|r| r.state() == ReplicaState::Running);
            let seen = containers(running).await?;
            let same = replicas.iter().all(|replica| {
                let mut found = seen.iter();
                found.any(|serving| serving.container == replica.container_id)
            });
            let fresh = seen.iter().all(|serving| !but.contains(&serving.container));
            let wanted = usize::try_from(self.replicas).unwrap();
            if ready && same && fresh && replicas.len() == wanted && seen.len() == wanted {
                return Ok(seen);
            }
            let shown = replicas
                .iter()
                .map(|r| (&r.id, &r.host, r.state(), &r.code));
            Err(format!("{:?}, {seen:?}", shown.collect::<Vec<_>>()))
        })
        .await
        .unwrap()
    }

    /// Waits until a node answers for both domains.
    pub(crate) async fn served(&self, running: &Running, node: u8) {
        let target = self.target(running);
        let at = running.lab.node(node).address();
        until("the node serves", LIMIT, || async {
            let plain = client::get_plain(&target.hub, at, PLAIN, "/").await;
            let plain = plain.map_err(|error| error.to_string())?;
            if !plain.starts_with("HTTP/1.1 200") {
                return Err(plain);
            }
            match leaf(&target, at).await {
                Ok(_) => Ok(()),
                Err(error) => Err(error.to_string()),
            }
        })
        .await
        .unwrap();
    }

    /// Imports another certificate through a node, and waits until all nodes present it.
    pub(crate) async fn swap(&self, running: &Running, through: u8) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([DOMAIN.to_owned()]).unwrap();
        let signed = params.signed_by(&key, &self.issuer.issuer).unwrap();
        let name = format!("{:016x}", rng::unique());
        let path = |end: &str| running.lab.dir().join(format!("{name}.{end}"));
        let (chain, secret) = (path("pem"), path("key"));
        fs::write(&chain, signed.pem()).unwrap();
        fs::write(&secret, key.serialize_pem()).unwrap();
        let (chain, secret) = (chain.to_str().unwrap(), secret.to_str().unwrap());
        let words = ["cert", "import", DOMAIN, "--cert", chain, "--key", secret];
        let imported = running.lab.node(through).jaco(&words).await.unwrap();
        assert!(imported.status.success(), "{imported:?}");
        let target = self.target(running);
        until("all nodes present the certificate", LIMIT, || async {
            for node in &target.nodes {
                let leaf = leaf(&target, *node)
                    .await
                    .map_err(|error| error.to_string())?;
                if leaf != *signed.der() {
                    return Err(format!("{node} presents another one"));
                }
            }
            Ok(())
        })
        .await
        .unwrap();
    }
}

/// The certificate that a node presents.
async fn leaf(
    target: &Target,
    node: std::net::Ipv4Addr,
) -> std::io::Result<CertificateDer<'static>> {
    let socket = jaco_chaos::lab::netns::connect(&target.hub, (node, 443).into()).await;
    let socket = socket.map_err(std::io::Error::other)?;
    let stream = client::handshake(socket, DOMAIN, target.roots.clone()).await?;
    let (_, session) = stream.get_ref();
    Ok(session.peer_certificates().unwrap()[0].clone().into_owned())
}

/// The containers that run on all nodes.
pub(crate) async fn containers(running: &Running) -> Result<Vec<Serving>, String> {
    let mut found = Vec::new();
    for node in running.lab.nodes() {
        let engine = node.engine().await.map_err(|error| format!("{error:#}"))?;
        let containers = engine.containers(running.lab.cluster_id()).await;
        let containers = containers.map_err(|error| format!("{error:#}"))?;
        let runs = containers.into_iter().filter(|container| container.running);
        found.extend(runs.map(|container| Serving {
            node: node.index(),
            container: container.id,
            replica: container.replica,
        }));
    }
    Ok(found)
}

/// Nodes of the containers by the names in their answers.
pub(crate) fn by_name(serving: &[Serving]) -> BTreeMap<String, u8> {
    let named = serving
        .iter()
        .map(|s| (name_of(&s.container).to_owned(), s.node));
    named.collect()
}
