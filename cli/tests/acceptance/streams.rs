//! Acceptance checks of streams: their events, their end, and closed pipes.

use std::{
    io::{BufRead, BufReader, Read, Write},
    process::{Child, ChildStdout, Stdio},
    thread,
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::lab::{Daemon, Workdir, manifests};

fn follow(workdir: &Workdir, line: &str) -> (Child, BufReader<ChildStdout>) {
    let mut child = workdir.command(line).spawn().unwrap();
    let out = BufReader::new(child.stdout.take().unwrap());
    (child, out)
}

/// Sends Ctrl-C, which ends a stream successfully and without output.
fn interrupt(child: Child) {
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    ends_well(child);
}

/// Waits for a successful end without output on stderr.
fn ends_well(mut child: Child) {
    let mut err = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut err)
        .unwrap();
    assert_eq!((child.wait().unwrap().code(), err.as_str()), (Some(0), ""));
}

#[test]
fn audit_follow_misses_and_repeats_nothing() {
    let (daemon, token) = Daemon::initialized();
    for (at, transport) in daemon.transports(&token).into_iter().enumerate() {
        let workdir = Workdir::new();
        let issue = |name: String| {
            Workdir::new()
                .jaco(&format!("token issue --name {name} {transport}"))
                .ok();
        };
        let burst = |round: &str| {
            thread::scope(|scope| {
                for worker in 0..4 {
                    scope.spawn(move || {
                        for n in 0..5 {
                            issue(format!("t{at}-{round}-{worker}-{n}"));
                        }
                    });
                }
            });
        };
        burst("before");
        // The history is read while the next burst is written.
        let (child, out) = follow(&workdir, &format!("audit -f -o json {transport}"));
        burst("during");
        workdir
            .jaco(&format!("token revoke marker-{at} {transport}"))
            .ok();
        let marker = format!("marker-{at}");
        let mut followed: Vec<Value> = Vec::new();
        for line in out.lines() {
            let event: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let last = event.to_string().contains(&marker);
            followed.push(event);
            if last {
                break;
            }
        }
        interrupt(child);
        let listed = workdir.jaco(&format!("audit -o json {transport}")).json();
        assert_eq!(&followed, listed.as_array().unwrap());
        let indexes: Vec<u64> = followed
            .iter()
            .map(|e| e["raft_index"].as_u64().unwrap())
            .collect();
        assert!(indexes.is_sorted_by(|a, b| a < b), "{indexes:?}");
        let issued = followed
            .iter()
            .filter(|event| event["type"] == "token_issue")
            .count();
        assert!(issued >= 40 * (at + 1), "{issued}");
    }
}

#[test]
fn followed_events_are_filtered_and_framed() {
    let (daemon, token) = Daemon::initialized();
    let [_, transport] = daemon.transports(&token);
    let workdir = Workdir::new();
    for (format, framed) in [("json", ""), ("yaml", "---\n"), ("table", "TYPE ")] {
        let line = format!("audit -f --type token_revoke -o {format} {transport}");
        let (child, mut out) = follow(&workdir, &line);
        workdir
            .jaco(&format!("token issue --name {format} {transport}"))
            .ok();
        workdir
            .jaco(&format!("token revoke {format} {transport}"))
            .ok();
        let mut text = String::new();
        while !text.contains(&format!("identity={format}"))
            && !text.contains(&format!("identity: {format}"))
            && !text.contains(&format!("\"identity\":\"{format}\""))
        {
            assert_ne!(out.read_line(&mut text).unwrap(), 0, "{text}");
        }
        assert!(text.starts_with(framed), "{text}");
        assert!(!text.contains("token_issue"), "{text}");
        interrupt(child);
    }
}

