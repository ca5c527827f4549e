//! Acceptance checks of failures before any call.

use std::{io::ErrorKind, net::TcpListener};

use crate::lab::{Daemon, Workdir};

#[test]
fn check_01_help_without_command_else_usage_error() {
    let workdir = Workdir::new();
    let help = workdir.jaco("").ok();
    assert!(help.out.contains("Usage: jaco"), "{}", help.out);
    workdir.jaco("nosuch").fails("usage_error", &["nosuch"]);
    workdir.jaco("apply").fails("usage_error", &["JACO"]);
}

#[test]
fn check_02_no_transport_without_socket_or_server() {
    let workdir = Workdir::new();
    let socket = workdir.path("absent.sock").display().to_string();
    let words = [socket.as_str(), "is not available", "--server", "--token"];
    workdir.jaco("status").fails("no_transport", &words);
}

#[test]
fn check_03_nothing_is_dialled_without_token() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    for command in ["status", "token list", "cluster init", "apply jaco.yaml"] {
        let workdir = Workdir::new();
        workdir.file("jaco.yaml", 0o644, "deployment: app\n");
        workdir.file("compose.yml", 0o644, "services: {web: {image: i}}\n");
        workdir
            .jaco(&format!("{command} --server {address}"))
            .fails("token_required", &["--token or JACO_TOKEN"]);
        let error = listener.accept().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock, "{command}");
    }
}

#[test]
fn check_09_unknown_format_is_usage_error() {
    let workdir = Workdir::new();
    for line in [
        "status -o xml",
        "status --format xml",
        "--output=xml status",
    ] {
        workdir.jaco(line).fails("usage_error", &["output format"]);
    }
}

#[test]
fn check_11_logs_need_deployment_and_service() {
    let workdir = Workdir::new();
    for line in ["logs app", "logs app/", "logs /web"] {
        let words = ["expected <deployment>/<service>"];
        workdir.jaco(line).fails("usage_error", &words);
    }
}

#[test]
fn check_14_audit_type_spellings_are_accepted() {
    let (daemon, token) = Daemon::initialized();
    for transport in daemon.transports(&token) {
        let workdir = Workdir::new();
        let types = "apply,NODE_JOIN,audit_event_type_delete,,";
        workdir
            .jaco(&format!("audit --type {types} {transport}"))
            .ok();
        let words = ["unknown audit type"];
        workdir
            .jaco(&format!("audit --type apply,nope {transport}"))
            .fails("usage_error", &words);
    }
}

#[test]
fn check_17_world_readable_contexts_are_refused() {
    let workdir = Workdir::new();
    let text = "contexts: [{name: a, server_addrs: ['h:1'], token: sesame}]\n";
    workdir.file(".config/jaco/clusters.yaml", 0o644, text);
    for line in ["status --context a", "status"] {
        let answer = workdir.jaco(line);
        answer.fails("context_invalid", &["0644"]);
        assert!(!answer.err.contains("sesame"), "{answer:?}");
    }
}

#[test]
fn local_commands_need_no_transport() {
    let workdir = Workdir::new();
    workdir.file("jaco.yaml", 0o644, "deployment: app\n");
    assert_eq!(workdir.jaco("validate --jaco jaco.yaml").ok().out, "");
    assert_eq!(
        workdir.jaco("version").ok().out,
        workdir.jaco("--version").ok().out
    );
}
