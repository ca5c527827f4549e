//! Tests of the built binary: arguments, exit status, both output streams.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::{
    fs,
    io::{Read, Write},
    os::unix::{
        fs::{OpenOptionsExt, PermissionsExt},
        net::UnixListener,
    },
    path::Path,
    process::{Command, Output, Stdio},
};

/// Runs `jaco` in an empty environment and an empty directory.
fn jaco(dir: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jaco"))
        .args(line.split(' ').filter(|word| !word.is_empty()))
        .current_dir(dir)
        .env_clear()
        .env("HOME", dir)
        .env("JACO_SOCKET", dir.join("absent.sock"))
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn help_and_version_go_to_stdout() {
    let dir = tempfile::tempdir().unwrap();
    for (line, start) in [
        ("", "Run docker-compose files"),
        ("-q", "Run docker-compose files"),
        ("--help", "Run docker-compose files"),
        ("apply --help", "Deploy a jaco.yaml"),
        ("cluster", "Initialize a cluster"),
        ("--version", "dev\n"),
        ("--version status", "dev\n"),
        ("version", "dev\n"),
        ("version -o json", "{\n  \"version\": \"dev\"\n}\n"),
        ("--format yaml version", "version: dev\n"),
    ] {
        let output = jaco(dir.path(), line);
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert!(
            text(&output.stdout).starts_with(start),
            "{line}: {}",
            text(&output.stdout)
        );
        assert_eq!(text(&output.stderr), "", "{line}");
    }
}

#[test]
fn failure_is_one_report_and_status_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("bad.pem"), "hello").unwrap();
    fs::write(path("jaco.yaml"), "deployment: app\nreplcas: 2\n").unwrap();
    fs::create_dir_all(path(".config/jaco")).unwrap();
    let socket = path("absent.sock").display().to_string();
    let print = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    let with_print = format!("status --server 127.0.0.1:1 --token t --ca-fingerprint {print}");
    for (line, code, word) in [
        ("nosuch", "usage_error", "nosuch"),
        ("apply --project-directory .config", "usage_error", "JACO"),
        ("status -o xml", "usage_error", "output format"),
        ("logs app", "usage_error", "expected <deployment>/<service>"),
        (
            "logs app/",
            "usage_error",
            "expected <deployment>/<service>",
        ),
        (
            "logs /web",
            "usage_error",
            "expected <deployment>/<service>",
        ),
        ("audit --type nope", "usage_error", "unknown audit type"),
        (
            "audit --type apply,NODE_JOIN,audit_event_type_delete",
            "no_transport",
            &socket,
        ),
        ("status", "no_transport", &socket),
        ("status", "no_transport", "is not available"),
        (
            "status --server h:7000",
            "token_required",
            "--token or JACO_TOKEN",
        ),
        (
            "status --server h:7000 --token t --ca-cert gone.pem",
            "ca_required",
            "ca cert not found at gone.pem",
        ),
        (
            "status --server h:7000 --token t --ca-cert bad.pem",
            "ca_invalid",
            "did not parse",
        ),
        (&with_print, "unavailable", "127.0.0.1:1"),
        ("status --socket nobody.sock", "unavailable", "nobody.sock"),
        ("status --context prod", "context_invalid", "prod"),
        (
            "validate",
            "usage_error",
            "at least one of --jaco or --compose",
        ),
        ("validate --jaco gone.yaml", "file_error", "gone.yaml"),
        ("validate --jaco jaco.yaml", "validation_failed", "replcas"),
        ("apply gone.yaml", "file_error", "gone.yaml"),
        ("apply jaco.yaml", "validation_failed", "replcas"),
        ("apply", "validation_failed", "replcas"),
    ] {
        let output = jaco(dir.path(), line);
        let report = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert_eq!(text(&output.stdout), "", "{line}");
        assert!(
            report.starts_with(&format!("Error: {code}: ")),
            "{line}: {report}"
        );
        assert!(report.contains(word), "{line}: {report}");
        assert_eq!(report.matches("Error:").count(), 1, "{line}: {report}");
        assert!(
            report.lines().skip(1).all(|line| line.starts_with("  ")),
            "{line}: {report}"
        );
    }
}

#[test]
fn world_readable_context_file_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join(".config/jaco/clusters.yaml");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(
        &file,
        "contexts: [{name: a, server_addrs: [\"h:1\"], token: t}]\n",
    )
    .unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    for line in ["status --context a", "status"] {
        let output = jaco(dir.path(), line);
        let report = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(
            report.starts_with("Error: context_invalid: ") && report.contains("0644"),
            "{report}"
        );
    }
}

