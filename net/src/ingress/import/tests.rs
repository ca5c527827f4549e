use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};

use super::*;

/// An authority that signs leaves, and its certificate in PEM.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Validity by years.
const VALID: (i32, i32) = (2030, 2032);

fn now() -> SystemTime {
    date_time_ymd(2031, 6, 1).into()
}

fn params(name: &str, (begin, end): (i32, i32)) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.not_before = date_time_ymd(begin, 1, 1);
    params.not_after = date_time_ymd(end, 1, 1);
    params
}

fn authority(name: &str, validity: (i32, i32)) -> Authority {
    let mut params = params(name, validity);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    Authority { issuer, pem }
}

fn leaf(by: &Authority, names: &[&str], validity: (i32, i32)) -> (String, SecretString) {
    let mut leaf = CertificateParams::new(
        names
            .iter()
            .map(|name| (*name).to_owned())
            .collect::<Vec<_>>(),
    )
    .unwrap();
    leaf.not_before = date_time_ymd(validity.0, 1, 1);
    leaf.not_after = date_time_ymd(validity.1, 1, 1);
    let key = KeyPair::generate().unwrap();
    let pem = leaf.signed_by(&key, &by.issuer).unwrap().pem();
    (pem, SecretString::new(key.serialize_pem()))
}

#[test]
fn chain_and_key_that_fit_are_accepted() {
    let ca = authority("ca", VALID);
    let (pem, key) = leaf(&ca, &["a.example.org", "*.example.org"], VALID);
    // The key in the same file is not part of the chain.
    let file = format!("{pem}{}{}", key.expose(), ca.pem);
    for name in ["a.example.org", "*.example.org", "b.example.org"] {
        let imported = check(name, &file, &key, now()).unwrap();
        assert!(!imported.chain_pem.contains("PRIVATE"), "{name}");
        let ders = pki::certificates(&imported.chain_pem).unwrap();
        assert_eq!(ders, pki::certificates(&file).unwrap());
        let not_after: SystemTime = date_time_ymd(2032, 1, 1).into();
        assert_eq!(imported.not_after, not_after);
        let fingerprint: [u8; 32] = Sha256::digest(&ders[0]).into();
        assert_eq!(imported.fingerprint, fingerprint);
    }
}

#[test]
fn chain_expires_with_its_first_certificate() {
    let ca = authority("ca", (2030, 2032));
    let (pem, key) = leaf(&ca, &["a.example"], (2031, 2035));
    let imported = check("a.example", &format!("{pem}{}", ca.pem), &key, now()).unwrap();
    let not_after: SystemTime = date_time_ymd(2032, 1, 1).into();
    assert_eq!(imported.not_after, not_after);
    let not_before: SystemTime = date_time_ymd(2031, 1, 1).into();
    assert_eq!(imported.not_before, not_before);
}

#[test]
fn faults_are_named() {
    let ca = authority("ca", VALID);
    let other = authority("other", VALID);
    // The same name with another key.
    let twin = authority("ca", VALID);
    let old = authority("old", (2029, 2031));
    let (pem, key) = leaf(&ca, &["a.example"], VALID);
    let (foreign, foreign_key) = leaf(&other, &["a.example"], VALID);
    let (future, future_key) = leaf(&ca, &["a.example"], (2032, 2033));
    let (past, past_key) = leaf(&ca, &["a.example"], (2029, 2031));
    let (under_old, under_old_key) = leaf(&old, &["a.example"], VALID);
    let (signed_by_leaf, _) = leaf(&ca, &["a.example"], VALID);
    let damaged = pem.replace('A', "!");
    let text = |chain: &[&str]| chain.concat();
    let cases = [
        ("a.example", text(&["x"]), &key, "chain_unreadable"),
        ("a.example", damaged, &key, "chain_unreadable"),
        ("a.example", text(&[&pem]), &foreign_key, "key_mismatch"),
        ("b.example", text(&[&pem]), &key, "name_mismatch"),
        ("*.example", text(&[&pem]), &key, "name_mismatch"),
        ("x.a.example", text(&[&pem]), &key, "name_mismatch"),
        ("a.example", text(&[&pem, &other.pem]), &key, "chain_order"),
        ("a.example", text(&[&pem, &twin.pem]), &key, "chain_order"),
        (
            "a.example",
            text(&[&pem, &signed_by_leaf]),
            &key,
            "chain_order",
        ),
        ("a.example", text(&[&ca.pem, &pem]), &key, "key_mismatch"),
        ("a.example", text(&[&future]), &future_key, "not_yet_valid"),
        ("a.example", text(&[&past]), &past_key, "expired"),
        (
            "a.example",
            text(&[&under_old, &old.pem]),
            &under_old_key,
            "expired",
        ),
        ("a.example", text(&[pem.as_str(); 11]), &key, "too_long"),
        ("a.example", "x".repeat(70_000), &key, "too_long"),
        ("A.example", text(&[&pem]), &key, "name"),
    ];
    for (name, chain, key, reason) in &cases {
        let error = check(name, chain, key, now()).unwrap_err();
        assert_eq!(error.reason(), *reason, "{name}: {error}");
    }
    for text in ["", "key", foreign.as_str()] {
        let key = SecretString::new(text.to_owned());
        assert_eq!(check("a.example", &pem, &key, now()), Err(ImportError::Key));
    }
}

#[test]
fn names_have_at_most_one_wildcard_label() {
    for name in ["a", "a.b-c.d_e", "*.a.b", "xn--bcher-kva.example", "1.2"] {
        assert!(is_name(name), "{name}");
    }
    let long = ["a".repeat(64), format!("a{}", ".a".repeat(127))];
    let invalid = [
        "", ".", "a.", ".a", "*", "*.", "*.*.a", "a.*.b", "A", "ä", "-a", "a-", "a b", "a/b", "a:1",
    ];
    for name in invalid.iter().copied().chain(long.iter().map(|s| &**s)) {
        assert!(!is_name(name), "{name}");
    }
}
