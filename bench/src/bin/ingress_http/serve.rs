//! Our proxy in a process of its own, as the peers are.

use std::{
    fs,
    hint::black_box,
    net::SocketAddr,
    num::NonZeroUsize,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use jaco_net::ingress::{
    Certificates, ListenSockets, Match, Proxy, RouteTable, Rule, Scheme, Settings, Upstream,
    certified_key,
};
use jaco_proto::secret::SecretString;

/// Arguments of our proxy.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    threads: NonZeroUsize,
    #[arg(long)]
    http: SocketAddr,
    #[arg(long)]
    https: SocketAddr,
    #[arg(long)]
    upstream: SocketAddr,
    #[arg(long)]
    cert: PathBuf,
    #[arg(long)]
    key: PathBuf,
}

/// Serves until the process is killed.
pub(crate) fn serve(args: &Args) -> Result<()> {
    let proxy = Proxy::new(Settings {
        workers: args.threads,
        ..Settings::default()
    });
    let key = SecretString::from(fs::read_to_string(&args.key)?);
    let key = certified_key(&fs::read_to_string(&args.cert)?, &key)?;
    let named = [("localhost".to_owned(), key)];
    proxy.certificates().swap(Certificates::new(named));
    proxy.swap(RouteTable::new([rule("localhost", "", args.upstream)]));
    for (scheme, addr) in [(Scheme::Http, args.http), (Scheme::Https, args.https)] {
        proxy.listen(scheme, ListenSockets::bind(addr, args.threads)?)?;
    }
    loop {
        std::thread::park();
    }
}

fn rule(domain: &str, path: &str, addr: SocketAddr) -> Rule {
    Rule {
        domain: domain.to_owned(),
        path: path.to_owned(),
        service: "web".to_owned(),
        upstreams: vec![Upstream {
            replica: "web-0".into(),
            addr,
            fresh_until: None,
            leaving: false,
        }],
        ..Rule::default()
    }
}

/// Measures tables of `count` routes, in one domain and in as many domains.
pub(crate) fn routes(count: usize) -> Result<()> {
    let addr = ([127, 0, 0, 1], 80).into();
    let in_one = |n: usize| rule("one.example", &format!("/team{}/app{n}", n % 100), addr);
    let in_many = |n: usize| rule(&format!("d{n}.example"), "", addr);
    let of: [(&str, &dyn Fn(usize) -> Rule); 2] =
        [("one domain", &in_one), ("as many domains", &in_many)];
    for (name, make) in of {
        let proxy = Proxy::new(Settings::default());
        let (mut built, mut swapped) = (Vec::new(), Vec::new());
        for round in 0..5 {
            let mut rules: Vec<Rule> = (0..count).map(make).collect();
            rules.push(rule("round.example", &format!("/{round}"), addr));
            let start = Instant::now();
            let table = RouteTable::new(rules);
            built.push(start.elapsed());
            let start = Instant::now();
            ensure!(proxy.swap(table), "the table has not changed");
            swapped.push(start.elapsed());
        }
        let table = proxy.table();
        let wanted = make(count / 2);
        let path = format!("{}/x", wanted.path);
        let lookups: u32 = 100_000;
        let start = Instant::now();
        for _ in 0..lookups {
            let found = table.lookup(black_box(&wanted.domain), black_box(&path));
            ensure!(matches!(found, Some(Match::Forward(_))), "no route");
        }
        let lookup = start.elapsed() / lookups;
        let best = |runs: Vec<Duration>| runs.into_iter().min().context("no runs");
        println!(
            "{count} routes, {name}: built in {:?}, swapped in {:?}, lookup {lookup:?}",
            best(built)?,
            best(swapped)?
        );
    }
    Ok(())
}
