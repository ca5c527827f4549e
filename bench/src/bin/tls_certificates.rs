//! Certificates of thousands of domains in the TLS resolver: memory of each, and time of a lookup.
//!
//! Both should not depend on the number of domains: memory grows linearly, and a lookup is one or two
//! accesses of a hash table.

#![expect(clippy::print_stdout, reason = "the figures are the output")]

use std::{
    fs,
    hint::black_box,
    time::{Instant, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use jaco_net::{
    ingress::{CertificateStore, Certificates, certified_key},
    pki::BootstrapCert,
};

/// Numbers of domains, each measured beside the former.
const DOMAINS: [usize; 3] = [1250, 2500, 5000];
/// Lookups of each kind.
const LOOKUPS: usize = 1_000_000;
/// Distance between two names that are looked up one after the other; prime.
const STRIDE: usize = 7919;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> Result<()> {
    let most = DOMAINS.into_iter().max().context("no numbers")?;
    let now = SystemTime::now();
    let issued: Vec<_> = (0..most)
        .map(|number| BootstrapCert::generate(&format!("d{number}"), &[], now))
        .collect::<Result<_, _>>()?;
    let pem = issued[0].cert_pem().len();
    println!("self-signed P-256 certificates, {pem} bytes of PEM each");
    println!(
        "{:>8} {:>10} {:>14} {:>10} {:>12} {:>10}",
        "domains", "parsing", "memory each", "exact", "wildcard", "unknown"
    );
    for count in DOMAINS {
        let before = resident()?;
        let start = Instant::now();
        let store = CertificateStore::default();
        let mut named = Vec::with_capacity(count + 1);
        for (number, cert) in issued.iter().take(count).enumerate() {
            let key = certified_key(cert.cert_pem(), cert.key_pem())?;
            named.push((name(number), key));
        }
        let first = named.first().map(|(_, key)| key.clone());
        named.extend(first.map(|key| ("*.wild.example".to_owned(), key)));
        store.swap(Certificates::new(named));
        let parsing = start.elapsed();
        let memory = resident()?.saturating_sub(before) / count as u64;

        let names: Vec<_> = (0..count).map(name).collect();
        let exact = lookup(&store, &names, true)?;
        let wild: Vec<_> = (0..count)
            .map(|number| format!("d{number}.wild.example"))
            .collect();
        let wildcard = lookup(&store, &wild, true)?;
        let others: Vec<_> = (0..count)
            .map(|number| format!("d{number}.other.example"))
            .collect();
        let unknown = lookup(&store, &others, false)?;
        println!(
            "{count:>8} {:>7} ms {memory:>12} B {exact:>7} ns {wildcard:>9} ns {unknown:>7} ns",
            parsing.as_millis()
        );
    }
    Ok(())
}

fn name(number: usize) -> String {
    format!("d{number}.example")
}

/// Nanoseconds of one lookup, with names in an order that no cache foresees.
fn lookup(store: &CertificateStore, names: &[String], known: bool) -> Result<u128> {
    let found = names.iter().filter(|name| store.covers(name)).count();
    ensure!(
        found == if known { names.len() } else { 0 },
        "{found} found"
    );
    let start = Instant::now();
    for round in 0..LOOKUPS {
        black_box(store.find(&names[round * STRIDE % names.len()]));
    }
    Ok(start.elapsed().as_nanos() / LOOKUPS as u128)
}

/// Resident memory of this process in bytes.
fn resident() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib: u64 = line
        .and_then(|line| line.trim().strip_suffix(" kB"))
        .context("no resident memory")?
        .parse()?;
    Ok(kib << 10)
}
