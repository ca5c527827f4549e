//! Invalid manifests, sent to the daemon directly.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jaco_chaos::{Daemon, Service, Settings, Workload, test_permits, until, wait::WAIT_TIMEOUT};
use jaco_proto::v1;

/// Limit of the daemon's memory growth after all requests.
const GROWTH: u64 = 96 << 20;
/// Limit of the processor time for refusing one of them, in an unoptimised build.
const COST: Duration = Duration::from_secs(2);
const ROUNDS: usize = 3;

struct Case {
    what: &'static str,
    jaco: Vec<u8>,
    compose: Vec<u8>,
    code: &'static str,
    /// Line of the error, if it has one.
    line: Option<u32>,
}

const JACO: &str = "deployment: d\n";
const COMPOSE: &str = "services:\n  web:\n    image: nginx\n";

fn compose(what: &'static str, text: impl Into<Vec<u8>>, line: u32) -> Case {
    let (jaco, compose, line) = (JACO.into(), text.into(), Some(line));
    Case {
        what,
        jaco,
        compose,
        code: "validation_failed",
        line,
    }
}

fn jaco(what: &'static str, text: impl Into<Vec<u8>>, code: &'static str, line: u32) -> Case {
    let (jaco, compose, line) = (text.into(), COMPOSE.into(), Some(line));
    Case {
        what,
        jaco,
        compose,
        code,
        line,
    }
}

/// Nine levels of nine aliases each.
fn alias_bomb() -> String {
    let mut text = "x-a0: &a0 [lol, lol, lol, lol, lol, lol, lol, lol, lol]\n".to_owned();
    for n in 1..9 {
        let list = vec![format!("*a{}", n - 1); 9].join(", ");
        text += &format!("x-a{n}: &a{n} [{list}]\n");
    }
    text + COMPOSE
}

fn cases() -> Vec<Case> {
    let deep = |open: &str, close: &str| {
        format!(
            "{COMPOSE}x-deep: {}1{}\n",
            open.repeat(100),
            close.repeat(100)
        )
    };
    let indented: String = (0..100)
        .map(|depth| format!("{}a:\n", " ".repeat(depth)))
        .collect();
    let large = |size: usize| format!("{COMPOSE}# {}\n", "x".repeat(size));
    let mut invalid = COMPOSE.as_bytes().to_vec();
    invalid.extend(b"x-note: \xff\xfe\n");
    vec![
        compose("larger than a file may be", large(4 << 20), 1),
        jaco(
            "a large jaco.yaml",
            format!("# {}\n{JACO}", "x".repeat(4 << 20)),
            "parse_failed",
            1,
        ),
        compose("100 lists deep", deep("[", "]"), 4),
        compose("100 mappings deep", deep("{a: ", "}"), 4),
        compose("100 levels of indentation", indented, 65),
        compose("an alias bomb", alias_bomb(), 6),
        compose(
            "an alias of itself",
            format!("{COMPOSE}x-me: &me [*me]\n"),
            4,
        ),
        compose("an alias of nothing", format!("{COMPOSE}x-me: *you\n"), 4),
        compose("invalid UTF-8", invalid, 4),
        compose("a tab for an indent", "services:\n\tweb: {}\n", 2),
        compose("an open bracket", "services: [\n", 2),
        compose("a key twice", format!("{COMPOSE}    image: other\n"), 4),
        compose("an unknown key", format!("{COMPOSE}    imagee: nginx\n"), 4),
        compose(
            "an unknown key at the top",
            format!("{COMPOSE}servces: {{}}\n"),
            4,
        ),
        compose("a list for a mapping", "services:\n  - web\n", 2),
        compose(
            "text for a number",
            format!("{COMPOSE}    mem_limit: lots\n"),
            4,
        ),
        jaco("a syntax error", "deployment: {\n", "parse_failed", 2),
        jaco(
            "an unknown key in jaco.yaml",
            "deployment: d\nreplcas: 2\n",
            "validation_failed",
            2,
        ),
        jaco(
            "text for a number in jaco.yaml",
            "deployment: d\nservices:\n  - name: web\n    replicas: many\n",
            "parse_failed",
            4,
        ),
        jaco(
            "invalid UTF-8 in jaco.yaml",
            b"deployment: \xff\n".to_vec(),
            "parse_failed",
            1,
        ),
    ]
}

