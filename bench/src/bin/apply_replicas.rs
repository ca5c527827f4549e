//! Time from `apply` of 50 replicas until all are created and started, compared with the time of
//! the same 50 create and start calls to the engine alone, 8 at a time.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use bollard::{
    API_DEFAULT_VERSION, Docker,
    models::{ContainerCreateBody, HostConfig, NetworkCreateRequest},
    query_parameters::{
        CreateContainerOptionsBuilder, RemoveContainerOptionsBuilder, StartContainerOptions,
    },
};
use futures::{StreamExt, TryStreamExt, stream};
use jaco_chaos::{Daemon, Service, Settings, Workload, engine};
use prost_types::Timestamp;

const REPLICAS: u32 = 50;
const CONCURRENCY: usize = 8;
const ROUNDS: usize = 3;
const LIMIT: Duration = Duration::from_secs(300);

#[tokio::main]
async fn main() -> Result<()> {
    let docker = Docker::connect_with_unix(
        &engine::socket().to_string_lossy(),
        LIMIT.as_secs(),
        API_DEFAULT_VERSION,
    )?
    .negotiate_version()
    .await
    .context("a container engine is needed")?;
    let mut daemon = Daemon::bootstrap(Settings {
        quiet: true,
        ..Settings::default()
    })
    .await?;

    println!("{REPLICAS} replicas, {CONCURRENCY} engine calls at a time, {ROUNDS} rounds");
    println!(
        "{:>6} {:>10} {:>10} {:>7}",
        "round", "engine", "jaco", "ratio"
    );
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        // Alternating, so that a machine that slows down affects both.
        let alone = engine_alone(&docker).await?;
        let jaco = through_jaco(&daemon).await?;
        let ratio = jaco.as_secs_f64() / alone.as_secs_f64();
        println!("{round:>6} {alone:>10.2?} {jaco:>10.2?} {ratio:>7.2}");
        ratios.push(ratio);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "median ratio {:.2} (goal: at most 1.2)",
        ratios[ratios.len() / 2]
    );
    daemon.stop().await?;
    Ok(())
}

/// The engine calls alone: one network, then create and start, with the same concurrency as JACO.
async fn engine_alone(docker: &Docker) -> Result<Duration> {
    let prefix = format!("jaco-bench-{}", std::process::id());
    docker
        .create_network(NetworkCreateRequest {
            name: prefix.clone(),
            ..Default::default()
        })
        .await?;
    let started = Instant::now();
    let outcome: Result<Vec<()>> = stream::iter(0..REPLICAS)
        .map(|index| {
            let (docker, prefix) = (docker.clone(), prefix.clone());
            async move {
                let name = format!("{prefix}-{index}");
                let options = CreateContainerOptionsBuilder::new().name(&name).build();
                let body = ContainerCreateBody {
                    image: Some(engine::IMAGE.to_owned()),
                    cmd: Some(vec!["sleep".to_owned(), "86400".to_owned()]),
                    stop_signal: Some("SIGKILL".to_owned()),
                    host_config: Some(HostConfig {
                        network_mode: Some(prefix),
                        ..Default::default()
                    }),
                    ..Default::default()
                };
                docker.create_container(Some(options), body).await?;
                docker
                    .start_container(&name, None::<StartContainerOptions>)
                    .await?;
                Ok(())
            }
        })
        .buffer_unordered(CONCURRENCY)
        .try_collect()
        .await;
    let took = started.elapsed();
    stream::iter(0..REPLICAS)
        .for_each_concurrent(CONCURRENCY, |index| {
            let (docker, name) = (docker.clone(), format!("{prefix}-{index}"));
            async move {
                let options = RemoveContainerOptionsBuilder::new().force(true).build();
                let _ = docker.remove_container(&name, Some(options)).await; // may not exist
            }
        })
        .await;
    docker.remove_network(&prefix).await?;
    outcome.map(|_| took)
}

/// Time from the request to the last start that the engine reports.
async fn through_jaco(daemon: &Daemon) -> Result<Duration> {
    let workload = Workload::new("bench", [web()]);
    let sent = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let asked = Instant::now();
    daemon.api().apply(&workload).await?;
    let last = loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let containers = daemon.engine().containers(daemon.cluster_id()).await?;
        if containers.iter().filter(|c| c.running).count() == REPLICAS as usize {
            let starts: Result<Vec<_>> = containers
                .iter()
                .map(|c| since_epoch(&c.started_at))
                .collect();
            break starts?.into_iter().max().context("no container")?;
        }
        ensure!(asked.elapsed() < LIMIT, "the replicas did not start");
    };
    daemon.api().delete(&workload.name).await?;
    while !daemon
        .engine()
        .containers(daemon.cluster_id())
        .await?
        .is_empty()
    {
        ensure!(asked.elapsed() < LIMIT, "the replicas were not removed");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(last.saturating_sub(sent))
}

fn since_epoch(text: &str) -> Result<Duration> {
    let time: Timestamp = text.parse().with_context(|| format!("time {text:?}"))?;
    Ok(Duration::new(
        time.seconds.try_into()?,
        time.nanos.try_into()?,
    ))
}

/// Without a health check, so that only JACO is measured.
fn web() -> Service {
    Service {
        healthcheck: false,
        ..Service::new("web").replicas(REPLICAS)
    }
}