#[test]
fn watch_prints_status_after_a_change() {
    let (daemon, token) = Daemon::initialized();
    for (format, transport) in ["json", "yaml", "table"]
        .into_iter()
        .zip(daemon.transports(&token).iter().cycle())
    {
        let workdir = Workdir::new();
        let (child, mut out) = follow(&workdir, &format!("status app -w -o {format} {transport}"));
        let mut text = String::new();
        let mut read_until = |wanted: &dyn Fn(&str) -> bool| {
            let mut text_now = std::mem::take(&mut text);
            while !wanted(&text_now) {
                assert_ne!(out.read_line(&mut text_now).unwrap(), 0, "{text_now}");
            }
            text_now
        };
        // Reads the whole first status, which is empty.
        let end = match format {
            "json" => "  \"routes\": []\n}\n",
            "yaml" => "routes: []\n",
            _ => "DOMAIN  PATH  DEPLOYMENT  SERVICE  PORT  TLS\n",
        };
        let first = read_until(&|text| text.ends_with(end));
        assert!(
            !first.contains("---") && !first.contains("app.example"),
            "{first}"
        );

        let file = manifests(&workdir, "i", "");
        workdir
            .jaco(&format!("apply {} --detach {transport}", file.display()))
            .ok();
        let second = read_until(&|text| text.contains("app.example") || text.contains("app-web-1"));
        let separator = second.starts_with("---\n");
        assert_eq!(separator, format != "json", "{second}");
        workdir.jaco(&format!("delete app {transport}")).ok();
        read_until(&|text| text.ends_with(end));
        interrupt(child);
    }
}

#[test]
fn closed_pipe_ends_the_command_quietly() {
    let (daemon, token) = Daemon::initialized();
    for transport in daemon.transports(&token) {
        let workdir = Workdir::new();
        for line in [
            "status",
            "audit",
            "token list -o json",
            "cluster status",
            "get routes -o yaml",
        ] {
            let (reader, writer) = std::io::pipe().unwrap();
            drop(reader);
            let output = workdir
                .command(&format!("{line} {transport}"))
                .stdout(writer)
                .output()
                .unwrap();
            assert_eq!(
                (output.status.code(), output.stderr.as_slice()),
                (Some(0), &b""[..]),
                "{line}"
            );
        }
        // A stream notices the closed pipe at its next event.
        let (child, mut out) = follow(&workdir, &format!("audit -f -o json {transport}"));
        out.read_line(&mut String::new()).unwrap();
        drop(out);
        workdir.jaco(&format!("token revoke x {transport}")).ok();
        ends_well(child);
    }
}

#[test]
fn a_revoked_token_ends_its_streams() {
    let (daemon, token) = Daemon::initialized();
    let [_, remote] = daemon.transports(&token);
    let workdir = Workdir::new();
    let (child, mut out) = follow(&workdir, &format!("audit -f -o json {remote}"));
    out.read_line(&mut String::new()).unwrap();
    daemon.jaco("token revoke bootstrap").ok();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    let output = child.wait_with_output().unwrap();
    let report = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(report.starts_with("Error: token_revoked: "), "{report}");
}

#[test]
fn broken_connection_error_names_the_daemon() {
    for at in 0..2 {
        let (mut daemon, token) = Daemon::initialized();
        let transport = &daemon.transports(&token)[at];
        let workdir = Workdir::new();
        let (child, mut out) = follow(&workdir, &format!("audit -f -o json {transport}"));
        out.read_line(&mut String::new()).unwrap();
        daemon.kill();
        let output = child.wait_with_output().unwrap();
        let report = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1));
        let addresses = [
            daemon.socket().display().to_string(),
            daemon.address().to_string(),
        ];
        assert!(report.starts_with("Error: unavailable: "), "{report}");
        assert!(report.contains(&addresses[at]), "{report}");
    }
}

#[test]
fn interrupt_ends_command_reading_stdin() {
    let workdir = Workdir::new();
    workdir.file("jaco.yaml", 0o644, "deployment: app\n");
    let mut child = workdir
        .command("apply jaco.yaml --compose -")
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // Larger than a pipe's buffer: once it is written, the command is reading.
    let input = child.stdin.as_mut().unwrap();
    input.write_all(&[b'#'; 256 << 10]).unwrap();
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let input = child.stdin.take();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    drop(input); // open until here, so only the signal can have ended the command
}

#[test]
fn interrupted_wait_exits_with_130() {
    let (daemon, _) = Daemon::initialized();
    let workdir = Workdir::new();
    let file = manifests(&workdir, "i", "");
    let line = format!(
        "apply {} --socket {}",
        file.display(),
        daemon.socket().display()
    );
    let mut child = workdir.command(&line).stdin(Stdio::null()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    out.read_line(&mut first).unwrap();
    assert_eq!(first, "Applied revision: 1\n");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
}
