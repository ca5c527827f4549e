//! Acceptance checks of trust, addresses and contexts.

use std::{
    io::ErrorKind,
    net::{TcpListener, TcpStream},
};

use tokio::net::TcpSocket;

use crate::lab::{Daemon, Workdir};

/// An address that refuses connections: its port is bound, so that no other test listens on it.
struct UnusedAddress {
    text: String,
    _bound: TcpSocket,
}

impl UnusedAddress {
    fn new() -> Self {
        let bound = TcpSocket::new_v4().unwrap();
        bound.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self {
            text: bound.local_addr().unwrap().to_string(),
            _bound: bound,
        }
    }
}

#[test]
fn unused_address_is_reserved_and_refuses() {
    let unused = UnusedAddress::new();
    let taken = TcpListener::bind(&unused.text).unwrap_err();
    assert_eq!(taken.kind(), ErrorKind::AddrInUse);
    let refused = TcpStream::connect(&unused.text).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
}

#[test]
fn check_04_remote_daemon_needs_a_pin() {
    let (daemon, token) = Daemon::initialized();
    let workdir = Workdir::new().env("JACO_TOKEN", token);
    let status = format!("status --server {}", daemon.address());
    let gone = format!("{status} --ca-cert gone.crt");
    let words = [
        "ca cert not found at gone.crt",
        "--ca-cert or set JACO_CA_CERT",
    ];
    workdir.jaco(&gone).fails("ca_required", &words);
    workdir
        .jaco(&format!("{status} --ca-cert="))
        .fails("ca_required", &[]);

    let (ca, print) = (daemon.ca(), daemon.fingerprint());
    let ca = ca.display();
    workdir
        .jaco(&format!("{gone} --ca-fingerprint {print}"))
        .ok();
    workdir.jaco(&format!("{status} --ca-cert {ca}")).ok();
    workdir
        .jaco(&format!("{status} --ca-cert {ca} --ca-fingerprint {print}"))
        .ok();

    workdir.file("bad.crt", 0o644, "hello\n");
    let words = ["did not parse"];
    workdir
        .jaco(&format!("{status} --ca-cert bad.crt"))
        .fails("ca_invalid", &words);
}

#[test]
fn check_05_unverified_daemon_never_receives_the_token() {
    let ((daemon, token), (other, _)) = (Daemon::initialized(), Daemon::initialized());
    let workdir = Workdir::new().env("JACO_TOKEN", token);
    let address = daemon.address().to_string();
    let (own, foreign) = (daemon.ca(), other.ca());
    for pin in [
        format!("--ca-cert {}", foreign.display()),
        format!("--ca-cert gone --ca-fingerprint {}", other.fingerprint()),
        format!(
            "--ca-cert {} --ca-fingerprint {}",
            own.display(),
            other.fingerprint()
        ),
        format!(
            "--ca-cert {} --ca-fingerprint {}",
            foreign.display(),
            daemon.fingerprint()
        ),
    ] {
        let line = format!("node list --server {address} {pin}");
        workdir.jaco(&line).fails("unavailable", &[&address]);
    }
    // The dialled name must match the certificate, too.
    let line = format!("node list --server {address} --ca-cert {}", own.display());
    workdir
        .jaco(&line.replace("127.0.0.1", "localhost"))
        .fails("unavailable", &["localhost"]);
    let log = daemon.log();
    assert!(log.contains("Cluster/Init"), "the log should contain calls");
    assert!(!log.contains("Cluster/NodeList"), "a call was sent");
    workdir.jaco(&line).ok();
    assert!(daemon.log().contains("Cluster/NodeList"));
}

