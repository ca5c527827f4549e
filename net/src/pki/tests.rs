//! Tests of signing, refusal and the files on disk.

use std::{
    fs,
    net::IpAddr,
    os::unix::fs::PermissionsExt,
    time::{Duration, SystemTime},
};

use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, PKCS_ED25519, SanType};
use x509_parser::prelude::*;

use super::{
    authority::{common_name, name_node},
    files::{self, NodeFiles, Staging},
    *,
};

const NAME: &str = "node-1";

fn lan() -> IpAddr {
    "10.0.0.7".parse().unwrap()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

#[test]
fn ca_certificate_has_the_specified_fields() {
    let ca = ClusterCa::generate(at(1_700_000_000)).unwrap();
    let der = certificates(ca.cert_pem()).unwrap().remove(0);
    let (_, cert) = parse_x509_certificate(&der).unwrap();
    assert_eq!(cert.subject().to_string(), "CN=JACO Cluster CA");
    assert_eq!(cert.raw_serial().len(), 16);
    assert_eq!(cert.validity().not_before.timestamp(), 1_700_000_000 - 60);
    let years = (cert.validity().not_after.timestamp() - 1_700_000_000) / (365 * 24 * 3600);
    assert_eq!(years, 10);
    assert!(cert.is_ca());
    assert!(cert.key_usage().unwrap().unwrap().value.key_cert_sign());
    assert_eq!(
        cert.public_key().algorithm.algorithm.to_string(),
        "1.3.101.112"
    );
    cert.verify_signature(None).unwrap();
}

#[test]
fn node_certificate_has_one_name_and_cannot_sign() {
    let ca = ClusterCa::generate(SystemTime::now()).unwrap();
    let files = NodeFiles::bootstrap(&ca, NAME, &[lan()], SystemTime::now()).unwrap();
    let (_, cert) = parse_x509_certificate(files.cert.der()).unwrap();
    assert_eq!(cert.subject().to_string(), "CN=node-1");
    assert!(!cert.is_ca());
    let usage = cert.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && usage.key_encipherment() && !usage.key_cert_sign());
    let extended = cert.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.server_auth && extended.client_auth && !extended.any);
    let names = &cert
        .subject_alternative_name()
        .unwrap()
        .unwrap()
        .value
        .general_names;
    assert_eq!(
        *names,
        [
            GeneralName::DNSName(NAME),
            GeneralName::IPAddress(&[10, 0, 0, 7])
        ]
    );
}

#[test]
fn restored_ca_signs_for_the_same_cluster() {
    let first = ClusterCa::generate(SystemTime::now()).unwrap();
    let again = ClusterCa::from_pem(first.cert_pem(), first.key_pem()).unwrap();
    assert_eq!(first.fingerprint(), again.fingerprint());

    let key = NodeKey::generate().unwrap();
    let csr = key.request(NAME, &[lan()]).unwrap();
    let cert = again
        .sign_request(&csr, NAME, &[], SystemTime::now())
        .unwrap();
    cert.check_key(&key).unwrap();
    assert!(cert.check_key(&NodeKey::generate().unwrap()).is_err());

    let ca_der = certificates(first.cert_pem()).unwrap().remove(0);
    let (_, ca_cert) = parse_x509_certificate(&ca_der).unwrap();
    let (_, leaf) = parse_x509_certificate(cert.der()).unwrap();
    leaf.verify_signature(Some(ca_cert.public_key())).unwrap();
    assert_eq!(leaf.issuer(), ca_cert.subject());
}

#[test]
fn node_certificates_begin_with_their_authority() {
    const BEGINS: u64 = 1_700_000_000;
    let ca = ClusterCa::generate(at(BEGINS) + MAX_CLOCK_SKEW).unwrap();
    let ca = ClusterCa::from_pem(ca.cert_pem(), ca.key_pem()).unwrap();
    let key = NodeKey::generate().unwrap();
    let csr = key.request(NAME, &[]).unwrap();
    // The signer's clock may be ahead of all others, or behind the authority.
    for now in [BEGINS + 3600 * 24, BEGINS + 60, BEGINS - 3600].map(at) {
        let own = ca.issue(&key, NAME, &[], now).unwrap();
        let joiner = ca.sign_request(&csr, NAME, &[], now).unwrap();
        for cert in [own, joiner] {
            let (_, cert) = parse_x509_certificate(cert.der()).unwrap();
            let not_before = u64::try_from(cert.validity().not_before.timestamp());
            assert_eq!(not_before, Ok(BEGINS), "{now:?}");
        }
    }
}