async fn refuse(daemon: &Daemon, case: &Case) -> Result<()> {
    let Case {
        what,
        jaco,
        compose,
        code,
        line,
    } = case;
    let request = v1::ApplyRequest {
        jaco_yaml: jaco.clone(),
        compose_yaml: compose.clone(),
        dry_run: false,
        files: Vec::new(),
        secret_values: Default::default(),
    };
    let Err(status) = daemon.api().deploy().apply(request).await else {
        anyhow::bail!("{what}: accepted");
    };
    let error = jaco_proto::error::DecodedError::from_status(&status);
    ensure!(error.code == *code, "{what}: {error:?}");
    let told = error.details.get("line").and_then(|line| line.parse().ok());
    ensure!(told == *line, "{what}: {error:?}");
    ensure!(
        line.is_none() || error.details.contains_key("col"),
        "{what}: {error:?}"
    );
    ensure!(
        error.message.len() < 1024,
        "{what}: a message of {} bytes",
        error.message.len()
    );
    Ok(())
}

/// Waits for the allocator, which returns memory some time after its last use.
async fn memory_comes_back(daemon: &Daemon, before: u64) -> Result<()> {
    until("the memory is free again", WAIT_TIMEOUT, || async {
        let grown = daemon.rss_bytes()?.saturating_sub(before);
        ensure!(grown < GROWTH, "{grown} bytes more than before");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_manifests_are_refused_with_line_and_column() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let mut daemon = Daemon::bootstrap(Settings::default()).await?;
    let cases = cases();
    let before = daemon.rss_bytes()?;
    for round in 0..ROUNDS {
        for case in &cases {
            let from = daemon.cpu_time()?;
            refuse(&daemon, case).await?;
            let cost = daemon.cpu_time()?.saturating_sub(from);
            ensure!(cost < COST, "{}: {cost:?} of processor time", case.what);
        }
        memory_comes_back(&daemon, before)
            .await
            .with_context(|| format!("round {round}"))?;
    }
    ensure!(daemon.api().deployments().await?.deployments.is_empty());
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    ensure!(daemon.exited()?.is_none(), "the daemon is gone");
    // The daemon still works.
    let workload = Workload::new("good", [Service::new("web")]);
    daemon.api().apply(&workload).await?;
    daemon.api().converged(&workload).await?;
    for actor in daemon.api().actors().await? {
        ensure!(actor.restarts == 0 && actor.state == "running", "{actor:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn oversized_request_is_refused_without_blocking_others() -> Result<()> {
    let _permits = test_permits::heavy().await;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let before = daemon.rss_bytes()?;
    let request = v1::ApplyRequest {
        jaco_yaml: JACO.into(),
        compose_yaml: format!("{COMPOSE}# {}\n", "x".repeat(10 << 20)).into(),
        dry_run: false,
        files: Vec::new(),
        secret_values: Default::default(),
    };
    let mut calls = Vec::new();
    for _ in 0..16 {
        let mut deploy = daemon.api().deploy();
        let request = request.clone();
        calls.push(tokio::spawn(async move {
            deploy.apply(request).await.map(|_| ())
        }));
    }
    daemon.api().status().await?;
    for call in calls {
        let Err(status) = call.await? else {
            anyhow::bail!("accepted")
        };
        let error = jaco_proto::error::DecodedError::from_status(&status);
        ensure!(error.code == "validation_failed", "{error:?}");
        ensure!(
            error.details.get("line").is_some_and(|line| line == "1"),
            "{error:?}"
        );
    }
    memory_comes_back(&daemon, before).await?;
    ensure!(daemon.api().deployments().await?.deployments.is_empty());
    ensure!(daemon.panics().is_empty(), "{:#?}", daemon.panics());
    Ok(())
}
