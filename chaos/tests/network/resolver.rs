//! Names as a container resolves them: through the engine's resolver in its namespace.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};

use crate::traffic::Endpoint;

/// The engine's resolver in every container on a network of its own.
const RESOLVER: &str = "127.0.0.11:53";
const TIMEOUT: Duration = Duration::from_secs(5);
const NOERROR: u8 = 0;
const SERVFAIL: u8 = 2;
pub(crate) const NXDOMAIN: u8 = 3;
pub(crate) const REFUSED: u8 = 5;

/// Addresses of `name` as `from` resolves it; empty if the name does not exist.
pub(crate) fn resolve(from: &Endpoint, name: &str) -> Result<BTreeSet<Ipv4Addr>> {
    let answer = ask(from, RESOLVER, name)?;
    addresses(&answer).context("not a DNS message")
}

/// As [`resolve`], but as the engine's resolver does it since version 24: the responders of a
/// container's networks are asked in turn, each from the address on its network, up to the first
/// one that does not refuse.
pub(crate) fn resolve_in_turn(
    networks: &[&Endpoint],
    name: &str,
) -> Result<(u8, BTreeSet<Ipv4Addr>)> {
    let mut last = None;
    for from in networks {
        let [a, b, c, _] = from.address.octets();
        let answer = ask(from, &format!("{a}.{b}.{c}.1:53"), name)?;
        let code = answer.get(3).context("not a DNS message")? & 0xf;
        last = Some((code, addresses(&answer).context("not a DNS message")?));
        if ![SERVFAIL, REFUSED].contains(&code) {
            break;
        }
    }
    last.context("no network")
}

fn ask(from: &Endpoint, server: &str, name: &str) -> Result<Vec<u8>> {
    let query = query(name);
    let answer = from.namespace.within(|| {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(TIMEOUT))?;
        socket.send_to(&query, server)?;
        let mut answer = vec![0; 4096];
        let length = socket.recv(&mut answer)?;
        answer.truncate(length);
        Ok::<_, std::io::Error>(answer)
    });
    answer?.with_context(|| format!("{server} for {}", from.replica))
}

/// A question for the addresses of `name` (RFC 1035, section 4.1).
fn query(name: &str) -> Vec<u8> {
    let mut message = vec![0x4a, 0x43, 0x01, 0x00, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap());
        message.extend(label.as_bytes());
    }
    message.extend([0, 0, 1, 0, 1]);
    message
}

/// Addresses in an answer; `None` if it is not a DNS message.
fn addresses(message: &[u8]) -> Option<BTreeSet<Ipv4Addr>> {
    let number = |at: usize| {
        Some(u16::from_be_bytes([
            *message.get(at)?,
            *message.get(at + 1)?,
        ]))
    };
    if message.get(3)? & 0xf != NOERROR {
        return Some(BTreeSet::new());
    }
    let mut at = skip_name(message, 12)? + 4;
    let mut found = BTreeSet::new();
    for _ in 0..number(6)? {
        at = skip_name(message, at)?;
        let (kind, length) = (number(at)?, usize::from(number(at + 8)?));
        let data = message.get(at + 10..at + 10 + length)?;
        if kind == 1 {
            found.insert(Ipv4Addr::from(<[u8; 4]>::try_from(data).ok()?));
        }
        at += 10 + length;
    }
    Some(found)
}

fn skip_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            pointer if pointer >= 0xc0 => return Some(at + 2),
            length => at += usize::from(length) + 1,
        }
    }
}

/// Names to resolve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Names {
    /// Those that the responder answers by itself.
    Own,
    /// Also those that it forwards, to servers that a lab does not have: they fail after seconds.
    Forwarded,
}

/// Checks for each container which of the names that containers use exist, and what they stand for.
/// All are resolved at the same time.
pub(crate) async fn check_names(all: &[Arc<Endpoint>], which: Names) -> Result<()> {
    let all = all.to_vec();
    let checks = tokio::task::spawn_blocking(move || {
        let pairs = all.iter().flat_map(|from| {
            let names = names(from, which).into_iter();
            names.map(move |(name, exists)| (from, name, exists))
        });
        std::thread::scope(|threads| {
            let running = pairs.map(|(from, name, exists)| {
                let all = &all;
                threads.spawn(move || check_name(from, &name, exists, all))
            });
            let running: Vec<_> = running.collect();
            let checked = running.into_iter().map(|thread| thread.join().unwrap());
            checked.fold(Ok(()), Result::and)
        })
    });
    checks.await?
}

/// Names of all services in the forms that containers use, and whether they exist for `from`.
fn names(from: &Endpoint, which: Names) -> Vec<(String, bool)> {
    let mut all = Vec::new();
    for (service, network) in crate::fixture::SERVICES {
        for deployment in crate::fixture::DEPLOYMENTS {
            let here = (deployment.to_owned(), network.to_owned()) == from.scope;
            let full = format!("{service}.{deployment}");
            let mut names = vec![format!("{full}.jaco.internal")];
            // Without its deployment a name means the own one.
            if deployment == from.scope.0 {
                names.extend([service.to_owned(), format!("{service}.jaco.internal")]);
            }
            if deployment == from.scope.0 || which == Names::Forwarded {
                names.push(full);
            }
            all.extend(names.into_iter().map(|name| (name, here)));
        }
    }
    all
}

fn check_name(from: &Endpoint, name: &str, exists: bool, all: &[Arc<Endpoint>]) -> Result<()> {
    let found = resolve(from, name).with_context(|| name.to_owned())?;
    let of_scope = all.iter().filter(|e| exists && e.scope == from.scope);
    let wanted: BTreeSet<Ipv4Addr> = of_scope.map(|e| e.address).collect();
    ensure!(
        found.is_subset(&wanted) && found.is_empty() == wanted.is_empty(),
        "{name} for {}: {found:?}, wanted of {wanted:?}",
        from.replica
    );
    Ok(())
}