#[test]
fn valid_files_produce_no_output() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("jaco.yaml"), "deployment: app\n").unwrap();
    let compose = "services:\n  web: {image: \"nginx:${TAG}\", env_file: absent.env}\n";
    fs::write(dir.path().join("compose.yml"), compose).unwrap();
    let output = jaco(
        dir.path(),
        "validate --jaco jaco.yaml --compose compose.yml",
    );
    assert_eq!(
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr)
        ),
        (Some(0), "", "")
    );

    let output = jaco(dir.path(), "validate --jaco jaco.yaml -o json");
    assert_eq!(
        text(&output.stdout),
        "{\n  \"valid\": true,\n  \"files\": [\n    \"jaco.yaml\"\n  ],\n  \"warnings\": []\n}\n"
    );
}

#[test]
fn compose_file_is_read_from_stdin() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("jaco.yaml"), "deployment: app\n").unwrap();
    // Stdin is empty, but the files are valid enough to choose a transport.
    let output = jaco(dir.path(), "apply jaco.yaml --compose -");
    assert!(
        text(&output.stderr).starts_with("Error: no_transport: "),
        "{}",
        text(&output.stderr)
    );
    let output = jaco(dir.path(), "apply jaco.yaml");
    assert!(text(&output.stderr).contains("no compose file found next to"));
}

#[test]
fn a_closed_pipe_is_a_quiet_success() {
    let dir = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = Command::new(env!("CARGO_BIN_EXE_jaco"))
        .arg("version")
        .current_dir(dir.path())
        .stdout(writer)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(0), ""));
}

#[test]
fn first_valid_source_sets_the_log_level() {
    let dir = tempfile::tempdir().unwrap();
    for (line, variable, debug) in [
        ("status --socket no.sock", "", false),
        ("status --socket no.sock -v", "", true),
        (
            "status --socket no.sock -v --log-level error",
            "debug",
            false,
        ),
        ("status --socket no.sock -v --log-level loud", "error", true),
        ("status --socket no.sock --log-level DEBUG", "error", true),
        ("status --socket no.sock", "debug,x=error", true),
        ("status --socket no.sock", "error,cliclient=debug", true),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_jaco"))
            .args(line.split(' '))
            .current_dir(dir.path())
            .env_clear()
            .env("JACO_LOG", variable)
            .output()
            .unwrap();
        let logged = text(&output.stderr).contains("[cliclient] dialling");
        assert_eq!(logged, debug, "{line} {variable}: {}", text(&output.stderr));
    }
}

#[test]
fn interrupt_is_success_only_for_streams() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("s");
    let listener = UnixListener::bind(&socket).unwrap();
    for (line, status) in [
        ("logs a/b -f", 0),
        ("audit -f", 0),
        ("status -w", 0),
        ("actors -w", 0),
        ("status", 130),
    ] {
        let child = Command::new(env!("CARGO_BIN_EXE_jaco"))
            .args(line.split(' '))
            .arg("--socket")
            .arg(&socket)
            .env_clear()
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The server accepts the connection and never answers.
        let (mut connection, _) = listener.accept().unwrap();
        connection.read_exact(&mut [0; 24]).unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{line}");
        assert_eq!(text(&output.stderr), "", "{line}");
    }
}

#[test]
fn interrupt_ends_local_work() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("archive");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let config = dir.path().join("jacod.yaml");
    let text_of_it = "listen_addr: 127.0.0.1:7000\ncluster_addr: 127.0.0.1:7001\n";
    fs::write(&config, text_of_it).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_jaco"))
        .args(["restore", "--name", "two", "--data-dir"])
        .arg(dir.path().join("data"))
        .arg("--config")
        .arg(&config)
        .arg("--input")
        .arg(&pipe)
        .env_clear()
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Writes a gzip header whose file name never ends, once the command has opened the pipe.
    let mut archive = loop {
        let opened = fs::File::options()
            .write(true)
            .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
            .open(&pipe);
        match opened {
            Ok(file) => break file,
            Err(_) if child.try_wait().unwrap().is_none() => {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            Err(error) => panic!("{error}: {:?}", child.wait_with_output()),
        }
    };
    archive.write_all(b"\x1f\x8b\x08\x08\0\0\0\0\0\0").unwrap();
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    while archive.write_all(b"a").is_ok() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    assert!(!dir.path().join("data").exists());
}
