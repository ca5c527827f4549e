use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use jaco_proto::{ErrorCode, v1};
use proptest::prelude::*;

use super::*;

fn state(rows: &[(&str, &str)]) -> State {
    let row = |(key, value): &(&str, &str)| {
        let row = v1::ClusterConfig {
            key: (*key).to_owned(),
            value: (*value).to_owned(),
            updated_by: "ops".to_owned(),
            ..Default::default()
        };
        (row.key.clone(), Arc::new(row))
    };
    State {
        cluster_config: rows.iter().map(row).collect(),
        ..State::default()
    }
}

fn canonical(name: &str, value: &str) -> Option<String> {
    Key::find(name).unwrap().canonical(value).ok()
}

#[test]
fn nothing_is_set_in_a_new_cluster() {
    assert_eq!(
        ClusterSettings::of(&State::default()),
        ClusterSettings::default()
    );
}

#[test]
fn settings_are_those_of_the_state() {
    let settings = ClusterSettings::of(&state(&[
        ("ingress.limits", "0.5,2,20"),
        ("ingress.public_addresses", "192.0.2.1,lb.example.com"),
        ("ingress.trusted_proxies", "10.0.0.0/8"),
    ]));
    let limits = Limits {
        rps: 0.5,
        burst_multiplier: 2,
        connections: 20,
    };
    assert_eq!(settings.ingress_limits, Some(limits));
    assert_eq!(
        settings.trusted_proxies,
        ["10.0.0.0/8".parse::<Cidr>().unwrap()]
    );
    let addresses = [
        PublicAddress::Address("192.0.2.1".parse().unwrap()),
        PublicAddress::Name("lb.example.com".to_owned()),
    ];
    assert_eq!(settings.public_addresses, addresses);
}

#[test]
fn value_of_another_version_counts_as_not_set() {
    let settings = ClusterSettings::of(&state(&[
        ("ingress.limits", "per-path"),
        ("ingress.newer", "on"),
        ("ingress.trusted_proxies", "::1"),
    ]));
    assert_eq!(settings.ingress_limits, None);
    assert_eq!(settings.trusted_proxies.len(), 1);
}

#[test]
fn every_default_is_canonical_and_means_not_set() {
    let names: Vec<_> = KEYS.iter().map(|key| key.name).collect();
    let sorted: BTreeSet<_> = names.iter().copied().collect();
    assert_eq!(names, sorted.into_iter().collect::<Vec<_>>());
    for key in KEYS {
        assert_eq!(
            key.canonical(key.default).unwrap(),
            key.default,
            "{}",
            key.name
        );
        let default = ClusterSettings::of(&state(&[(key.name, key.default)]));
        assert_eq!(default, ClusterSettings::default(), "{}", key.name);
    }
}

#[test]
fn values_are_stored_in_one_form() {
    for (name, value, stored) in [
        ("ingress.limits", " off ", "off"),
        ("ingress.limits", "20.0, 5 ,20", "20,5,20"),
        (
            "ingress.limits",
            "1000000,1000,1000000",
            "1000000,1000,1000000",
        ),
        (
            "ingress.trusted_proxies",
            " 10.0.0.1 ,::/0,10.0.0.1/32",
            "10.0.0.1/32,::/0",
        ),
        (
            "ingress.trusted_proxies",
            "2001:DB8:0::/32",
            "2001:db8::/32",
        ),
        (
            "ingress.public_addresses",
            "LB.Example.com., ::FFFF:192.0.2.1",
            "lb.example.com,192.0.2.1",
        ),
        ("ingress.public_addresses", "  ", ""),
    ] {
        assert_eq!(
            canonical(name, value).as_deref(),
            Some(stored),
            "{name}={value}"
        );
        assert_eq!(
            canonical(name, stored).as_deref(),
            Some(stored),
            "{name}={stored}"
        );
    }
}

