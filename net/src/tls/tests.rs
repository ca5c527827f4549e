//! Handshakes over an in-memory pipe.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::{Duration, SystemTime},
};

use rustls::{CertificateError, Error as Tls};
use rustls_pki_types::ServerName;
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::*;
use crate::pki::{ClusterCa, Fingerprint, NodeKey};

const LAN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 7));

/// Performs a handshake and returns the fingerprint of the leaf the client accepted.
async fn handshake(slot: &Arc<CertSlot>, trust: &Trust, name: &str) -> Result<Fingerprint, Tls> {
    let (near, far) = tokio::io::duplex(16 * 1024);
    let acceptor = TlsAcceptor::from(api_server(slot.clone()).unwrap());
    let connector = TlsConnector::from(api_client(trust).unwrap());
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let (served, dialled) = tokio::join!(acceptor.accept(far), connector.connect(name, near));
    match dialled {
        Ok(stream) => {
            served.unwrap();
            let (_, connection) = stream.get_ref();
            assert_eq!(connection.alpn_protocol(), Some(ALPN));
            Ok(Fingerprint::of(&connection.peer_certificates().unwrap()[0]))
        }
        Err(why) => {
            let why = why.into_inner().unwrap();
            Err(*why.downcast::<Tls>().unwrap())
        }
    }
}

fn ca_and_files(now: SystemTime) -> (ClusterCa, NodeFiles) {
    let ca = ClusterCa::generate(now).unwrap();
    let files = NodeFiles::bootstrap(&ca, "node-1", &[LAN], now).unwrap();
    (ca, files)
}

fn slot_of(files: &NodeFiles) -> Arc<CertSlot> {
    CertSlot::new(&Identity::node(files).unwrap())
}

#[tokio::test]
async fn member_is_accepted_by_ca_and_by_fingerprint() {
    let (ca, files) = ca_and_files(SystemTime::now());
    let slot = slot_of(&files);
    let pem = ca.cert_pem().to_owned();
    for trust in [
        Trust::Ca(pem.clone()),
        Trust::Fingerprint(ca.fingerprint()),
        Trust::CaAndFingerprint(pem, ca.fingerprint()),
    ] {
        for name in ["node-1", "10.0.0.7"] {
            let leaf = handshake(&slot, &trust, name).await.unwrap();
            assert_eq!(leaf, files.cert.fingerprint());
        }
    }
}

#[tokio::test]
async fn another_ca_is_refused_for_every_trust() {
    let (ca, files) = ca_and_files(SystemTime::now());
    let (other, _) = ca_and_files(SystemTime::now());
    let slot = slot_of(&files);
    let (own_pem, other_pem) = (ca.cert_pem().to_owned(), other.cert_pem().to_owned());
    for trust in [
        Trust::Ca(other_pem.clone()),
        Trust::Fingerprint(other.fingerprint()),
        Trust::CaAndFingerprint(other_pem, ca.fingerprint()),
        Trust::CaAndFingerprint(own_pem, other.fingerprint()),
    ] {
        let why = handshake(&slot, &trust, "node-1").await.unwrap_err();
        assert!(
            matches!(why, Tls::InvalidCertificate(_)),
            "{trust:?}: {why}"
        );
    }
}

#[tokio::test]
async fn wrong_hostname_is_refused() {
    let (ca, files) = ca_and_files(SystemTime::now());
    let slot = slot_of(&files);
    for trust in [
        Trust::Ca(ca.cert_pem().to_owned()),
        Trust::Fingerprint(ca.fingerprint()),
    ] {
        for name in ["node-2", "10.0.0.8"] {
            let why = handshake(&slot, &trust, name).await.unwrap_err();
            assert!(
                matches!(
                    why,
                    Tls::InvalidCertificate(
                        CertificateError::NotValidForNameContext { .. }
                            | CertificateError::NotValidForName
                    )
                ),
                "{why}"
            );
        }
    }
}