#[test]
fn authority_with_a_foreign_key_is_refused() {
    let [a, b] = [0, 1].map(|_| ClusterCa::generate(SystemTime::now()).unwrap());
    let mixed = ClusterCa::from_pem(a.cert_pem(), b.key_pem());
    assert!(matches!(mixed, Err(Error::Mismatch(_))));
}

/// A joiner's signing request for [`NAME`], modified by `change`.
fn request(change: impl FnOnce(&mut CertificateParams)) -> String {
    let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
    let mut params = CertificateParams::default();
    name_node(&mut params, NAME, &[lan()]).unwrap();
    change(&mut params);
    params.serialize_request(&key).unwrap().pem().unwrap()
}

fn dns(name: &str) -> SanType {
    SanType::DnsName(name.try_into().unwrap())
}

#[test]
fn a_request_may_name_only_its_sender() {
    let ca = ClusterCa::generate(SystemTime::now()).unwrap();
    let taken: Vec<IpAddr> = vec![[10, 0, 0, 17].into(), [10, 0, 0, 8].into()];
    let sign = |csr: &str| ca.sign_request(csr, NAME, &taken, SystemTime::now());
    let ip = |ip: IpAddr| request(|p| p.subject_alt_names.push(SanType::IpAddress(ip)));
    let ips = |count: u16| {
        request(|p| {
            let ips = (0..count)
                .map(|n| SanType::IpAddress(IpAddr::from([10, 1, (n >> 8) as u8, n as u8])));
            p.subject_alt_names = std::iter::once(dns(NAME)).chain(ips).collect();
        })
    };
    assert!(sign(&ip([10, 0, 0, 9].into())).is_ok());
    assert!(sign(&ips(MAX_REQUEST_ADDRESSES as u16)).is_ok());
    assert!(sign(&request(|_| {})).is_ok());
    assert!(
        sign(&request(|p| drop(p.subject_alt_names.pop()))).is_ok(),
        "addresses are optional"
    );

    let refused: [(&str, String); 12] = [
        (
            "another subject",
            request(|p| p.distinguished_name = common_name("node-2")),
        ),
        (
            "another DNS name",
            request(|p| p.subject_alt_names = vec![dns("node-2")]),
        ),
        (
            "an additional DNS name",
            request(|p| p.subject_alt_names.push(dns("node-2"))),
        ),
        (
            "a wildcard",
            request(|p| p.subject_alt_names.push(dns("*"))),
        ),
        (
            "no DNS name",
            request(|p| drop(p.subject_alt_names.remove(0))),
        ),
        (
            "a mail address",
            request(|p| {
                p.subject_alt_names
                    .push(SanType::Rfc822Name("a@b".try_into().unwrap()));
            }),
        ),
        (
            "loopback",
            request(|p| {
                p.subject_alt_names
                    .push(SanType::IpAddress([127, 0, 0, 1].into()))
            }),
        ),
        (
            "an authority",
            request(|p| p.is_ca = IsCa::Ca(BasicConstraints::Unconstrained)),
        ),
        ("an address of another node", ip([10, 0, 0, 8].into())),
        (
            "the same, mapped into IPv6",
            ip(std::net::Ipv4Addr::new(10, 0, 0, 8).to_ipv6_mapped().into()),
        ),
        (
            "more addresses than a node has",
            ips(MAX_REQUEST_ADDRESSES as u16 + 1),
        ),
        ("no PEM", "hello".to_owned()),
    ];
    for (what, csr) in refused {
        assert!(sign(&csr).is_err(), "{what}");
    }
}

