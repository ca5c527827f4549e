use proptest::prelude::*;

use super::*;

fn hash(text: &str, networks: &[&str]) -> [u8; 32] {
    let networks: Vec<String> = networks.iter().map(|&name| name.to_owned()).collect();
    let hasher = SpecHasher::new(text.as_bytes()).unwrap();
    hasher.hash("web", &networks, &[]).unwrap()
}

#[test]
fn hash_ignores_layout_and_covers_values() {
    let base = "services:\n  web:\n    image: nginx\n    environment: {A: 1, B: x}\n    volumes: [data:/d]\n";
    let same = "# note\nservices: {db: {image: pg}, web: {volumes: ['data:/d'], environment: {'B': x, A: 1}, image: nginx}}";
    assert_eq!(hash(base, &[]), hash(same, &[]));
    let merged = "x-w: &w {image: nginx, environment: {A: 1, B: x}}\nservices: {web: {<<: *w, volumes: [data:/d]}}";
    assert_eq!(hash(base, &[]), hash(merged, &[]));
    for other in [
        base.replace("A: 1", "A: 2"),
        base.replace("A: 1", "A: \"1\""),
        base.replace("A: 1", "A: 0x1"),
        base.replace("{A: 1, B: x}", "[A=1, B=x]"),
        base.replace("nginx", "nginx:2"),
        format!("{base}volumes: {{data: {{name: x}}}}"),
        format!("{base}volumes: {{data: {{external: true}}}}"),
    ] {
        assert_ne!(hash(base, &[]), hash(&other, &[]), "{other}");
    }
    assert_ne!(hash(base, &["a"]), hash(base, &[]));
    assert_ne!(hash(base, &["a", "b"]), hash(base, &["b", "a"]));
    let unmounted = format!("{base}volumes: {{other: {{name: x}}}}");
    assert_eq!(hash(base, &[]), hash(&unmounted, &[]));
    assert!(
        SpecHasher::new(base.as_bytes())
            .unwrap()
            .hash("nope", &[], &[])
            .is_none()
    );
}

#[test]
fn hash_is_the_digest_of_canonical_json() {
    use sha2::{Digest, Sha256};
    let json = r#"{"a":[1,"1",null,true,1.5],"image":"x\ny"}"#;
    let text = "services: {web: {image: \"x\\ny\", a: [1, '1', ~, true, 1.5]}}";
    let digest: [u8; 32] = Sha256::digest(json).into();
    assert_eq!(hash(text, &[]), digest);
}

proptest! {
    #[test]
    fn hashes_do_not_depend_on_key_order(order in Just(vec!["image: x", "user: u", "init: true", "labels: {b: 1, a: 2}", "command: [a, b]"]).prop_shuffle()) {
        let text = format!("services: {{web: {{{}}}}} # {}", order.join(", "), order[0]);
        let sorted = "services: {web: {command: [a, b], image: x, init: true, labels: {a: 2, b: 1}, user: u}}";
        prop_assert_eq!(hash(&text, &[]), hash(sorted, &[]));
    }
}

/// Expected forms: `json.Marshal` of what yaml.v3 decodes.
#[test]
fn go_hash_is_the_digest_of_gos_json() {
    use sha2::{Digest, Sha256};
    for (yaml, json) in [
        ("{image: nginx}", r#"{"image":"nginx"}"#),
        (
            "{ports: ['80', 8080, 8000-8010:80, 22:22], init: True, user: , b: [], a: {}}",
            r#"{"a":{},"b":[],"init":true,"ports":["80",8080,"8000-8010:80","22:22"],"user":null}"#,
        ),
        (
            "{cpus: 0.50, n: 1.10, e: 1e3, m: 0644, x: 0x1F, d: '2024-01-02', neg: -5}",
            r#"{"cpus":0.5,"d":"2024-01-02","e":1000,"m":420,"n":1.1,"neg":-5,"x":31}"#,
        ),
        (
            r#"{command: "a < b && c > d \" \\ \n \t \b \e é"}"#,
            r#"{"command":"a \u003c b \u0026\u0026 c \u003e d \" \\ \n \t \b \u001b é"}"#,
        ),
        ("{8080: yes, on: off}", r#"{"8080":"yes","on":"off"}"#),
    ] {
        let text = format!("services: {{web: {yaml}}}");
        let hasher = SpecHasher::new(text.as_bytes()).unwrap();
        let digest: [u8; 32] = Sha256::digest(json).into();
        assert_eq!(hasher.go_hash("web"), Some(digest), "{yaml}");
        assert_eq!(hasher.go_hash("nope"), None);
    }
    for ambiguous in [
        "2024-01-02",
        "1_000",
        "+1_0.5",
        "99999999999999999999",
        "1e30",
        ".inf",
    ] {
        let text = format!("services: {{web: {{user: {ambiguous}}}}}");
        let hasher = SpecHasher::new(text.as_bytes()).unwrap();
        assert_eq!(hasher.go_hash("web"), None, "{ambiguous}");
    }
}
