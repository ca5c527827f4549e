//! Where the answers go: stdout as a table, JSON or YAML; notes and progress on stderr.

pub(crate) mod table;
pub(crate) mod text;
pub(crate) mod yaml;

use std::{io::Write, str::FromStr};

use serde::Serialize;

use super::failure::{Failure, Local, Stop, one_line};

/// How data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Table,
    /// Indented by two spaces.
    Json,
    /// Block style.
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

/// Something that is printed: serialised for machines, written out for people.
pub(crate) trait View: Serialize {
    /// The text form, with its last line break.
    fn text(&self) -> String;
}

/// The two output streams of a command and how they are to be used.
pub(crate) struct Ui<'a> {
    /// Data.
    pub(crate) out: &'a mut dyn Write,
    /// Everything else.
    pub(crate) err: &'a mut dyn Write,
    /// How data is printed.
    pub(crate) format: Format,
    /// No success lines, notes and warnings.
    pub(crate) quiet: bool,
    /// Columns of the terminal behind `err`, if it is one.
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

    /// Prints the outcome of a change: a success line that `--quiet` drops, or data.
    pub(crate) fn outcome(&mut self, view: &impl View) -> Result<(), Stop> {
        match self.format {
            Format::Table if self.quiet => Ok(()),
            Format::Table | Format::Json | Format::Yaml => self.data(view),
        }
    }

    /// Prints one of many: a line of text, a compact JSON line or a YAML document.
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

    /// Writes to stdout at once, so that a reader of a stream is never behind.
    pub(crate) fn write(&mut self, text: &str) -> Result<(), Stop> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()?;
        Ok(())
    }

    /// Tells something on stderr unless `--quiet`; a stderr that fails cannot be complained about.
    pub(crate) fn note(&mut self, text: &str) {
        if !self.quiet {
            let _ = writeln!(self.err, "{}", one_line(text));
        }
    }

    /// As [`Ui::note`], marked as a warning.
    pub(crate) fn warn(&mut self, text: &str) {
        self.note(&format!("warning: {text}"));
    }
}

/// Indented JSON and a line break.
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
