//! Acceptance checks of tokens and registry credentials.

use std::{
    fs::{File, OpenOptions},
    io::{Read, Write},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt},
    process::Stdio,
};

use rustix::{
    process::{Pid, Signal, kill_process},
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{LocalModes, tcgetattr},
};

use crate::lab::{Daemon, Outcome, Workdir, manifests};

#[test]
fn check_06_socket_calls_have_identity_local() {
    let (daemon, _) = Daemon::initialized();
    let workdir = Workdir::new();
    let socket = format!("--socket {}", daemon.socket().display());
    for image in ["i:1", "i:2"] {
        let file = manifests(&workdir, image, "");
        workdir
            .jaco(&format!("apply {} --detach {socket}", file.display()))
            .ok();
    }
    let back = workdir.jaco(&format!("rollback app {socket}")).ok();
    assert_eq!(back.out, "Rolled back to revision: 1\n");
    let tokens = workdir.jaco(&format!("token list {socket}")).ok();
    assert!(tokens.out.contains("bootstrap"), "{}", tokens.out);
    let trail = workdir
        .jaco(&format!("audit --type rollback -o json {socket}"))
        .json();
    assert_eq!(trail.as_array().unwrap().len(), 1);
    assert_eq!(trail[0]["identity"], "local");
}

#[test]
fn tokens_are_issued_replaced_and_revoked() {
    let (daemon, token) = Daemon::initialized();
    let workdir = Workdir::new();
    let [_, remote] = daemon.transports(&token);
    let as_ci = |secret: &str| {
        let pin = format!(
            "--server {} --ca-cert {}",
            daemon.address(),
            daemon.ca().display()
        );
        workdir.jaco(&format!("status {pin} --token {secret}"))
    };
    let issue = |flags: &str| {
        let issued = workdir
            .jaco(&format!("token issue --name ci {flags} -o json {remote}"))
            .json();
        assert_eq!(issued["allows_privileged"], flags.contains("privileged"));
        issued["token"].as_str().unwrap().to_owned()
    };
    let first = issue("-q");
    as_ci(&first).ok();
    let second = issue("--allow-privileged");
    as_ci(&first).fails("token_invalid", &[]);
    as_ci(&second).ok();

    let revoked = workdir.jaco(&format!("token revoke ci {remote}")).ok();
    assert_eq!(revoked.out, "Revoked token for ci\n");
    as_ci(&second).fails("token_revoked", &["identity=ci"]);
    workdir.jaco(&format!("token revoke nobody {remote}")).ok();
    let tokens = workdir.jaco(&format!("token list -o json {remote}")).json();
    let ci = &tokens["tokens"][1];
    assert_eq!(
        (&ci["identity"], ci["revoked_at"].is_string()),
        (&"ci".into(), true)
    );
    assert!(tokens["tokens"][0].get("revoked_at").is_none());

    let third = issue("");
    as_ci(&third).ok();
    let words = ["field=identity"];
    workdir
        .jaco(&format!("token issue --name local {remote}"))
        .fails("validation_failed", &words);
}

#[test]
fn check_12_server_canonicalizes_the_registry() {
    let (daemon, token) = Daemon::initialized();
    for transport in daemon.transports(&token) {
        let workdir = Workdir::new();
        let login = format!("registry login ghcr.io/Own/ -u u {transport}");
        let answer = workdir
            .jaco_reading(&format!("{login} --password-stdin"), b"p w \r\n")
            .ok();
        assert_eq!(answer.out, "Stored credential for ghcr.io/own (user u)\n");
        let list = workdir
            .jaco(&format!("registry list -o json {transport}"))
            .json();
        assert_eq!(list["credentials"][0]["registry"], "ghcr.io/own");
        assert_eq!(list["credentials"].as_array().unwrap().len(), 1);

        // Without the flag it works as well, with a warning.
        let answer = workdir.jaco_reading(&format!("{login} -o json"), b"other\n");
        assert_eq!(answer.json()["registry"], "ghcr.io/own");
        assert!(answer.err.starts_with("warning: "), "{answer:?}");
        assert!(answer.err.contains("--password-stdin"), "{answer:?}");
        workdir
            .jaco_reading(&format!("{login} -q"), b"other\n")
            .ok();

        let out = format!("registry logout https://GHCR.io/own {transport}");
        assert_eq!(
            workdir.jaco(&out).ok().out,
            "Removed credential for https://GHCR.io/own\n"
        );
        workdir.jaco(&out).ok();
        let list = workdir
            .jaco(&format!("registry list -o json {transport}"))
            .json();
        assert_eq!(list["credentials"].as_array().unwrap().len(), 0);
    }
}

#[test]
fn check_13_blank_password_is_never_sent() {
    let (daemon, _) = Daemon::initialized();
    let workdir = Workdir::new();
    let socket = daemon.socket().display().to_string();
    let login = format!("registry login ghcr.io -u u --password-stdin --socket {socket}");
    for input in [&b"\n"[..], b" \t \r\nsecret\n", b""] {
        let answer = workdir.jaco_reading(&login, input);
        answer.fails("usage_error", &["empty password"]);
    }
    let endless = vec![b'x'; (1 << 20) + 1];
    let answer = workdir.jaco_reading(&login, &endless);
    answer.fails("usage_error", &["1048576"]);
    assert!(!daemon.log().contains("RegistryCredentials/"));
    let missing = workdir.jaco_reading("registry login ghcr.io --password-stdin", b"p\n");
    missing.fails("usage_error", &["--username"]);
}

/// A pseudoterminal: the user's end and the program's end.
fn terminal() -> (File, OwnedFd) {
    let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&user).unwrap();
    unlockpt(&user).unwrap();
    let name = ptsname(&user, Vec::new()).unwrap();
    let program = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(rustix::fs::OFlags::NOCTTY.bits() as i32)
        .open(name.to_str().unwrap())
        .unwrap();
    (user.into(), program.into())
}

fn echoes(terminal: &OwnedFd) -> bool {
    let modes = tcgetattr(terminal).unwrap().local_modes;
    modes.contains(LocalModes::ECHO)
}

#[test]
fn terminal_prompts_for_password_without_echo() {
    let (daemon, _) = Daemon::initialized();
    let workdir = Workdir::new();
    let line = format!(
        "registry login ghcr.io -u u -q --socket {}",
        daemon.socket().display()
    );
    for typed in [Some("open sesame\n"), Some("\n"), None] {
        let (mut user, program) = terminal();
        let mut command = workdir.command(&line);
        let mut child = command
            .stdin(Stdio::from(program.try_clone().unwrap()))
            .spawn()
            .unwrap();
        drop(command); // it also holds the terminal open
        let mut prompt = [0; "Password: ".len()];
        child
            .stderr
            .as_mut()
            .unwrap()
            .read_exact(&mut prompt)
            .unwrap();
        assert_eq!(&prompt, b"Password: ");
        assert!(!echoes(&program));
        match typed {
            Some(line) => user.write_all(line.as_bytes()).unwrap(),
            None => kill_process(Pid::from_child(&child), Signal::INT).unwrap(),
        }
        let answer = Outcome::new(&line, child.wait_with_output().unwrap());
        assert!(echoes(&program), "the echo was not restored");
        match typed {
            Some("\n") => {
                assert_eq!(answer.status, Some(1));
                assert_eq!(answer.err, "\nError: usage_error: empty password\n");
            }
            Some(_) => assert_eq!((answer.status, answer.err.as_str()), (Some(0), "\n")),
            None => assert_eq!((answer.status, answer.err.as_str()), (Some(130), "")),
        }
    }
}
