//! Whether the addresses of a domain lead to this cluster.
//!
//! Each address is asked for the signature of a nonce, which every node of the cluster can make.

use std::{collections::BTreeMap, net::IpAddr};

/// Path of a probe; the nonce follows.
pub const PATH: &str = "/.well-known/jaco-probe/";
/// Most addresses of a domain that are asked.
pub const MAX_ADDRESSES: usize = 16;

/// Response of an address to a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Response {
    /// The start of the body of a response, whatever its status.
    Body(Vec<u8>),
    /// There was no response, for this reason.
    None(String),
}

/// Verdict on one address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// It leads to a node of this cluster.
    Ok,
    /// Something else answers there.
    NotOurs,
    /// Nothing answers there.
    Unreachable,
}

impl Verdict {
    /// Name in `AddressCheck.verdict`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotOurs => "not_ours",
            Self::Unreachable => "unreachable",
        }
    }
}

/// Verdict on one address and its detail for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressCheck {
    /// The address.
    pub address: IpAddr,
    /// The verdict.
    pub verdict: Verdict,
    /// Reason of an unreachable address; else empty.
    pub detail: String,
}

/// Judges each address of a domain; `signature` is the response of a node of this cluster.
#[must_use]
pub fn check(signature: &[u8], responses: BTreeMap<IpAddr, Response>) -> Vec<AddressCheck> {
    let checks = responses.into_iter().map(|(address, response)| {
        let (verdict, detail) = match response {
            Response::Body(body) if body.trim_ascii() == signature => (Verdict::Ok, String::new()),
            Response::Body(_) => (Verdict::NotOurs, String::new()),
            Response::None(reason) => (Verdict::Unreachable, reason),
        };
        AddressCheck {
            address,
            verdict,
            detail,
        }
    });
    checks.collect()
}

/// Judges the domain: an authority may ask any of its addresses, so all have to lead here. Resolving
/// it may have failed, for the reason in `Err`.
///
/// # Errors
/// The reason for operators: the first addresses that do not lead here, or that there is none.
pub fn verdict(resolved: &Result<Vec<AddressCheck>, String>) -> Result<(), String> {
    /// Addresses named in the reason.
    const NAMED: usize = 3;
    let checks = match resolved {
        Ok(checks) => checks,
        Err(reason) => return Err(format!("no_dns: {reason}")),
    };
    if checks.is_empty() {
        return Err("no_dns: the domain has no address".to_owned());
    }
    let wrong = checks.iter().filter(|check| check.verdict != Verdict::Ok);
    let named = wrong.clone().take(NAMED).map(|check| {
        let AddressCheck {
            address,
            verdict,
            detail,
        } = check;
        let name = verdict.as_str();
        if detail.is_empty() {
            format!("{address}: {name}")
        } else {
            format!("{address}: {name} ({detail})")
        }
    });
    let named: Vec<String> = named.collect();
    match wrong.count() {
        0 => Ok(()),
        count if count > NAMED => Err(format!("{} and {} more", named.join(", "), count - NAMED)),
        _ => Err(named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(responses: &[(&str, Response)]) -> Result<(), String> {
        let responses = responses.iter();
        let responses = responses.map(|(at, response)| (at.parse().unwrap(), response.clone()));
        verdict(&Ok(check(b"signature", responses.collect())))
    }

    #[test]
    fn every_address_has_to_lead_here() {
        let ours = || Response::Body(b"signature\n".to_vec());
        let other = || Response::Body(b"<html>".to_vec());
        let silent = || Response::None("timed out".to_owned());
        assert_eq!(
            judged(&[("192.0.2.1", ours()), ("2001:db8::1", ours())]),
            Ok(())
        );
        let reason = |text: &str| Err(text.to_owned());
        assert_eq!(judged(&[]), reason("no_dns: the domain has no address"));
        assert_eq!(
            judged(&[("192.0.2.1", ours()), ("192.0.2.2", other())]),
            reason("192.0.2.2: not_ours")
        );
        assert_eq!(
            judged(&[("2001:db8::1", silent())]),
            reason("2001:db8::1: unreachable (timed out)")
        );
        let many = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5"];
        let many = many.map(|address| (address, other()));
        let first = "10.0.0.1: not_ours, 10.0.0.2: not_ours, 10.0.0.3: not_ours";
        assert_eq!(judged(&many), reason(&format!("{first} and 2 more")));
    }

    #[test]
    fn unresolved_domain_says_why() {
        let failed = Err("no such name".to_owned());
        assert_eq!(verdict(&failed), Err("no_dns: no such name".to_owned()));
    }

    #[test]
    fn part_of_a_signature_is_not_ours() {
        for body in [&b""[..], b"signatur", b"signature2"] {
            let response = Response::Body(body.to_vec());
            assert!(judged(&[("192.0.2.1", response)]).is_err());
        }
    }
}
