//! One log line: its fields and output formats.

use std::{
    fmt::{self, Write},
    time::{SystemTime, UNIX_EPOCH},
};

use prost_types::Timestamp;
use serde_json::{Map, Value};
use tracing::{
    Level,
    field::{Field, Visit},
};

/// The content of one event.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) time: SystemTime,
    pub(super) level: Level,
    /// Part of the program that logged the event.
    pub(super) subsystem: String,
    pub(super) message: String,
    /// All other fields, in the order of the event.
    pub(super) fields: Vec<(&'static str, Value)>,
}

impl Line {
    /// An event without message and fields.
    pub(super) fn new(time: SystemTime, level: Level) -> Self {
        Self {
            time,
            level,
            subsystem: String::new(),
            message: String::new(),
            fields: Vec::new(),
        }
    }

    /// The text format.
    pub(super) fn text(&self) -> String {
        let (time, level) = (time(self.time, 3), self.level);
        let mut text = format!("{time} {level:<5} [{}] {}", self.subsystem, self.message);
        for (key, value) in &self.fields {
            let _ = match value {
                Value::String(word) if is_word(word) => write!(text, " {key}={word}"), // cannot fail
                other => write!(text, " {key}={other}"),
            };
        }
        // A value must not be able to forge a line.
        let mut text: String = text
            .chars()
            .map(|c| if c.is_control() { ' ' } else { c })
            .collect();
        text.push('\n');
        text
    }

    /// The JSON format: one object.
    pub(super) fn json(&self) -> String {
        let mut object = Map::new();
        for (key, value) in &self.fields {
            object.insert((*key).to_owned(), value.clone());
        }
        object.insert("subsystem".to_owned(), self.subsystem.clone().into());
        object.insert("time".to_owned(), time(self.time, 9).into());
        object.insert("level".to_owned(), self.level.to_string().into());
        object.insert("msg".to_owned(), self.message.clone().into());
        format!("{}\n", Value::Object(object))
    }
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "subsystem" => value.clone_into(&mut self.subsystem),
            "message" => value.clone_into(&mut self.message),
            name => self.fields.push((name, value.into())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.fields.push((field.name(), value.into()));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.fields.push((field.name(), value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.fields.push((field.name(), value.into()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        self.fields.push((field.name(), value.into()));
    }
}

/// Whether a value can be written without quotes.
fn is_word(text: &str) -> bool {
    !text.is_empty()
        && text
            .chars()
            .all(|c| !c.is_whitespace() && !c.is_control() && c != '"' && c != '=')
}

/// Formats a time as RFC 3339 in UTC with `digits` fractional digits of a second.
fn time(at: SystemTime, digits: usize) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = i64::try_from(since.as_secs()).unwrap_or(i64::MAX);
    let whole = Timestamp { seconds, nanos: 0 }.to_string();
    let nanos = format!("{:09}", since.subsec_nanos());
    format!(
        "{}.{}Z",
        whole.trim_end_matches('Z'),
        &nanos[..digits.min(9)]
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn line() -> Line {
        Line {
            time: UNIX_EPOCH + Duration::new(1_795_174_813, 1_020_003),
            level: Level::WARN,
            subsystem: "scheduler/rollout".to_owned(),
            message: "step held".to_owned(),
            fields: vec![
                ("service", "web".into()),
                ("reason", "two words\nError: x".into()),
                ("step", 3.into()),
            ],
        }
    }

    #[test]
    fn text_format_is_always_one_line() {
        assert_eq!(
            line().text(),
            "2026-11-20T11:40:13.001Z WARN  [scheduler/rollout] step held service=web reason=\"two words\\nError: x\" step=3\n"
        );
        let message = Line {
            subsystem: "raft".to_owned(),
            message: "a\nb".to_owned(),
            ..Line::new(UNIX_EPOCH, Level::INFO)
        };
        assert_eq!(
            message.text(),
            "1970-01-01T00:00:00.000Z INFO  [raft] a b\n"
        );
    }

    #[test]
    fn json_format_has_nanoseconds_and_all_fields() {
        let object: Value = serde_json::from_str(&line().json()).unwrap();
        assert_eq!(
            object,
            serde_json::json!({
                "time": "2026-11-20T11:40:13.001020003Z",
                "level": "WARN",
                "msg": "step held",
                "subsystem": "scheduler/rollout",
                "service": "web",
                "reason": "two words\nError: x",
                "step": 3,
            })
        );
    }
}