#[test]
fn request_with_wrong_signature_is_refused() {
    let ca = ClusterCa::generate(SystemTime::now()).unwrap();
    let pem = request(|_| {});
    // Flip one bit of the signature, which ends the DER.
    let body: String = pem
        .lines()
        .filter(|line| !line.starts_with("---"))
        .collect();
    let cut = body.trim_end_matches('=').len() - 4;
    let other = if body.as_bytes()[cut] == b'A' {
        "B"
    } else {
        "A"
    };
    let damaged = format!("{}{}{}", &body[..cut], other, &body[cut + 1..]);
    let pem = format!(
        "-----BEGIN CERTIFICATE REQUEST-----\n{damaged}\n-----END CERTIFICATE REQUEST-----\n"
    );
    assert!(matches!(
        ca.sign_request(&pem, NAME, &[], SystemTime::now()),
        Err(Error::Request(_))
    ));
}

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn node_files_appear_atomically_with_their_modes() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("node");
    let ca = ClusterCa::generate(SystemTime::now()).unwrap();
    let made = NodeFiles::bootstrap(&ca, NAME, &[lan()], SystemTime::now()).unwrap();

    let staging = Staging::begin(&target, files::PUBLIC_DIR).unwrap();
    made.stage(&staging).unwrap();
    assert!(!target.exists());
    staging.commit().unwrap();

    assert_eq!(mode(&target), 0o755);
    assert_eq!(mode(&target.join("node-1.key")), 0o600);
    assert_eq!(mode(&target.join("ca.crt")), 0o644);
    let loaded = NodeFiles::load(&target, NAME).unwrap();
    assert_eq!(loaded.cert, made.cert);
    assert_eq!(loaded.ca_pem, ca.cert_pem());
    assert!(matches!(
        NodeFiles::load(&target, "../x"),
        Err(Error::Hostname(_))
    ));
}

#[test]
fn error_names_the_damaged_file() {
    let root = tempfile::tempdir().unwrap();
    let ca = ClusterCa::generate(SystemTime::now()).unwrap();
    let made = NodeFiles::bootstrap(&ca, NAME, &[lan()], SystemTime::now()).unwrap();
    for name in ["node-1.key", "node-1.crt", "ca.crt"] {
        let target = root.path().join(name).join("node");
        fs::create_dir(root.path().join(name)).unwrap();
        let staging = Staging::begin(&target, files::PUBLIC_DIR).unwrap();
        made.stage(&staging).unwrap();
        staging.commit().unwrap();
        let pem = fs::read(target.join(name)).unwrap();
        fs::write(target.join(name), &pem[..pem.len() / 2]).unwrap();
        let error = NodeFiles::load(&target, NAME).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
        fs::remove_file(target.join(name)).unwrap();
        let error = NodeFiles::load(&target, NAME).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn staging_that_is_not_committed_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("node");
    let staging = Staging::begin(&target, files::SECRET_DIR).unwrap();
    assert_eq!(mode(staging.path()), 0o700);
    staging.file("secret", b"x", files::SECRET).unwrap();
    drop(staging);
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn leftovers_of_a_crash_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("node");
    let crashed = Staging::begin(&target, files::SECRET_DIR).unwrap();
    crashed.file("old", b"x", files::SECRET).unwrap();
    std::mem::forget(crashed);
    Staging::begin(&target, files::SECRET_DIR)
        .unwrap()
        .commit()
        .unwrap();
    assert_eq!(fs::read_dir(&target).unwrap().count(), 0);
}

#[test]
fn a_filled_directory_is_never_replaced() {
    let root = tempfile::tempdir().unwrap();
    let target = root.path().join("node");
    let first = Staging::begin(&target, files::SECRET_DIR).unwrap();
    first.file("key", b"first", files::SECRET).unwrap();
    first.commit().unwrap();
    let second = Staging::begin(&target, files::SECRET_DIR).unwrap();
    assert!(second.commit().is_err());
    assert_eq!(fs::read(target.join("key")).unwrap(), b"first");
}
