//! Our proxy in a process of its own, as the peers are.

use std::{
    fs,
    io::Write as _,
    net::SocketAddr,
    num::NonZeroUsize,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use jaco_net::{
    ingress::{
        Affinity, AffinityKey, Certificates, DatagramSockets, ListenSockets, Proxy, RouteTable,
        Rule, RuleLimits, SameSite, Scheme, Settings, Upstream, certified_key,
    },
    limit::Limits,
};
use jaco_proto::secret::SecretString;
use rustix::time::{ClockId, clock_gettime};

/// Routes of one domain in a large table.
const ROUTES_PER_DOMAIN: usize = 100;

/// Arguments of our proxy.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[arg(long)]
    threads: NonZeroUsize,
    #[arg(long)]
    http: SocketAddr,
    #[arg(long)]
    https: SocketAddr,
    /// Serves HTTP/3 on the UDP port of the same number as that of TLS.
    #[arg(long)]
    http3: bool,
    #[arg(long)]
    upstream: SocketAddr,
    #[arg(long)]
    cert: PathBuf,
    #[arg(long)]
    key: PathBuf,
    /// Limits the requests of each client, to more than any sends.
    #[arg(long)]
    limits: bool,
    /// Keeps clients at one of two replicas by a cookie.
    #[arg(long)]
    affinity: bool,
    /// Further routes.
    #[arg(long, default_value_t = 0)]
    routes: usize,
    /// Milliseconds between two swaps of the table; each prints a line that [`Swap::parse`] reads.
    #[arg(long)]
    swap_every: Option<u64>,
}

/// One swap of the table.
#[derive(Clone, Copy, Debug)]
pub struct Swap {
    /// When the table began to be built, on the monotonic clock.
    pub start: Duration,
    /// Time of building it.
    pub built: Duration,
    /// Time of putting it into use.
    pub swapped: Duration,
}

impl Swap {
    /// Reads a line of the output of our proxy.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut times = line
            .strip_prefix("swap ")?
            .split(' ')
            .map(str::parse::<u64>);
        let mut next = || Some(Duration::from_nanos(times.next()?.ok()?));
        Some(Self {
            start: next()?,
            built: next()?,
            swapped: next()?,
        })
    }
}

/// Time of the monotonic clock, which all processes share.
#[must_use]
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or_default())
}

/// Serves until the process is killed.
///
/// # Errors
/// If it cannot listen or read the certificate.
pub fn serve(args: &Args) -> Result<()> {
    let proxy = Proxy::new(Settings {
        workers: args.threads,
        ..Settings::default()
    });
    let key = SecretString::from(fs::read_to_string(&args.key)?);
    let key = certified_key(&fs::read_to_string(&args.cert)?, &key)?;
    let named = [("localhost".to_owned(), key)];
    proxy.certificates().swap(Certificates::new(named));
    proxy.swap(RouteTable::new(rules(args, 0)));
    if args.http3 {
        proxy.listen_http3(DatagramSockets::bind(args.https, args.threads)?)?;
    }
    for (scheme, addr) in [(Scheme::Http, args.http), (Scheme::Https, args.https)] {
        proxy.listen(scheme, ListenSockets::bind(addr, args.threads)?)?;
    }
    let Some(interval) = args.swap_every.map(Duration::from_millis) else {
        loop {
            thread::park();
        }
    };
    for round in 1.. {
        thread::sleep(interval);
        let rules = rules(args, round);
        let (start, clock) = (monotonic(), Instant::now());
        let table = RouteTable::new(rules);
        let built = clock.elapsed();
        ensure!(proxy.swap(table), "the table has not changed");
        let swapped = clock.elapsed() - built;
        let times = [start, built, swapped].map(|time| time.as_nanos().to_string());
        writeln!(std::io::stdout(), "swap {}", times.join(" "))?;
    }
    Ok(())
}

/// The routes of one round; that of the clients stays.
fn rules(args: &Args, round: usize) -> Vec<Rule> {
    let mut rules = many_rules(args.routes, round, args.upstream);
    let mut own = rule("localhost", "", args.upstream);
    if args.limits {
        let limits = Limits {
            rps: 1e6,
            burst: 1_000_000,
            connections: 1_000_000,
        };
        own.limits = Some(RuleLimits {
            limits,
            exempt: Vec::new(),
        });
    }
    if args.affinity {
        own.affinity = Some(Affinity {
            cookie: "replica".to_owned(),
            ttl: Duration::from_secs(3600),
            same_site: SameSite::Lax,
            key: AffinityKey::new([7; 32]),
        });
    }
    rules.push(own);
    rules
}

/// `count` routes, 100 of each domain, and one that `round` tells apart.
#[must_use]
pub fn many_rules(count: usize, round: usize, upstream: SocketAddr) -> Vec<Rule> {
    let many = (0..count).map(|n| {
        let domain = format!("d{}.example", n / ROUTES_PER_DOMAIN);
        rule(&domain, &format!("/team/app{n}"), upstream)
    });
    let own = rule("round.example", &format!("/{round}"), upstream);
    many.chain([own]).collect()
}

/// A route to two replicas at `addr`.
#[must_use]
pub fn rule(domain: &str, path: &str, addr: SocketAddr) -> Rule {
    let replica = |name: &str| Upstream {
        replica: name.into(),
        addr,
        fresh_until: None,
        leaving: false,
    };
    Rule {
        domain: domain.to_owned(),
        path: path.to_owned(),
        service: "web".to_owned(),
        upstreams: vec![replica("web-0"), replica("web-1")],
        ..Rule::default()
    }
}
