//! Follows one replica's output across restarts and replacements of its container, without gaps or
//! repeated lines. Pure.
//!
//! An engine ends a followed log when the container stops, sometimes before its last lines, and can
//! resume only at whole seconds. Every read that began on a running container is therefore followed
//! by another one. That read begins a few seconds before the newest known line and skips delivered
//! lines: in each stream everything up to a mark, the n-th line with its timestamp.
//!
//! Output that the engine removed with a container cannot be recovered, nor can a line whose
//! timestamp is earlier than its predecessors' by more than a few seconds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jaco_engine::{Found, LogStream, Status};
use prost_types::Timestamp;

use super::lines::{Line, LineSplitter};

/// Seconds by which a read begins before the newest known line: the engine may write the lines of a
/// container's two streams in another order than that of their timestamps.
const OVERLAP: i64 = 5;

/// Action for the driver to run.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Deliver a line.
    Deliver(LogStream, Line),
    /// List the containers, then call [`Reattach::handle_found`].
    List,
    /// Read a container's output to its end: call [`Reattach::handle_frame`] for each frame, then
    /// [`Reattach::handle_ended`]. A container that does not exist counts as ended.
    Read {
        /// Engine id.
        container: String,
        /// Unix seconds of the oldest line; 0 for all.
        since: i64,
        /// Stay attached after the newest line.
        follow: bool,
    },
    /// Wait for an event of the replica or a short time, then call [`Reattach::handle_event`] or
    /// [`Reattach::handle_pause_ended`].
    Pause,
    /// The tail is complete; no action follows.
    End,
}

/// State of one replica's tail.
#[derive(Clone, Debug)]
pub struct Reattach {
    since: i64,
    follow: bool,
    reading: Option<Reading>,
    /// Replaced containers that are still listed.
    replaced: BTreeSet<String>,
    paused: bool,
    actions: VecDeque<Action>,
}

/// Container being read.
#[derive(Clone, Debug)]
struct Reading {
    container: String,
    /// Start of its first read, in Unix seconds.
    since: i64,
    channels: BTreeMap<LogStream, Channel>,
    /// It may have written output that no read has returned.
    stale: bool,
    /// The last read began while it was running.
    live: bool,
    /// The last read returned a line.
    returned_lines: bool,
}

/// State of one stream of a container.
#[derive(Clone, Debug, Default)]
struct Channel {
    cutter: LineSplitter,
    mark: Option<Mark>,
    /// While this read is before the mark: number of lines with the mark's timestamp so far.
    lines_at_mark: Option<u64>,
}

/// Position of the last delivered line: the `count`-th one with timestamp `ts`.
#[derive(Clone, Copy, Debug)]
struct Mark {
    ts: Option<Timestamp>,
    count: u64,
    /// Timestamp of its last piece.
    end: Option<Timestamp>,
}

impl Reattach {
    /// Creates a tail that starts at `since` in Unix seconds, 0 for all output; without `follow` it
    /// ends with the output present now.
    #[must_use]
    pub fn new(since: i64, follow: bool) -> Self {
        Self {
            since,
            follow,
            reading: None,
            replaced: BTreeSet::new(),
            paused: false,
            actions: VecDeque::from([Action::List]),
        }
    }

    /// Handles a listing of the replica's containers in any state; `wanted` while the replica has a
    /// row here.
    pub fn handle_found(&mut self, found: &[Found], wanted: bool) {
        self.replaced.retain(|id| found.iter().any(|f| f.id == *id));
        let current = self.reading.as_ref().map(|reading| &reading.container);
        let is_new = |f: &&Found| Some(&f.id) != current && !self.replaced.contains(&f.id);
        let successor = found
            .iter()
            .filter(is_new)
            .max_by_key(|f| f.status == Status::Running);
        if let Some(successor) = successor {
            let first = self.reading.is_none();
            self.finish_container();
            let since = if first { self.since } else { 0 };
            let reading = self
                .reading
                .insert(Reading::new(successor.id.clone(), since));
            let read = reading.read(successor.status, self.follow);
            return self.actions.push_back(read);
        }
        let listed = self.reading.as_mut().and_then(|reading| {
            let found = found.iter().find(|f| f.id == reading.container)?;
            Some((reading, found.status))
        });
        match listed {
            // A container that is running but ends every read at once: pause instead of reading in
            // a loop.
            Some((reading, Status::Running)) if reading.live && !reading.returned_lines => {
                reading.returned_lines = true;
                self.pause();
            }
            Some((reading, status)) if reading.stale || status == Status::Running => {
                let read = reading.read(status, self.follow);
                self.actions.push_back(read);
            }
            Some(_) | None => {
                self.flush_open_lines();
                if self.follow && wanted {
                    self.pause();
                } else {
                    self.reading = None;
                    self.actions.push_back(Action::End);
                }
            }
        }
    }

