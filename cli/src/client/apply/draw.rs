//! Progress on a terminal: one line per service, redrawn in place.

use std::{io, time::Duration};

use super::progress::ServiceProgress;
use crate::client::{
    failure::one_line,
    output::{Ui, text::short_duration},
};

const BAR: usize = 20;

/// Draws lines over those of the last call.
#[derive(Default)]
pub(super) struct Painter {
    drawn: usize,
}

impl Painter {
    /// Replaces the lines of the last call.
    pub(super) fn draw(&mut self, lines: &[String], ui: &mut Ui<'_>) {
        let _ = self.write(lines, ui); // progress output may fail
    }

    fn write(&mut self, lines: &[String], ui: &mut Ui<'_>) -> io::Result<()> {
        let mut text = String::new();
        if self.drawn > 0 {
            text += &format!("\x1b[{}A", self.drawn);
        }
        for line in lines {
            text += &format!("\r\x1b[2K{line}\n");
        }
        // Clears lines that are left over from removed services.
        text += "\x1b[J";
        self.drawn = lines.len();
        ui.err.write_all(text.as_bytes())?;
        ui.err.flush()
    }
}

/// One progress bar per service, cut to the width of the terminal.
pub(super) fn bars(services: &[ServiceProgress], elapsed: Duration, columns: usize) -> Vec<String> {
    let name = services
        .iter()
        .map(|line| line.service.chars().count())
        .max()
        .unwrap_or(0);
    let elapsed = short_duration(elapsed);
    services
        .iter()
        .map(|line| {
            let full = (BAR * line.ready).checked_div(line.total).unwrap_or(BAR);
            let text = format!(
                "{:<name$}  {}{}  {}/{}  {}  {elapsed}",
                one_line(&line.service),
                "█".repeat(full),
                "░".repeat(BAR - full),
                line.ready,
                line.total,
                one_line(&line.step),
            );
            // A wrapped line could not be redrawn in place.
            text.chars().take(columns.saturating_sub(1)).collect()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{fake, output::Format};

    fn line(service: &str, ready: usize, total: usize, step: &str) -> ServiceProgress {
        ServiceProgress {
            service: service.to_owned(),
            ready,
            total,
            step: step.to_owned(),
        }
    }

    #[test]
    fn bars_show_ready_of_total() {
        let services = [
            line("db", 1, 1, "running"),
            line("web", 1, 4, "pulling"),
            line("off", 0, 0, "running"),
        ];
        assert_eq!(
            bars(&services, Duration::from_secs(65), 80),
            [
                "db   ████████████████████  1/1  running  1m05s",
                "web  █████░░░░░░░░░░░░░░░  1/4  pulling  1m05s",
                "off  ████████████████████  0/0  running  1m05s",
            ]
        );
        assert_eq!(bars(&services, Duration::ZERO, 11)[0], "db   █████");
    }

    #[tokio::test]
    async fn lines_are_redrawn_in_place() {
        let (_, output) = fake::capture(Format::Table, async |ui| {
            let mut painter = Painter::default();
            painter.draw(&["a".to_owned(), "b".to_owned()], ui);
            painter.draw(&["c".to_owned()], ui);
            Ok(())
        })
        .await;
        assert_eq!(
            output.err,
            "\r\x1b[2Ka\n\r\x1b[2Kb\n\x1b[J\x1b[2A\r\x1b[2Kc\n\x1b[J"
        );
    }
}
