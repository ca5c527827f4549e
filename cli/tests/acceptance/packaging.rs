//! Acceptance checks of completion scripts and manual pages.

use std::fs;

use crate::lab::Place;

#[test]
fn every_shell_has_a_completion_script() {
    let place = Place::new();
    for (shell, word) in [
        ("bash", "complete -F _jaco"),
        ("zsh", "#compdef jaco"),
        ("fish", "complete -c jaco"),
    ] {
        let script = place.jaco(&format!("completions {shell}")).ok().out;
        assert!(script.contains(word), "{shell}");
        for command in ["rollback", "registry", "token-file", "password-stdin"] {
            assert!(script.contains(command), "{shell} {command}");
        }
    }
    place.jaco("completions dos").fails("usage_error", &["dos"]);
}

#[test]
fn every_command_has_a_manual_page() {
    let place = Place::new();
    assert_eq!(place.jaco("man --out share/man1").ok().out, "");
    let page =
        |name: &str| fs::read_to_string(place.path(&format!("share/man1/{name}.1"))).unwrap();
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
    place.file("blocked", 0o644, "");
    place
        .jaco("man --out blocked/dir")
        .fails("file_error", &["  path=blocked/dir"]);
}
