//! Time to read, check and resolve a compose file of 200 services, stage by stage.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::{fmt::Write as _, hint::black_box};

use anyhow::Result;
use jaco_bench::{Samples, millis};
use jaco_proto::{
    manifest::{
        self, ClusterView, SpecHasher,
        compose::Project,
        env_file::{fold, parse},
        interpolate,
    },
    v1::TransportProtocol,
    yaml,
};

const SERVICES: usize = 200;
const ROUNDS: usize = 300;

fn main() -> Result<()> {
    let (jaco, written) = (jaco(), compose());
    let variables = parse(b"TAG=1.27\nREGISTRY=registry.example.com\n", |_| None)?.values;
    let interpolated = interpolate(written.as_bytes(), "compose.yml", &variables)?.bytes;
    let sent = folded(&interpolated)?;
    let resolved = manifest::resolve(jaco.as_bytes(), &sent, &Empty)?;
    println!(
        "{} services, {} KB of YAML ({} KB as sent), {} routes, {} rounds",
        resolved.services.len(),
        written.len() / 1024,
        sent.len() / 1024,
        resolved.routes.len(),
        ROUNDS
    );
    println!("{:<40} {:>10} {:>10} {:>10}", "", "best", "median", "p99");
    stage("YAML to a tree", || {
        yaml::parse(&sent).map(drop).map_err(Into::into)
    })?;
    stage("client: ${VAR}", || {
        interpolate(written.as_bytes(), "compose.yml", &variables)?;
        Ok(())
    })?;
    stage("client: env_file", || folded(&interpolated).map(drop))?;
    stage("daemon: compose file to a project", || {
        black_box(Project::parse(&sent)?);
        Ok(())
    })?;
    stage("daemon: resolve (goal: under 20 ms)", || {
        black_box(manifest::resolve(jaco.as_bytes(), &sent, &Empty)?);
        Ok(())
    })?;
    stage("daemon: hash of every service", || {
        let hasher = SpecHasher::new(&sent)?;
        for service in &resolved.services {
            black_box(hasher.hash(&service.name, &service.networks, &service.files));
        }
        Ok(())
    })
}

fn stage(name: &str, work: impl FnMut() -> Result<()>) -> Result<()> {
    let samples = Samples::of(ROUNDS, work)?;
    // The best run shows the time without interference from other processes.
    let [best, median, p99] = [0, 50, 99].map(|percent| millis(samples.percentile(percent)));
    println!("{name:<40} {best:>7.2} ms {median:>7.2} ms {p99:>7.2} ms");
    Ok(())
}

fn folded(compose: &[u8]) -> Result<Vec<u8>> {
    let mut read = |_: &str| Ok(b"LOG_LEVEL=info\nPOOL=\"10\" # connections\nNAME=svc\n".to_vec());
    Ok(fold(compose, Some(&mut read))?.bytes)
}

/// A cluster in which no port or route is taken.
struct Empty;

impl ClusterView for Empty {
    fn has_host(&self, host: &str) -> bool {
        host.starts_with("node-")
    }

    fn port_owner(&self, _: u16, _: TransportProtocol) -> Option<String> {
        None
    }

    fn route_owner(&self, _: &str, _: &str) -> Option<String> {
        None
    }

    fn identity(&self) -> &str {
        "bench"
    }

    fn allows_privileged(&self) -> bool {
        false
    }
}

fn jaco() -> String {
    let mut text = "deployment: shop\nacme_email: ops@example.com\nroutes:\n".to_owned();
    for n in (0..SERVICES).step_by(4) {
        let _ = writeln!(
            text,
            "  - domain: s{n}.example.com\n    service: svc-{n:03}\n    port: 8080\n    path: /api"
        );
    }
    text.push_str("services:\n");
    for n in (0..SERVICES).step_by(5) {
        let _ = writeln!(
            text,
            "  - name: svc-{n:03}\n    replicas: 2\n    placement: hosts\n    hosts: [node-1, node-2]"
        );
    }
    text
}

/// A typical mix of keys: one service in three takes its environment from a file, one in four
/// publishes a port, and each depends on the one before.
fn compose() -> String {
    let mut text = "x-common: &common\n  restart: unless-stopped\n  init: true\n  logging:\n    \
                    driver: json-file\n    options: {max-size: 10m, max-file: \"3\"}\nservices:\n"
        .to_owned();
    for n in 0..SERVICES {
        let _ = write!(
            text,
            r#"  svc-{n:03}:
    <<: *common
    image: ${{REGISTRY:-docker.io}}/acme/svc-{n:03}:${{TAG:?which release}}
    command: ["serve", "--port", "8080", "--name", "svc-{n:03}"]
    environment:
      DATABASE_URL: postgres://app@db-{n}/app
      CACHE_URL: redis://cache:6379/{n}
      FEATURE_FLAGS: "a,b,c"
      WORKERS: 4
    labels: {{team: core, tier: "{}"}}
    healthcheck:
      test: ["CMD", "wget", "-q", "-O", "/dev/null", "http://127.0.0.1:8080/health"]
      interval: 10s
      timeout: 3s
      retries: 3
    volumes:
      - data-{n}:/var/lib/app
      - /etc/ssl/certs:/etc/ssl/certs:ro
    networks: [front, back]
    tmpfs: /tmp:size=64m
    ulimits: {{nofile: {{soft: 1024, hard: 4096}}}}
    deploy:
      replicas: 1
      resources:
        limits: {{cpus: "0.50", memory: 256M, pids: 200}}
        reservations: {{memory: 64M}}
"#,
            n % 3
        );
        if n > 0 {
            let before = n - 1;
            let _ = writeln!(
                text,
                "    depends_on:\n      svc-{before:03}: {{condition: service_healthy}}"
            );
        }
        if n % 3 == 0 {
            text.push_str("    env_file: [common.env]\n");
        }
        if n % 4 == 0 {
            let _ = writeln!(
                text,
                "    ports: [\"{}:8080\", \"127.0.0.1:{}:9090\"]",
                20_000 + n,
                30_000 + n
            );
        }
    }
    text.push_str("networks: {front: {}, back: {}}\nvolumes:\n");
    for n in 0..SERVICES {
        let _ = writeln!(text, "  data-{n}: {{}}");
    }
    text
}
