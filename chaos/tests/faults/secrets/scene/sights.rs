//! Outputs that can be queried: reports of the API, metrics, and `/proc`.

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use anyhow::{Result, ensure};
use jaco_chaos::{daemon::proc, until, wait::PATIENCE};

use super::{Output, Scene};

impl Scene {
    pub(in crate::secrets) async fn looks_around(&mut self) -> Result<()> {
        for line in [
            "audit",
            "status",
            "actors",
            "get replicas",
            "cluster status",
        ] {
            let line = format!("-o json {line}");
            ensure!(
                self.jaco(&line, Output::Checked, |_| {})?,
                "{:?}",
                self.last()
            );
        }
        let metrics = self.metrics;
        let text = until("metrics", PATIENCE, || async { scrape(metrics) }).await?;
        for family in [
            "jaco_ingress_requests_total{domain=\"_unknown\"",
            "jaco_ingress_requests_total{domain=\"a.example\",service=\"web\"",
            "jaco_apply_duration_seconds_bucket{",
            "jaco_runtime_container_starts_total{",
            "jaco_replica_state{",
            "jaco_actor_restarts_total{",
            "jaco_token_revocation_propagation_seconds_count{node=\"chaos\"} 1",
        ] {
            ensure!(text.contains(family), "{family} is not in:\n{text}");
        }
        self.tell("metrics", text);
        for pid in proc::family(self.daemon.pid()?)? {
            for file in ["cmdline", "environ"] {
                let content = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                self.tell(&format!("/proc/{pid}/{file}"), content);
            }
        }
        Ok(())
    }
}

fn scrape(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
    Ok(text)
}