#[test]
fn check_18_context_falls_back_to_next_address() {
    let (daemon, token) = Daemon::initialized();
    let (uninitialized, unused) = (Daemon::start(), UnusedAddress::new());
    let down = &unused.text;
    let context = |name: &str, addresses: &[&str]| {
        format!(
            "  - name: {name}\n    server_addrs: ['{}']\n    ca_cert_path: {}\n    token: {token}\n",
            addresses.join("', '"),
            daemon.ca().display(),
        )
    };
    let up = daemon.address().to_string();
    let leaderless = uninitialized.address().to_string();
    let text = format!(
        "current_context: second\ncontexts:\n{}{}{}{}",
        context("first", &[&up]),
        context("second", &[down, &up]),
        context("third", &[&leaderless, &up]),
        context("none", &[down, &leaderless]),
    );
    let workdir = Workdir::new();
    workdir.file(".config/jaco/clusters.yaml", 0o600, &text);
    for line in [
        "node list",
        "node list --context first",
        "node list --context second",
        "node list --context third",
    ] {
        assert!(workdir.jaco(line).ok().out.contains("\none "), "{line}");
    }
    let words = ["all endpoints unreachable", down, &leaderless];
    workdir
        .jaco("node list --context none")
        .fails("unavailable", &words);
    workdir
        .jaco("node list --context nosuch")
        .fails("context_invalid", &["nosuch"]);

    // A variable replaces its whole field; a flag takes precedence over both.
    let workdir = workdir.env("JACO_SERVER", down.clone());
    let words = [down.as_str()];
    workdir
        .jaco("node list --context first")
        .fails("unavailable", &words);
    workdir
        .jaco(&format!("node list --socket {}", daemon.socket().display()))
        .ok();
    let workdir = workdir.env("JACO_SERVER", format!("{down},{up}"));
    workdir.jaco("node list --context none").ok();
    let workdir = workdir.env("JACO_TOKEN", "0".repeat(64));
    workdir
        .jaco("node list --context first")
        .fails("token_invalid", &[]);
    workdir
        .jaco(&format!("node list --context first --token {token}"))
        .ok();
}

#[test]
fn server_flag_accepts_several_addresses() {
    let (daemon, token) = Daemon::initialized();
    let workdir = Workdir::new().env("JACO_TOKEN", token);
    let (unused, other) = (UnusedAddress::new(), UnusedAddress::new());
    let (down, ca) = (&unused.text, daemon.ca());
    let servers = format!("{down},{}", daemon.address());
    workdir
        .jaco(&format!(
            "status --server {servers} --ca-cert {}",
            ca.display()
        ))
        .ok();
    let servers = format!("{down},{}", other.text);
    let words = ["all endpoints unreachable"];
    workdir
        .jaco(&format!(
            "status --server {servers} --ca-cert {}",
            ca.display()
        ))
        .fails("unavailable", &words);
}

#[test]
fn every_read_accepts_consistent() {
    let (daemon, token) = Daemon::initialized();
    let workdir = Workdir::new();
    for transport in daemon.transports(&token) {
        for read in [
            "status",
            "get deployments",
            "get replicas",
            "get routes",
            "token list",
            "registry list",
            "node list",
            "cluster status",
            "audit",
        ] {
            workdir
                .jaco(&format!("{read} --consistent {transport}"))
                .ok();
        }
    }
    // Without a cluster there is no majority to confirm even an unauthenticated read.
    let daemon = Daemon::start();
    daemon.jaco("cluster status").ok();
    let answer = daemon.jaco("cluster status --consistent");
    answer.fails("cluster_uninitialized", &["jaco cluster init"]);
}

#[test]
fn logs_name_the_daemon_but_no_secrets() {
    let (daemon, token) = Daemon::initialized();
    let workdir = Workdir::new().env("JACO_TOKEN", &token);
    let file = workdir.file("token", 0o600, &token);
    let remote = format!(
        "--server {} --ca-cert {}",
        daemon.address(),
        daemon.ca().display()
    );
    let mut output = String::new();
    for line in [
        format!("status {remote} -v"),
        format!("status {remote} --log-level debug --token {token}"),
        format!("status {remote} -v --token-file {}", file.display()),
        format!("status --server {} --ca-cert gone -v", daemon.address()),
        format!("status {remote} --token {} -v", "0".repeat(64)),
        format!("status {remote} --context {token} -v"),
    ] {
        let answer = workdir.jaco(&line);
        output += &answer.out;
        output += &answer.err;
    }
    let login = format!("registry login ghcr.io -u u --password-stdin {remote} -v");
    let answer = workdir.jaco_reading(&login, b"open-sesame\n");
    assert_eq!(answer.status, Some(0), "{answer:?}");
    output += &answer.out;
    output += &answer.err;
    assert!(
        output.contains(&format!("target={}", daemon.address())),
        "{output}"
    );
    let log = daemon.log();
    for secret in [token.as_str(), "open-sesame", &"0".repeat(64)] {
        assert!(!output.contains(secret), "{output}");
        assert!(!log.contains(secret), "{log}");
    }
}
