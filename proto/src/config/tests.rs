use proptest::prelude::*;

use super::*;

fn parse(text: &str) -> Result<DaemonConfig, Error> {
    DaemonConfig::parse(text.as_bytes())
}

fn parsed(text: &str) -> DaemonConfig {
    parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn refusal(text: &str) -> String {
    parse(text).expect_err(text).to_string()
}

fn host_port(host: &str, port: u16) -> HostPort {
    HostPort {
        host: host.to_owned(),
        port,
    }
}

#[test]
fn empty_file_has_all_defaults() {
    for text in [
        "",
        "\n\n",
        "# nothing\n",
        "---\n",
        "~\n",
        "{}\n",
        "dns:\n",
        "data_dir: ~\n",
    ] {
        assert_eq!(parsed(text), DaemonConfig::default(), "{text:?}");
    }
}

#[test]
fn every_key_is_parsed() {
    let config = parsed(
        "data_dir: /srv/jaco
listen_addr: 192.0.2.1:7100
cluster_addr: '[2001:db8::1]:7101'
unix_socket: /run/j.sock
wg_port: 51821
wg_backend: userspace
acme_email: ops@example.org
acme_ca: https://ca.test:14000/dir
acme_enabled: false
acme_skip_staging: true
acme_preflight: false
acme_root_ca: /etc/ca.pem
log_level: warn
ipam_pool: 10.128.0.0/12
ipam_block: 26
node_status_interval: 1m30s
dns:
  forwarders: [1.1.1.1, '9.9.9.9:5353', dns.example, 'dns.example:54', 'fd00::53', '[fd00::53]:55']
  forwarder_timeout: 500ms
docker_socket: unix:///run/podman/podman.sock
isolation: off
http_port: 8080
https_port: 8443
metrics_addr: :9100
ingress_access_log: /var/log/jaco/access.log
hostname: node-1.example
labels: {zone: eu-1, disk: , cores: 8}
",
    );

    let expected = DaemonConfig {
        data_dir: "/srv/jaco".into(),
        listen_addr: host_port("192.0.2.1", 7100),
        cluster_addr: host_port("2001:db8::1", 7101),
        unix_socket: "/run/j.sock".into(),
        wg_port: 51821,
        wg_backend: WgBackend::Userspace,
        acme_email: "ops@example.org".into(),
        acme_ca: "https://ca.test:14000/dir".into(),
        acme_enabled: false,
        acme_skip_staging: true,
        acme_preflight: false,
        acme_root_ca: Some("/etc/ca.pem".into()),
        log_level: LogLevel::Warn,
        ipam_pool: Pool {
            network: [10, 128, 0, 0].into(),
            prefix: 12,
        },
        ipam_block: 26,
        ipam_is_set: true,
        node_status_interval: Duration::from_secs(90),
        dns: Dns {
            forwarders: vec![
                host_port("1.1.1.1", 53),
                host_port("9.9.9.9", 5353),
                host_port("dns.example", 53),
                host_port("dns.example", 54),
                host_port("fd00::53", 53),
                host_port("fd00::53", 55),
            ],
            forwarder_timeout: Duration::from_millis(500),
        },
        docker_socket: "/run/podman/podman.sock".into(),
        isolation: Isolation::Off,
        http_port: 8080,
        https_port: 8443,
        metrics_addr: Some(host_port("127.0.0.1", 9100)),
        ingress_access_log: Some("/var/log/jaco/access.log".into()),
        hostname: Some("node-1.example".into()),
        labels: [("zone", "eu-1"), ("disk", ""), ("cores", "8")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    };
    assert_eq!(config, expected);
}

#[test]
fn unknown_keys_are_rejected_with_their_line() {
    for (text, expected) in [
        ("nosuch: 1\n", "unknown key \"nosuch\" on line 1"),
        (
            "# c\nwg_port: 1\nwgport: 2\n",
            "unknown key \"wgport\" on line 3; did you mean \"wg_port\"?",
        ),
        (
            "dns:\n  forwarder: [1.1.1.1]\n",
            "unknown key \"dns.forwarder\" on line 2; did you mean \"dns.forwarders\"?",
        ),
        ("x-note: 1\n", "unknown key \"x-note\" on line 1"),
        (
            "Data_dir: /x\n",
            "unknown key \"Data_dir\" on line 1; did you mean \"data_dir\"?",
        ),
    ] {
        assert_eq!(refusal(text), expected);
    }
}

#[test]
fn bad_values_are_rejected_with_their_key() {
    for (text, expected) in [
        ("wg_port: 70000", "wg_port 70000 is out of range"),
        ("wg_port: 0", "wg_port 0 is out of range"),
        ("wg_port: -1", "wg_port -1 is out of range"),
        ("http_port: 0", "http_port 0 is out of range"),
        ("https_port: 65536", "https_port 65536 is out of range"),
        ("ipam_block: 23", "ipam_block 23 is out of range"),
        ("ipam_block: 29", "ipam_block 29 is out of range"),
        (
            "ipam_pool: 10.0.0.0/4",
            "ipam_pool \"10.0.0.0/4\" must be between /8 and /20 (got /4)",
        ),
        (
            "ipam_pool: 10.0.0.0/24",
            "ipam_pool \"10.0.0.0/24\" must be between /8 and /20 (got /24)",
        ),
        (
            "ipam_pool: 10.1.0.0/8",
            "ipam_pool \"10.1.0.0/8\" is not an IPv4 network: host bits are set",
        ),
        (
            "ipam_pool: fd00::/16",
            "ipam_pool \"fd00::/16\" is not an IPv4 network: IPv6 is not supported",
        ),
        (
            "ipam_pool: 10.0.0.0",
            "ipam_pool \"10.0.0.0\" is not an IPv4 network: missing prefix length",
        ),
        (
            "ipam_pool: 10.0.0.0/+9",
            "ipam_pool \"10.0.0.0/+9\" is not an IPv4 network: bad prefix length",
        ),
        (
            "ipam_pool: 10.0.0/16",
            "ipam_pool \"10.0.0/16\" is not an IPv4 network: bad address",
        ),
        (
            "node_status_interval: 1s",
            "node_status_interval 1s must be between 5s and 5m0s",
        ),
        (
            "node_status_interval: 5m0.000000001s",
            "node_status_interval 5m0.000000001s must be between 5s and 5m0s",
        ),
        (
            "node_status_interval: 30",
            "node_status_interval 30ns must be between 5s and 5m0s",
        ),
        (
            "node_status_interval: -30s",
            "node_status_interval -30s must be between 5s and 5m0s",
        ),
        (
            "node_status_interval: 1 minute",
            "node_status_interval \"1 minute\" is not a duration",
        ),
        (
            "listen_addr: 10.0.0.1:7001\ncluster_addr: 10.0.0.1:7001",
            "cluster_addr and listen_addr must differ",
        ),
        (
            "listen_addr: 0.0.0.0:7001",
            "cluster_addr and listen_addr must differ",
        ),
        ("listen_addr: ''", "listen_addr must not be empty"),
        ("cluster_addr: ''", "cluster_addr must not be empty"),
        ("data_dir: ''", "data_dir must not be empty"),
        ("unix_socket: ''", "unix_socket must not be empty"),
        (
            "listen_addr: host",
            "listen_addr \"host\" is not host:port: missing port",
        ),
        (
            "listen_addr: '[::1]'",
            "listen_addr \"[::1]\" is not host:port: missing ']'",
        ),
        (
            "listen_addr: '::1:7000'",
            "listen_addr \"::1:7000\" is not host:port: too many colons",
        ),
        (
            "listen_addr: 'h:70000'",
            "listen_addr \"h:70000\" is not host:port: the port must be a number up to 65535",
        ),
        (
            "listen_addr: 'h:'",
            "listen_addr \"h:\" is not host:port: the port must be a number up to 65535",
        ),
        (
            "acme_ca: http://ca/dir",
            "acme_ca \"http://ca/dir\" must be an https URL",
        ),
        (
            "acme_ca: https:///dir",
            "acme_ca \"https:///dir\" must be an https URL",
        ),
        (
            "acme_ca: ca.test",
            "acme_ca \"ca.test\" must be an https URL",
        ),
        (
            "log_level: INFO",
            "log_level \"INFO\" must be debug, info, warn or error",
        ),
        (
            "wg_backend: module",
            "wg_backend \"module\" must be auto, kernel or userspace",
        ),
        ("isolation: 'no'", "isolation \"no\" must be enforce or off"),
        (
            "docker_socket: tcp://h:1",
            "docker_socket \"tcp://h:1\" must be unix:// and an absolute path",
        ),
        ("hostname: a_b", "hostname \"a_b\" is not a DNS name"),
        ("hostname: a..b", "hostname \"a..b\" is not a DNS name"),
        ("hostname: -a", "hostname \"-a\" is not a DNS name"),
        (
            "dns: {forwarder_timeout: -1s}",
            "dns.forwarder_timeout -1s must not be negative",
        ),
        (
            "dns: {forwarder_timeout: soon}",
            "dns.forwarder_timeout \"soon\" is not a duration",
        ),
        (
            "dns: {forwarders: [~]}",
            "dns.forwarders \"\" is not host[:port]: missing host",
        ),
        (
            "dns: {forwarders: ['1.1.1.1:0']}",
            "dns.forwarders \"1.1.1.1:0\" is not host[:port]: bad host or port",
        ),
    ] {
        assert_eq!(refusal(text), expected, "{text}");
    }
}

#[test]
fn wrong_types_are_rejected_with_their_line() {
    for (text, expected) in [
        ("- a\n", "the file on line 1 must be a mapping, not a list"),
        (
            "just text\n",
            "the file on line 1 must be a mapping, not a string",
        ),
        (
            "dns: 1.1.1.1\n",
            "dns on line 1 must be a mapping, not a string",
        ),
        (
            "\nwg_port: many\n",
            "wg_port on line 2 must be a whole number, not a string",
        ),
        (
            "wg_port: 1.5\n",
            "wg_port on line 1 must be a whole number, not a number",
        ),
        (
            "wg_port: [1]\n",
            "wg_port on line 1 must be a whole number, not a list",
        ),
        (
            "data_dir: {a: b}\n",
            "data_dir on line 1 must be text, not a mapping",
        ),
        (
            "acme_enabled: 1\n",
            "acme_enabled on line 1 must be true or false, not a number",
        ),
        (
            "dns:\n  forwarders: a\n",
            "dns.forwarders on line 2 must be a list, not a string",
        ),
        (
            "dns:\n  forwarders:\n  - [a]\n",
            "dns.forwarders on line 3 must be a list of text, not a list",
        ),
    ] {
        assert_eq!(refusal(text), expected, "{text}");
    }
}

#[test]
fn invalid_yaml_is_rejected() {
    for text in ["a: [", "wg_port: 1\nwg_port: 2\n", "\"", "a: b: c"] {
        assert!(matches!(parse(text), Err(Error::Yaml(_))), "{text}");
    }
}

#[test]
fn quoted_and_plain_values_are_equal() {
    let plain = parsed("wg_port: 51_821\nacme_enabled: no\nnode_status_interval: 5s\n");
    let quoted = parsed("wg_port: '51821'\nacme_enabled: 'false'\nnode_status_interval: \"5s\"\n");
    assert_eq!(plain, quoted);
    assert_eq!(plain.wg_port, 51821);
    assert!(!plain.acme_enabled);
}

#[test]
fn zero_duration_and_empty_text_mean_the_default() {
    let text = "node_status_interval: 0\nacme_ca: ''\nacme_root_ca: ''\nmetrics_addr: ''
ingress_access_log: ''
hostname: ''\ndns: {forwarder_timeout: 0s, forwarders: []}\n";
    assert_eq!(parsed(text), DaemonConfig::default());
}

#[test]
fn range_bounds_are_accepted() {
    let low = parsed("wg_port: 1\nipam_pool: 10.0.0.0/8\nipam_block: 24\nnode_status_interval: 5s");
    let high =
        parsed("wg_port: 65535\nipam_pool: 10.0.16.0/20\nipam_block: 28\nnode_status_interval: 5m");
    assert!(low.ipam_is_set && high.ipam_is_set);
    assert!(parsed("ipam_block: 24").ipam_is_set);
    assert!(!parsed("wg_port: 1").ipam_is_set);
    assert_eq!((low.wg_port, low.ipam_pool.prefix), (1, 8));
    assert_eq!((high.wg_port, high.ipam_pool.prefix), (65535, 20));
    assert_eq!(low.node_status_interval, Duration::from_secs(5));
    assert_eq!(high.node_status_interval, Duration::from_secs(300));
}

#[test]
fn forwarders_to_our_own_responders_are_rejected() {
    for (pool, forwarder, refused) in [
        ("10.244.0.0/16", "127.0.0.11", true),
        ("10.244.0.0/16", "127.1.2.11:53", true),
        ("10.244.0.0/16", "127.0.0.53", false),
        ("10.244.0.0/16", "10.244.7.1", true),
        ("10.244.0.0/16", "10.244.7.2", false),
        ("10.0.0.0/16", "10.244.7.1", true),
        ("10.0.0.0/16", "10.0.7.1", true),
        ("10.0.0.0/16", "10.1.7.1", false),
        ("10.0.0.0/16", "10.0.7.17", true),
        ("10.0.0.0/16", "10.0.7.18", false),
        ("10.0.0.0/16", "resolver.example", false),
        ("10.0.0.0/16", "::1", false),
    ] {
        let text =
            format!("ipam_pool: {pool}\nipam_block: 28\ndns: {{forwarders: ['{forwarder}']}}");
        let loops = matches!(parse(&text), Err(Error::ForwarderLoop { .. }));
        assert_eq!(loops, refused, "{pool} {forwarder}");
    }
}

#[test]
fn pool_contains_its_addresses() {
    let pool = parsed("ipam_pool: 10.32.0.0/12").ipam_pool;
    assert!(pool.contains([10, 47, 255, 255].into()));
    assert!(!pool.contains([10, 48, 0, 0].into()));
    assert_eq!(pool.to_string(), "10.32.0.0/12");
}

proptest! {
    #[test]
    fn arbitrary_values_do_not_panic(
        key in proptest::sample::select(&KEYS[..]),
        value in "[-0-9a-z.:/\\[\\]{}' ~]{0,20}|.*",
    ) {
        let _ = parse(&format!("{key}: {value}\n"));
    }

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = DaemonConfig::parse(&bytes);
    }

    #[test]
    fn addresses_round_trip(host in "[a-z0-9.-]{0,20}|[0-9a-f]{1,4}::[0-9a-f]{1,4}", port: u16) {
        let addr = HostPort { host, port };
        prop_assert_eq!(HostPort::parse(&addr.to_string()), Ok(addr));
    }
}
