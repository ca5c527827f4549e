//! Certificates of operators, on every node.

use std::time::{Duration, Instant};

use jaco_chaos::{time_limits, until};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls_pki_types::CertificateDer;
use serde_json::{Value, json};

use crate::{
    authority::Mode,
    fixture::{DOMAIN, LIMIT, NODES, Running, SERVED_WITHIN, Settings},
};

/// A domain that only the wildcard covers.
const OTHER: &str = "blog.example.org";
const WILDCARD: &str = "*.example.org";

/// An operator's own authority, and its files.
struct Operator {
    dir: tempfile::TempDir,
    issuer: Issuer<'static, KeyPair>,
    root: CertificateDer<'static>,
}

impl Operator {
    fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().der().clone();
        Self {
            dir: tempfile::tempdir().unwrap(),
            issuer: Issuer::new(params, key),
            root,
        }
    }

    /// Writes a certificate for `name` and its key; returns the leaf.
    fn issue(&self, file: &str, name: &str) -> CertificateDer<'static> {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let leaf = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::write(self.path(file, "crt"), leaf.pem()).unwrap();
        std::fs::write(self.path(file, "key"), key.serialize_pem()).unwrap();
        leaf.der().clone()
    }

    fn path(&self, file: &str, kind: &str) -> String {
        let path = self.dir.path().join(format!("{file}.{kind}"));
        path.to_str().unwrap().to_owned()
    }
}

impl Running {
    /// Runs `jaco` on a node, and returns whether it succeeded, and its output.
    pub(crate) async fn jaco(&self, node: u8, words: &[&str]) -> (bool, String) {
        let output = self.lab.node(node).jaco(words).await.unwrap();
        let bytes = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(bytes).unwrap())
    }

    /// Output of `jaco` as JSON.
    pub(crate) async fn json(&self, node: u8, words: &[&str]) -> Result<Value, String> {
        let (good, output) = self.jaco(node, &[words, &["-o", "json"]].concat()).await;
        let parsed = serde_json::from_str(&output).ok().filter(|_| good);
        parsed.ok_or(output)
    }

    /// Waits until every node presents `leaf` for `domain`; returns how long that took.
    async fn served(
        &self,
        domain: &str,
        root: &CertificateDer<'static>,
        leaf: &CertificateDer<'static>,
    ) -> Duration {
        let start = Instant::now();
        until("every node serves it", LIMIT, || async {
            for node in 1..=NODES {
                let (hub, at) = (
                    self.lab.network().namespace(),
                    self.lab.node(node).address(),
                );
                let connection = crate::client::Connection::open(hub, at, domain, root).await?;
                if connection.leaf() != *leaf {
                    return Err(format!("n{node} serves another one"));
                }
            }
            Ok(())
        })
        .await
        .unwrap();
        start.elapsed()
    }
}

/// Name, source and state of the certificates that a node lists.
async fn listed(running: &Running, node: u8) -> Vec<Value> {
    let list = running.json(node, &["cert", "list"]).await.unwrap();
    let rows = list["certs"].as_array().unwrap().iter();
    let imported = rows.filter(|row| row["source"] == "imported");
    imported
        .map(|row| json!([row["name"], row["state"]]))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn imported_certificate_is_served_by_every_node() {
    let running = Running::start(Settings::default()).await;
    running.set_mode(Mode::Down);
    running.deploy_domains(&[DOMAIN, OTHER], None).await;
    let operator = Operator::new();
    let wild = operator.issue("wild", WILDCARD);
    let exact = operator.issue("exact", DOMAIN);
    let import = async |node: u8, name: &str, cert: &str, key: &str| {
        let (cert, key) = (operator.path(cert, "crt"), operator.path(key, "key"));
        let words = ["cert", "import", name, "--cert", &cert, "--key", &key];
        running.jaco(node, &words).await
    };

    let (accepted, output) = import(1, DOMAIN, "exact", "wild").await;
    assert!(!accepted && output.contains("cert_invalid"), "{output}");
    let (accepted, output) = import(1, DOMAIN, "wild", "wild").await;
    assert!(
        accepted,
        "a wildcard certificate covers the domain: {output}"
    );
    let (removed, output) = running.jaco(1, &["cert", "rm", DOMAIN]).await;
    assert!(removed, "{output}");

    let (imported, output) = import(2, WILDCARD, "wild", "wild").await;
    assert!(imported, "{output}");
    for domain in [DOMAIN, OTHER] {
        let took = running.served(domain, &operator.root, &wild).await;
        time_limits::time(&format!("wildcard for {domain}"), took, SERVED_WITHIN).unwrap();
    }
    let (imported, output) = import(3, DOMAIN, "exact", "exact").await;
    assert!(imported, "{output}");
    let took = running.served(DOMAIN, &operator.root, &exact).await;
    time_limits::time("the exact certificate", took, SERVED_WITHIN).unwrap();
    running.served(OTHER, &operator.root, &wild).await;
    for node in 1..=NODES {
        let expected = [json!([WILDCARD, "valid"]), json!([DOMAIN, "valid"])];
        assert_eq!(listed(&running, node).await, expected, "n{node}");
    }

    // Every node opens the keys again after a restart.
    let mut running = running;
    running.lab.node_mut(1).kill().unwrap();
    running.lab.node_mut(1).start().await.unwrap();
    running.served(DOMAIN, &operator.root, &exact).await;

    let (removed, output) = running.jaco(1, &["cert", "rm", DOMAIN]).await;
    assert!(removed, "{output}");
    let took = running.served(DOMAIN, &operator.root, &wild).await;
    time_limits::time("after the removal", took, SERVED_WITHIN).unwrap();
    for node in 1..=NODES {
        assert_eq!(listed(&running, node).await, [json!([WILDCARD, "valid"])]);
    }
}
