//! Enabling the daemon's unit after an init or a join.

use std::{io, process::Command};

use serde::Serialize;

use super::{
    connection::Client,
    failure::Stop,
    output::{Format, Ui},
};

/// Outcome of the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Systemd {
    Enabled,
    /// The machine has no systemd.
    Unavailable,
    Failed,
    /// Not requested, or the daemon is not on this machine.
    Skipped,
}

/// Enables the unit if `wanted` and the daemon is on this machine; returns the outcome and a
/// remark.
pub(crate) fn enable_at_boot(wanted: bool, client: &Client) -> (Systemd, Option<String>) {
    if wanted && client.is_local() {
        enable("systemctl")
    } else {
        (Systemd::Skipped, None)
    }
}

/// Reports the outcome: a line after success, otherwise a note or a warning.
pub(crate) fn report(
    systemd: Systemd,
    remark: Option<String>,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    match (systemd, remark, ui.format) {
        (Systemd::Enabled, Some(line), Format::Table) if !ui.quiet => {
            ui.write(&format!("{line}\n"))
        }
        (Systemd::Enabled | Systemd::Skipped, _, _) => Ok(()),
        (Systemd::Unavailable, remark, _) => {
            remark.iter().for_each(|text| ui.note(text));
            Ok(())
        }
        (Systemd::Failed, remark, _) => {
            remark.iter().for_each(|text| ui.warn(text));
            Ok(())
        }
    }
}

/// Enables the unit and returns the remark for the user; a failure is never fatal to the command.
fn enable(systemctl: &str) -> (Systemd, Option<String>) {
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
            let stderr = String::from_utf8_lossy(&output.stderr);
            let stderr = stderr.lines().next_back().unwrap_or_default();
            failed(format!(
                "systemctl enable jaco failed ({}): {stderr}",
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
    fn every_outcome_has_a_remark() {
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
