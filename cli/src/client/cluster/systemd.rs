//! Making the daemon start at boot.

use std::{io, process::Command};

use serde::Serialize;

/// What became of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Systemd {
    Enabled,
    /// This machine has no systemd.
    Unavailable,
    Failed,
    /// Not asked for, or not this machine's daemon.
    Skipped,
}

/// Enables the unit and says what to tell the user; never fails the command around it.
pub(super) fn enable(systemctl: &str) -> (Systemd, Option<String>) {
    let failed = |why: String| {
        let remark =
            format!("{why}; make the daemon start at boot with `sudo systemctl enable jaco`");
        (Systemd::Failed, Some(remark))
    };
    match Command::new(systemctl).args(["enable", "jaco"]).output() {
        Ok(output) if output.status.success() => (
            Systemd::Enabled,
            Some("Enabled jaco to start at boot.".to_owned()),
        ),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.lines().next_back().unwrap_or_default();
            failed(format!(
                "systemctl enable jaco failed ({}): {said}",
                output.status
            ))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let remark = "systemctl was not found, so nothing makes the daemon start at boot";
            (Systemd::Unavailable, Some(remark.to_owned()))
        }
        Err(error) => failed(format!("systemctl cannot be run: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_outcome_is_told_and_none_is_fatal() {
        for (program, expected, word) in [
            ("true", Systemd::Enabled, "Enabled"),
            ("false", Systemd::Failed, "sudo systemctl enable jaco"),
            ("/nonexistent/systemctl", Systemd::Unavailable, "not found"),
        ] {
            let (systemd, remark) = enable(program);
            assert_eq!(systemd, expected);
            assert!(remark.unwrap().contains(word));
        }
    }
}
