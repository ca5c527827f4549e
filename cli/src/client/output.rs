//! Output of commands: data on stdout as a table, JSON or YAML; notes and progress on stderr.

pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod yaml;

use std::{io::Write, str::FromStr};

use serde::Serialize;

use super::failure::{Failure, Local, Stop, one_line};

/// Output format of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Text for people.
    Table,
    /// JSON, indented by two spaces.
    Json,
    /// YAML in block style.
    Yaml,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "table" => Ok(Self::Table),
            "json" => Ok(Self::Json),
            "yaml" => Ok(Self::Yaml),
            _ => Err(format!(
                "unknown output format {text:?}, want table, json or yaml"
            )),
        }
    }
}

/// Printable data, serialized as JSON and YAML or rendered as text.
pub(crate) trait View: Serialize {
    /// The text form, including its last line break.
    fn text(&self) -> String;
}

/// The two output streams of a command and their settings.
pub(crate) struct Ui<'a> {
    /// Stdout, for data.
    pub(crate) out: &'a mut dyn Write,
    /// Stderr, for everything else.
    pub(crate) err: &'a mut dyn Write,
    /// Format of data.
    pub(crate) format: Format,
    /// Suppresses success lines, notes and warnings.
    pub(crate) quiet: bool,
    /// Width of the terminal that `err` is connected to, if any.
    pub(crate) err_columns: Option<usize>,
    /// Whether `out` is a terminal.
    pub(crate) out_is_terminal: bool,
}

impl Ui<'_> {
    /// Prints data.
    pub(crate) fn data(&mut self, view: &impl View) -> Result<(), Stop> {
        let text = match self.format {
            Format::Table => view.text(),
            Format::Json => json(view)?,
            Format::Yaml => yaml::to_string(view).map_err(|error| unprintable(&error))?,
        };
        self.write(&text)
    }

    /// Prints the outcome of a change: a success line, which `--quiet` suppresses, or data.
    pub(crate) fn outcome(&mut self, view: &impl View) -> Result<(), Stop> {
        match self.format {
            Format::Table if self.quiet => Ok(()),
            Format::Table | Format::Json | Format::Yaml => self.data(view),
        }
    }

    /// Prints one item of a stream: a line of text, a compact JSON line or a YAML document.
    pub(crate) fn item(&mut self, view: &impl View) -> Result<(), Stop> {
        let text = match self.format {
            Format::Table => view.text(),
            Format::Json => compact_json(view)?,
            Format::Yaml => {
                let document = yaml::to_string(view).map_err(|error| unprintable(&error))?;
                format!("---\n{document}")
            }
        };
        self.write(&text)
    }

    /// Writes to stdout and flushes, so that a reader of a stream sees every item immediately.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), Stop> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()?;
        Ok(())
    }

    /// Prints a note on stderr, unless `--quiet`; errors of stderr are ignored.
    pub(crate) fn note(&mut self, text: &str) {
        if !self.quiet {
            let _ = writeln!(self.err, "{}", one_line(text));
        }
    }

    /// As [`Ui::note`], with the prefix `warning: `.
    pub(crate) fn warn(&mut self, text: &str) {
        self.note(&format!("warning: {text}"));
    }
}

/// Indented JSON with a final line break.
pub(crate) fn json(value: &impl Serialize) -> Result<String, Stop> {
    let mut text = serde_json::to_string_pretty(value).map_err(|error| unprintable(&error))?;
    text.push('\n');
    Ok(text)
}

fn compact_json(value: &impl Serialize) -> Result<String, Stop> {
    let mut text = serde_json::to_string(value).map_err(|error| unprintable(&error))?;
    text.push('\n');
    Ok(text)
}

fn unprintable(error: &serde_json::Error) -> Stop {
    Failure::new(
        Local::Internal,
        format!("the answer cannot be printed: {error}"),
    )
    .into()
}