#[test]
fn bad_values_are_refused_with_what_was_expected() {
    for (name, value) in [
        ("ingress.limits", ""),
        ("ingress.limits", "on"),
        ("ingress.limits", "20,5"),
        ("ingress.limits", "20,5,20,1"),
        ("ingress.limits", "0,5,20"),
        ("ingress.limits", "-1,5,20"),
        ("ingress.limits", "NaN,5,20"),
        ("ingress.limits", "inf,5,20"),
        ("ingress.limits", "1000001,5,20"),
        ("ingress.limits", "20,0,20"),
        ("ingress.limits", "20,1001,20"),
        ("ingress.limits", "20,5,0"),
        ("ingress.limits", "20,5,1000001"),
        ("ingress.trusted_proxies", "10.0.0.1/8"),
        ("ingress.trusted_proxies", "10.0.0.0/33"),
        ("ingress.trusted_proxies", "10.0.0.0/08"),
        ("ingress.trusted_proxies", "10.0.0.0/+8"),
        ("ingress.trusted_proxies", "10.0.0.0/"),
        ("ingress.trusted_proxies", "::ffff:10.0.0.0/104"),
        ("ingress.trusted_proxies", "10.0.0.0/8,,::1"),
        ("ingress.trusted_proxies", "proxy.example.com"),
        ("ingress.public_addresses", "192.0.2.256"),
        ("ingress.public_addresses", "0.0.0.0"),
        ("ingress.public_addresses", "ff02::1"),
        ("ingress.public_addresses", "a b"),
        ("ingress.public_addresses", "-a.example.com"),
        ("ingress.public_addresses", "https://a.example.com"),
    ] {
        let error = Key::find(name).unwrap().canonical(value).unwrap_err();
        assert_eq!(error.code, ErrorCode::ConfigValueInvalid, "{name}={value}");
        assert_eq!(error.details["key"], name);
        assert_eq!(error.details["value"], value);
        assert!(!error.details["expected"].is_empty());
    }
}

#[test]
fn lists_and_values_are_bounded() {
    let list = |count: usize| {
        let texts: Vec<_> = (0..count)
            .map(|n| format!("10.0.{}.{}", n / 256, n % 256))
            .collect();
        texts.join(",")
    };
    assert!(canonical("ingress.trusted_proxies", &list(LIST_ENTRIES)).is_some());
    assert!(canonical("ingress.trusted_proxies", &list(LIST_ENTRIES + 1)).is_none());
    let long = "é".repeat(VALUE_BYTES);
    let error = Key::find("ingress.limits")
        .unwrap()
        .canonical(&long)
        .unwrap_err();
    assert_eq!(error.details["value"], "é".repeat(100));
}

#[test]
fn similar_name_is_suggested() {
    for (name, suggestion) in [
        ("ingress.limit", Some("ingress.limits")),
        ("trusted_proxies", Some("ingress.trusted_proxies")),
        ("Ingress.public_adresses", Some("ingress.public_addresses")),
        ("colour", None),
        ("", None),
    ] {
        let error = Key::find(name).unwrap_err();
        assert_eq!(error.code, ErrorCode::ConfigKeyUnknown);
        assert_eq!(error.details["key"], name);
        assert_eq!(
            error.details.get("suggestion").map(String::as_str),
            suggestion,
            "{name}"
        );
    }
    let error = Key::find(&"x".repeat(5000)).unwrap_err();
    assert_eq!(error.details["key"].len(), 200);
}

#[test]
fn range_contains_the_addresses_of_its_prefix() {
    for (range, inside, outside) in [
        ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
        ("10.0.0.0/8", "::ffff:10.1.2.3", "::a00:1"),
        ("0.0.0.0/0", "255.255.255.255", "::"),
        ("::/0", "ffff::", "0.0.0.0"),
        ("192.0.2.7", "192.0.2.7", "192.0.2.6"),
        ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
    ] {
        let cidr: Cidr = range.parse().unwrap();
        assert!(cidr.contains(inside.parse().unwrap()), "{range} {inside}");
        assert!(
            !cidr.contains(outside.parse().unwrap()),
            "{range} {outside}"
        );
    }
}

proptest! {
    #[test]
    fn any_stored_text_has_its_final_form(text in ".{0,60}", which in 0..KEYS.len()) {
        if let Ok(stored) = KEYS[which].canonical(&text) {
            prop_assert_eq!(KEYS[which].canonical(&stored).unwrap(), stored);
        }
    }

    #[test]
    fn any_prefix_holds_its_own_address(
        address in any::<IpAddr>(), length in 0..=128_u8,
    ) {
        let text = format!("{address}/{length}");
        if let Ok(cidr) = text.parse::<Cidr>() {
            prop_assert!(cidr.contains(address));
            prop_assert_eq!(cidr.to_string().parse::<Cidr>(), Ok(cidr));
        }
    }

    #[test]
    fn any_limits_are_stored_without_loss(
        rps in 1e-9..1e6_f64, burst_multiplier in 1..=1000_u32, connections in 1..=1_000_000_u32,
    ) {
        let limits = Limits { rps, burst_multiplier, connections };
        let text = limits.to_string();
        prop_assert_eq!(canonical("ingress.limits", &text).unwrap(), text.clone());
        let settings = ClusterSettings::of(&state(&[("ingress.limits", &text)]));
        prop_assert_eq!(settings.ingress_limits, Some(limits));
    }
}
