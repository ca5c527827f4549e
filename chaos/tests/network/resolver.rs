//! Names as a container resolves them: through the engine's resolver in its namespace.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, UdpSocket},
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
const REFUSED: u8 = 5;

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

/// Checks which of the names that containers use exist for `from`, and what they stand for.
pub(crate) fn check_names(from: &Endpoint, all: &[std::sync::Arc<Endpoint>]) -> Result<()> {
    for (service, network) in crate::fixture::SERVICES {
        for deployment in crate::fixture::DEPLOYMENTS {
            let here = (deployment.to_owned(), network.to_owned()) == from.scope;
            let full = format!("{service}.{deployment}");
            let mut names = vec![full.clone(), format!("{full}.jaco.internal")];
            // Without its deployment a name means the own one.
            if deployment == from.scope.0 {
                names.extend([service.to_owned(), format!("{service}.jaco.internal")]);
            }
            for name in names {
                let found = resolve(from, &name)?;
                let of_scope = all.iter().filter(|e| here && e.scope == from.scope);
                let wanted: BTreeSet<Ipv4Addr> = of_scope.map(|e| e.address).collect();
                ensure!(
                    found.is_subset(&wanted) && found.is_empty() == wanted.is_empty(),
                    "{name} for {}: {found:?}, wanted of {wanted:?}",
                    from.replica
                );
            }
        }
    }
    Ok(())
}