    /// Handles a frame from the container being read.
    pub fn handle_frame(&mut self, stream: LogStream, bytes: &[u8]) {
        let Some(reading) = &mut self.reading else {
            return;
        };
        let channel = reading.channels.entry(stream).or_default();
        for line in channel.cutter.feed(bytes) {
            if channel.advance_mark(&line) {
                reading.returned_lines = true;
                self.actions.push_back(Action::Deliver(stream, line));
            }
        }
    }

    /// Handles the end of a read.
    pub fn handle_ended(&mut self) {
        if !self.follow {
            self.finish_container();
            return self.actions.push_back(Action::End);
        }
        if let Some(reading) = &mut self.reading {
            reading.stale = reading.live;
        }
        self.actions.push_back(Action::List);
    }

    /// Handles an engine event about a container of the replica; it ends a pause.
    pub fn handle_event(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.stale = true;
        }
        self.handle_pause_ended();
    }

    /// Handles the end of a pause without an event; has no effect outside a pause.
    pub fn handle_pause_ended(&mut self) {
        if std::mem::take(&mut self.paused) {
            self.actions.push_back(Action::List);
        }
    }

    /// Returns the next action.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    fn pause(&mut self) {
        self.paused = true;
        self.actions.push_back(Action::Pause);
    }

    /// Delivers incomplete lines: nothing shows that they will be continued.
    fn flush_open_lines(&mut self) {
        let Some(reading) = &mut self.reading else {
            return;
        };
        for (stream, channel) in &mut reading.channels {
            if let Some(line) = channel.cutter.finish()
                && channel.advance_mark(&line)
            {
                self.actions.push_back(Action::Deliver(*stream, line));
            }
        }
    }

    fn finish_container(&mut self) {
        self.flush_open_lines();
        self.replaced
            .extend(self.reading.take().map(|r| r.container));
    }
}

impl Reading {
    fn new(container: String, since: i64) -> Self {
        Self {
            container,
            since,
            channels: BTreeMap::new(),
            stale: true,
            live: false,
            returned_lines: true,
        }
    }

    fn read(&mut self, status: Status, follow: bool) -> Action {
        self.live = status == Status::Running;
        self.stale = false;
        self.returned_lines = false;
        Action::Read {
            container: self.container.clone(),
            since: self.resume(),
            follow: follow && self.live,
        }
    }

    /// Resets the streams for another read and returns its start.
    fn resume(&mut self) -> i64 {
        let marks = self.channels.values().filter_map(|channel| channel.mark);
        let stamps: Option<Vec<i64>> = marks.map(|mark| Some(mark.ts?.seconds)).collect();
        let newest = stamps.and_then(|stamps| stamps.into_iter().max());
        // An incomplete line is read again from its beginning.
        let open = self
            .channels
            .values()
            .filter_map(|c| c.cutter.open_line_start());
        let open = open.map(|ts| ts.map(|ts| ts.seconds)).min();
        for channel in self.channels.values_mut() {
            channel.cutter = LineSplitter::default();
            channel.lines_at_mark = channel.mark.map(|_| 0);
        }
        // Start from the beginning if nothing, or a line without a timestamp, was delivered.
        let from = open.map_or(newest, |open| newest.min(open));
        from.map_or(self.since, |ts| self.since.max(ts - OVERLAP))
    }
}

impl Channel {
    /// Whether a line is new; a new line becomes the mark.
    fn advance_mark(&mut self, line: &Line) -> bool {
        if let (Some(seen), Some(mark)) = (&mut self.lines_at_mark, self.mark) {
            if line.ts == mark.ts {
                *seen += 1;
                if *seen >= mark.count {
                    self.lines_at_mark = None;
                }
                return false;
            }
            // A read may begin between the pieces of the last line.
            let remains = key(line.ts) <= key(mark.end) && key(mark.ts) < key(mark.end);
            if key(line.ts) < key(mark.ts) || remains {
                return false;
            }
            self.lines_at_mark = None;
        }
        let earlier = self.mark.filter(|mark| mark.ts == line.ts);
        self.mark = Some(Mark {
            ts: line.ts,
            count: earlier.map_or(0, |mark| mark.count) + 1,
            end: line.end,
        });
        true
    }
}

/// Sort key of a timestamp; a missing one sorts first.
fn key(ts: Option<Timestamp>) -> Option<(i64, i32)> {
    ts.map(|ts| (ts.seconds, ts.nanos))
}

#[cfg(test)]
mod tests;
