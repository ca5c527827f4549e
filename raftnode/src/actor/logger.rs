//! Forwards raft's log lines to `tracing`.

use std::fmt::{self, Write as _};

use slog::{Drain, KV as _, Key, Level, Logger, OwnedKVList, Record, Serializer};

/// Creates a logger for raft that writes to `tracing`.
pub(super) fn tracing_logger() -> Logger {
    Logger::root(Bridge, slog::o!())
}

struct Bridge;

impl Drain for Bridge {
    type Ok = ();
    type Err = slog::Never;

    fn log(&self, record: &Record<'_>, values: &OwnedKVList) -> Result<(), slog::Never> {
        // Elections are routine: raft's "info" is logged as "debug".
        macro_rules! emit {
            ($level:ident) => {
                if tracing::enabled!(tracing::Level::$level) {
                    let text = line(record, values);
                    tracing::event!(tracing::Level::$level, subsystem = "raft", "{text}");
                }
            };
        }
        match record.level() {
            Level::Critical | Level::Error => emit!(ERROR),
            Level::Warning => emit!(WARN),
            Level::Info => emit!(DEBUG),
            Level::Debug | Level::Trace => emit!(TRACE),
        }
        Ok(())
    }
}

fn line(record: &Record<'_>, values: &OwnedKVList) -> String {
    let mut line = Line(record.msg().to_string());
    // Writing to a string cannot fail; a value that fails to format is omitted.
    let _ = record.kv().serialize(record, &mut line);
    let _ = values.serialize(record, &mut line);
    line.0
}

struct Line(String);

impl Serializer for Line {
    fn emit_arguments(&mut self, key: Key, value: &fmt::Arguments<'_>) -> slog::Result {
        Ok(write!(self.0, " {key}={value}")?)
    }
}
