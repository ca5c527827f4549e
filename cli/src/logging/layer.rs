//! The tracing layer: filters events and writes them to a sink.

use std::time::SystemTime;

use jaco_proto::config::{LogFilter, LogLevel};
use tracing::{
    Event, Level, Metadata, Subscriber, level_filters::LevelFilter, subscriber::Interest,
};
use tracing_subscriber::{Layer, layer::Context, registry::LookupSpan};

use super::{Process, event::Line, journal::Journal, subsystem::of_library};

/// Writes one formatted line.
pub(super) type WriteLine = Box<dyn Fn(&[u8]) + Send + Sync>;

/// Destination and format of lines.
pub(super) enum Sink {
    Text(WriteLine),
    Json(WriteLine),
    Journal(Journal),
}

impl Sink {
    fn write(&self, line: &Line) {
        match self {
            Self::Text(write) => write(line.text().as_bytes()),
            Self::Json(write) => write(line.json().as_bytes()),
            Self::Journal(journal) => journal.send(line),
        }
    }
}

/// Filters events by the level of their subsystem.
pub(super) struct Filtered {
    process: Process,
    filter: LogFilter,
    /// The highest verbosity of any subsystem.
    max_level: LevelFilter,
    sink: Sink,
}

impl Filtered {
    pub(super) fn new(process: Process, filter: LogFilter, sink: Sink) -> Self {
        let levels = filter.overrides().map(|(_, level)| level);
        let max_level = levels
            .map(limit)
            .fold(limit(filter.level), LevelFilter::max);
        Self {
            process,
            filter,
            max_level,
            sink,
        }
    }

    /// Decides by level and target, before the fields of an event are known.
    fn may_pass(&self, metadata: &Metadata<'_>) -> bool {
        let ours = metadata.target().starts_with("jaco");
        metadata.level() <= &self.max_level && (ours || metadata.level() <= &Level::WARN)
    }
}

fn limit(level: LogLevel) -> LevelFilter {
    match level {
        LogLevel::Debug => LevelFilter::DEBUG,
        LogLevel::Info => LevelFilter::INFO,
        LogLevel::Warn => LevelFilter::WARN,
        LogLevel::Error => LevelFilter::ERROR,
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Filtered {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if self.may_pass(metadata) {
            Interest::always()
        } else {
            Interest::never()
        }
    }

    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        self.may_pass(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.max_level)
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        let mut line = Line::new(SystemTime::now(), level);
        event.record(&mut line);
        if line.subsystem.is_empty() {
            let target = event.metadata().target();
            of_library(target, self.process).clone_into(&mut line.subsystem);
        }
        if level <= limit(self.filter.level_of(&line.subsystem)) {
            self.sink.write(&line);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing_subscriber::{Registry, layer::SubscriberExt};

    use super::*;

    fn logged(filter: &str, events: impl FnOnce()) -> String {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let kept = lines.clone();
        let sink = Sink::Text(Box::new(move |line| kept.lock().unwrap().extend(line)));
        let filter = LogFilter::resolve([Some(filter)], LogLevel::Info);
        let layer = Filtered::new(Process::Daemon, filter, sink);
        let subscriber = Registry::default().with(layer);
        tracing::subscriber::with_default(subscriber, events);
        let bytes = lines.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn levels_are_set_per_subsystem() {
        let text = logged("warn,scheduler=debug,raft=error", || {
            tracing::debug!(subsystem = "scheduler/rollout", "one");
            tracing::info!(subsystem = "dns", "two");
            tracing::warn!(subsystem = "dns", "three");
            tracing::warn!(subsystem = "raft", "four");
            tracing::trace!(subsystem = "scheduler", "five");
        });
        let words: Vec<_> = text
            .lines()
            .filter_map(|line| line.split(' ').next_back())
            .collect();
        assert_eq!(words, ["one", "three"], "{text}");
    }

    #[test]
    fn library_events_pass_from_warn_on() {
        let text = logged("debug", || {
            tracing::info!(target: "h2::codec", "one");
            tracing::warn!(target: "h2::codec", "two");
            tracing::debug!(target: "jaco_net::tls", "three");
        });
        let words: Vec<_> = text
            .lines()
            .filter_map(|line| line.split(' ').next_back())
            .collect();
        assert_eq!(words, ["two", "three"], "{text}");
        assert!(text.contains("[daemon/grpc] two"), "{text}");
    }

    #[test]
    fn fields_follow_the_message() {
        let reason = "no space";
        let text = logged("info", || {
            tracing::info!(subsystem = "ipam", node = %"one", reason, count = 3_u64, ok = true, "allocated");
        });
        assert!(
            text.ends_with("INFO  [ipam] allocated node=one reason=\"no space\" count=3 ok=true\n"),
            "{text}"
        );
    }
}
