//! Limits of clients, at every node by itself.

use jaco_chaos::{rng, test_permits, until};

use crate::{
    fixture::LIMIT,
    plain::{apply, cluster, get, web},
};

/// Requests that pass at once.
const BURST: usize = 3;
/// Requests beyond them.
const REFUSED: usize = 5;
const METRICS: &str = "127.0.0.1:9100";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_node_refuses_clients_beyond_their_limit() {
    let _permits = test_permits::heavy().await;
    let lab = cluster(&format!("metrics_addr: {METRICS}\n")).await;
    let name = format!("limits-{:08x}", rng::unique() >> 32);
    // The burst does not recover while the test runs.
    let limits =
        "limits: {rps: 0.003, burst_multiplier: 1000, connections: 20, exempt: [/index.html]}";
    apply(&lab, web(&name, limits, 1)).await;
    let hub = lab.network().namespace();
    for node in lab.nodes() {
        let at = node.address();
        until("the replica is served", LIMIT, || async {
            let answer = get(hub, at, "/index.html", "").await?;
            (answer.status == 200)
                .then_some(())
                .ok_or_else(|| format!("{answer:?}"))
        })
        .await
        .unwrap();
    }
    for node in lab.nodes() {
        let at = node.address();
        for sent in 0..BURST + REFUSED {
            // A forged address does not count.
            let forged = format!("X-Forwarded-For: 203.0.113.{sent}\r\n");
            let answer = get(hub, at, "/", &forged).await.unwrap();
            let expected = if sent < BURST { 200 } else { 429 };
            assert_eq!(
                answer.status,
                expected,
                "{sent} at {}: {answer:?}",
                node.host()
            );
            if expected == 429 {
                let wait: u64 = answer.field("retry-after").unwrap().parse().unwrap();
                assert!((1..=334).contains(&wait), "{wait}");
                assert_eq!(answer.field("server"), Some("jaco"));
                assert_eq!(answer.body, "too many requests");
            }
        }
        let json = get(hub, at, "/", "Accept: application/json\r\n")
            .await
            .unwrap();
        assert_eq!(json.body, r#"{"error":{"code":"rate_limited"}}"#);
        let exempt = get(hub, at, "/index.html", "").await.unwrap();
        assert_eq!(exempt.status, 200);

        let scrape = node.command("/bin/busybox");
        let mut scrape = tokio::process::Command::from(scrape);
        let scrape = scrape.args([
            "wget",
            "-q",
            "-O",
            "-",
            &format!("http://{METRICS}/metrics"),
        ]);
        let scraped = scrape.output().await.unwrap();
        let scraped = String::from_utf8(scraped.stdout).unwrap();
        let line = format!(
            "jaco_ingress_limited_total{{node=\"{}\",deployment=\"{name}\",service=\"web\"}} {}\n",
            node.host(),
            REFUSED + 1,
        );
        assert!(scraped.contains(&line), "{line} is not in\n{scraped}");
    }
}