#[tokio::test]
async fn certificates_outside_their_validity_are_refused() {
    let eleven_years = Duration::from_secs(11 * 366 * 24 * 3600);
    for made in [
        SystemTime::now() - eleven_years,
        SystemTime::now() + eleven_years,
    ] {
        let (ca, files) = ca_and_files(made);
        let slot = slot_of(&files);
        let why = handshake(&slot, &Trust::Fingerprint(ca.fingerprint()), "node-1").await;
        assert!(
            matches!(
                why,
                Err(Tls::InvalidCertificate(
                    CertificateError::ExpiredContext { .. }
                        | CertificateError::NotValidYetContext { .. }
                        | CertificateError::Expired
                        | CertificateError::NotValidYet
                ))
            ),
            "{why:?}"
        );
    }
}

#[tokio::test]
async fn pinning_the_leaf_of_a_member_fails() {
    let (_, files) = ca_and_files(SystemTime::now());
    let slot = slot_of(&files);
    let trust = Trust::Fingerprint(files.cert.fingerprint());
    assert!(handshake(&slot, &trust, "node-1").await.is_err());
}

#[tokio::test]
async fn a_member_cannot_sign_for_another_name() {
    let (ca, files) = ca_and_files(SystemTime::now());
    // A leaf signed with the node's own key, as if the node were a CA.
    let forged = ClusterCa::from_pem(files.cert.pem(), files.key.pem()).unwrap();
    let key = NodeKey::generate().unwrap();
    let cert = forged
        .issue(&key, "node-2", &[], SystemTime::now())
        .unwrap();
    let chain = format!("{}\n{}\n{}", cert.pem(), files.cert.pem(), ca.cert_pem());
    let slot = CertSlot::new(&Identity::from_pem(&chain, key.pem()).unwrap());
    for trust in [
        Trust::Ca(ca.cert_pem().to_owned()),
        Trust::Fingerprint(ca.fingerprint()),
        Trust::Fingerprint(files.cert.fingerprint()),
    ] {
        assert!(
            handshake(&slot, &trust, "node-2").await.is_err(),
            "{trust:?}"
        );
    }
}

#[tokio::test]
async fn bootstrap_certificate_is_trusted_until_it_is_replaced() {
    let now = SystemTime::now();
    let cert = BootstrapCert::generate("node-1", &[LAN], now).unwrap();
    let slot = CertSlot::new(&Identity::bootstrap(&cert).unwrap());
    let by_print = Trust::Fingerprint(cert.fingerprint());
    for trust in [by_print.clone(), Trust::Ca(cert.cert_pem().to_owned())] {
        assert_eq!(
            handshake(&slot, &trust, "10.0.0.7").await.unwrap(),
            cert.fingerprint()
        );
        assert!(handshake(&slot, &trust, "node-2").await.is_err());
    }

    let (ca, files) = ca_and_files(now);
    slot.replace(&Identity::node(&files).unwrap());
    assert!(handshake(&slot, &by_print, "node-1").await.is_err());
    let leaf = handshake(&slot, &Trust::Fingerprint(ca.fingerprint()), "node-1")
        .await
        .unwrap();
    assert_eq!(leaf, files.cert.fingerprint());
}

#[tokio::test]
async fn another_bootstrap_certificate_is_refused() {
    let make = || BootstrapCert::generate("node-1", &[], SystemTime::now()).unwrap();
    let slot = CertSlot::new(&Identity::bootstrap(&make()).unwrap());
    let trust = Trust::Fingerprint(make().fingerprint());
    assert!(handshake(&slot, &trust, "node-1").await.is_err());
}

#[test]
fn damaged_trust_is_refused() {
    for pem in [
        "",
        "not pem",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        assert!(api_client(&Trust::Ca(pem.to_owned())).is_err(), "{pem:?}");
    }
}

#[test]
fn key_of_another_certificate_is_refused() {
    let make = || BootstrapCert::generate("node-1", &[], SystemTime::now()).unwrap();
    let mixed = Identity::from_pem(make().cert_pem(), make().key_pem());
    assert!(matches!(mixed, Err(Error::Unusable(_))));
}
