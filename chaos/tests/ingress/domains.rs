//! A domain and its TLS in two steps: `jaco domain check`, then `jaco tls enable`.

use std::fs;

use jaco_chaos::{
    lab::network::HUB,
    until,
    upstream::{self, HTTP_PORT, IMAGE, PROGRAM},
};
use jaco_proto::v1::ApplyRequest;
use serde_json::{Value, json};

use crate::{
    client,
    fixture::{DOMAIN, LIMIT, NODES, Running, Settings},
    service::{Serving, containers},
};

/// An address without a machine (RFC 5737).
const WRONG: &str = "192.0.2.1";

impl Running {
    /// Sets the address of the domain as the nodes resolve it; the directory has its own resolver.
    fn set_record(&self, address: Option<&str>) {
        for node in self.lab.nodes() {
            let record = address.map(|address| format!("{address} {DOMAIN}\n"));
            let lines = crate::authority::Identity::hosts() + &record.unwrap_or_default();
            fs::write(node.path("hosts"), lines).unwrap();
        }
    }

    /// Waits until `jaco domain check` of every node has this first verdict.
    async fn checked(&self, verdict: &str) {
        for node in 1..=NODES {
            until("the domain is judged", LIMIT, || async {
                let check = self.json(node, &["domain", "check", DOMAIN]).await?;
                let first = &check["addresses"][0]["verdict"];
                let good = first == verdict && check["ok"] == (verdict == "ok");
                good.then_some(()).ok_or_else(|| check.to_string())
            })
            .await
            .unwrap();
        }
    }

    /// Waits until `jaco tls status` of every node has this state; returns the row of the last.
    async fn tls_state(&self, tls: &str, state: Option<&str>) -> Value {
        let mut last = Value::Null;
        for node in 1..=NODES {
            last = until("the state of the certificate", LIMIT, || async {
                let status = self.json(node, &["tls", "status", "shop"]).await?;
                let row = status["domains"][0].clone();
                let good = row["tls"] == tls && row["state"].as_str() == state;
                good.then_some(row).ok_or_else(|| status.to_string())
            })
            .await
            .unwrap();
        }
        last
    }

    /// Applies a deployment with one container, whose route is without TLS, and waits for the container.
    async fn deploy_container(&self) -> Vec<Serving> {
        for node in self.lab.nodes() {
            upstream::import(&node.engine().await.unwrap())
                .await
                .unwrap();
        }
        let route = json!({ "domain": DOMAIN, "service": "web", "port": HTTP_PORT, "tls": "off" });
        let jaco = json!({ "deployment": "shop", "routes": [route] });
        let web = json!({ "image": IMAGE, "pull_policy": "never", "command": [PROGRAM] });
        let compose = json!({ "services": { "web": web } });
        let request = ApplyRequest {
            jaco_yaml: jaco.to_string().into_bytes(),
            compose_yaml: compose.to_string().into_bytes(),
            dry_run: false,
            files: Vec::new(),
            secret_values: Default::default(),
        };
        let leader = self.lab.leader().await.unwrap();
        let mut api = self.lab.node(leader).api().deploy();
        api.apply(request).await.unwrap();
        until("the container runs", LIMIT, || async {
            let found = containers(self).await?;
            match found.len() {
                1 => Ok(found),
                _ => Err(format!("{found:?}")),
            }
        })
        .await
        .unwrap()
    }

    /// Waits until every node answers plain requests with this status.
    async fn plain_status(&self, status: &str) {
        let hub = self.lab.network().namespace();
        for node in self.lab.nodes() {
            until("the answer to a plain request", LIMIT, || async {
                let answer = client::get_plain(hub, node.address(), DOMAIN, "/").await;
                let answer = answer.map_err(|error| error.to_string())?;
                let good = answer.starts_with(&format!("HTTP/1.1 {status}"));
                good.then_some(()).ok_or(answer)
            })
            .await
            .unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn order_waits_for_the_record_and_spares_containers() {
    let running = Running::start(Settings {
        config: "acme_skip_staging: true\n",
        preflight: true,
        mesh: true,
        ..Settings::default()
    })
    .await;
    running.set_record(Some(WRONG));
    let before = running.deploy_container().await;
    running.plain_status("200").await;
    running.tls_state("off", None).await;
    running.checked("unreachable").await;

    let (enabled, output) = running.jaco(1, &["tls", "enable", "shop"]).await;
    assert!(enabled, "{output}");
    running.plain_status("308").await;
    let waiting = running.tls_state("auto", Some("waiting_dns")).await;
    let reason = waiting["reason"].as_str().unwrap();
    assert!(
        reason.contains(WRONG) && reason.contains("unreachable"),
        "{reason}"
    );
    let counts = *running.authority.counts().borrow();
    assert_eq!(counts.requests, 0, "no attempt: {counts:?}");
    assert_eq!(containers(&running).await.unwrap(), before);

    let (disabled, output) = running.jaco(2, &["tls", "disable", "shop"]).await;
    assert!(disabled, "{output}");
    running.tls_state("off", None).await;
    running.plain_status("200").await;
    assert_eq!(containers(&running).await.unwrap(), before);

    running.set_record(Some(&HUB.to_string()));
    running.checked("ok").await;
    let words = [
        "tls", "enable", "shop", "--domain", DOMAIN, "--wait", "100s",
    ];
    let (enabled, output) = running.jaco(3, &words).await;
    assert!(enabled, "{output}");
    running.promoted().await;
    let row = running.tls_state("auto", Some("valid")).await;
    assert_eq!(row["source"], "acme", "{row}");
    let counts = *running.authority.counts().borrow();
    assert_eq!((counts.staging, counts.production), (0, 1), "{counts:?}");
    assert_eq!(containers(&running).await.unwrap(), before);
}
