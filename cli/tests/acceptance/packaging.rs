//! Acceptance checks of completion scripts and manual pages.

use std::fs;

use crate::lab::Workdir;

#[test]
fn every_shell_has_a_completion_script() {
    let workdir = Workdir::new();
    for (shell, word) in [
        ("bash", "complete -F _jaco"),
        ("zsh", "#compdef jaco"),
        ("fish", "complete -c jaco"),
    ] {
        let script = workdir.jaco(&format!("completions {shell}")).ok().out;
        assert!(script.contains(word), "{shell}");
        for command in ["rollback", "registry", "token-file", "password-stdin"] {
            assert!(script.contains(command), "{shell} {command}");
        }
    }
    workdir
        .jaco("completions dos")
        .fails("usage_error", &["dos"]);
}

#[test]
fn every_command_has_a_manual_page() {
    let workdir = Workdir::new();
    assert_eq!(workdir.jaco("man --out share/man1").ok().out, "");
    let page =
        |name: &str| fs::read_to_string(workdir.path(&format!("share/man1/{name}.1"))).unwrap();
    for (name, word) in [
        ("jaco", "ca\\-fingerprint"),
        ("jaco-apply", "dry\\-run"),
        ("jaco-registry-login", "password\\-stdin"),
        ("jaco-token-issue", "allow\\-privileged"),
        ("jaco-get-route", "DOMAIN"),
        ("jacod", "log\\-level"),
    ] {
        assert!(page(name).contains(word), "{name}");
    }
    workdir.file("blocked", 0o644, "");
    workdir
        .jaco("man --out blocked/dir")
        .fails("file_error", &["  path=blocked/dir"]);
}
