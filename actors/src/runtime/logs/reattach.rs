//! One replica's output across the restarts and successors of its container, without a gap and
//! without a line twice. Pure.
//!
//! An engine ends a followed log when the container stops, sometimes before its last lines, and
//! resumes only by whole seconds. So every read that began on a running container is followed by
//! another one, which begins a little before the newest line known and skips what was delivered:
//! in each stream everything up to a mark, the n-th line with its timestamp.
//!
//! What the engine removed with a container, or stamps earlier than what came before by more
//! than a few seconds, cannot be had.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use prost_types::Timestamp;

use super::lines::{Cutter, Line};
use crate::runtime::engine::{Found, LogStream, Status};

/// Seconds by which a read begins before the newest line known: two streams of one container may
/// be written down in another order than they were stamped.
const OVERLAP: i64 = 5;

/// What the tail of one replica does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// List its containers, for [`Reattach::handle_found`].
    Look,
    /// Read a container's output to its end, frame by frame for [`Reattach::handle_frame`], then
    /// [`Reattach::handle_ended`]. A container that is gone has ended.
    Read {
        /// Engine id.
        container: String,
        /// Unix seconds of the oldest line; 0 for all.
        since: i64,
        /// Stay attached after the newest line.
        follow: bool,
    },
    /// Wait for news of the replica or for a while, then [`Next::Look`].
    Pause,
    /// There is nothing more.
    End,
}

/// Where the tail of one replica is.
#[derive(Clone, Debug)]
pub struct Reattach {
    since: i64,
    follow: bool,
    reading: Option<Reading>,
    /// Containers that have a successor but are listed still.
    left: BTreeSet<String>,
    lines: VecDeque<(LogStream, Line)>,
}

/// The container that is being read.
#[derive(Clone, Debug)]
struct Reading {
    container: String,
    /// Where its first read began, in Unix seconds.
    since: i64,
    channels: BTreeMap<LogStream, Channel>,
    /// It may have written what no read has seen.
    stale: bool,
    /// The last read began while it ran.
    live: bool,
    /// The last read brought a line.
    fruitful: bool,
}

/// One stream of a container.
#[derive(Clone, Debug, Default)]
struct Channel {
    cutter: Cutter,
    mark: Option<Mark>,
    /// How many lines with the mark's timestamp this read has brought, while it has not reached
    /// the mark.
    behind: Option<u64>,
}

/// The last line that was delivered: the `count`th one stamped `ts`.
#[derive(Clone, Copy, Debug)]
struct Mark {
    ts: Option<Timestamp>,
    count: u64,
    /// When its last piece was written.
    end: Option<Timestamp>,
}

impl Reattach {
    /// A tail from `since` on, in Unix seconds, 0 for everything; without `follow` it ends with
    /// what is there now.
    #[must_use]
    pub fn new(since: i64, follow: bool) -> Self {
        Self {
            since,
            follow,
            reading: None,
            left: BTreeSet::new(),
            lines: VecDeque::new(),
        }
    }

    /// The containers of the replica are these, in every state; `wanted` while it has a row here.
    pub fn handle_found(&mut self, found: &[Found], wanted: bool) -> Next {
        self.left.retain(|id| found.iter().any(|f| f.id == *id));
        let current = self.reading.as_ref().map(|reading| &reading.container);
        let is_new = |f: &&Found| Some(&f.id) != current && !self.left.contains(&f.id);
        let successor = found
            .iter()
            .filter(is_new)
            .max_by_key(|f| f.status == Status::Running);
        if let Some(successor) = successor {
            let first = self.reading.is_none();
            self.leave();
            let since = if first { self.since } else { 0 };
            let reading = self
                .reading
                .insert(Reading::new(successor.id.clone(), since));
            return reading.read(successor.status, self.follow);
        }
        let listed = self.reading.as_mut().and_then(|reading| {
            let found = found.iter().find(|f| f.id == reading.container)?;
            Some((reading, found.status))
        });
        match listed {
            // One that runs and yet ends every read at once is not asked without a break.
            Some((reading, Status::Running)) if reading.live && !reading.fruitful => {
                reading.fruitful = true;
                Next::Pause
            }
            Some((reading, status)) if reading.stale || status == Status::Running => {
                reading.read(status, self.follow)
            }
            Some(_) | None => {
                self.rest();
                if self.follow && wanted {
                    Next::Pause
                } else {
                    self.reading = None;
                    Next::End
                }
            }
        }
    }

    /// The engine sent this of the container that is read.
    pub fn handle_frame(&mut self, stream: LogStream, bytes: &[u8]) {
        let Some(reading) = &mut self.reading else {
            return;
        };
        let channel = reading.channels.entry(stream).or_default();
        for line in channel.cutter.feed(bytes) {
            if channel.pass(&line) {
                reading.fruitful = true;
                self.lines.push_back((stream, line));
            }
        }
    }

    /// The read has come to its end.
    pub fn handle_ended(&mut self) -> Next {
        if !self.follow {
            self.leave();
            return Next::End;
        }
        if let Some(reading) = &mut self.reading {
            reading.stale = reading.live;
        }
        Next::Look
    }

    /// The engine told something about a container of the replica.
    pub fn handle_news(&mut self) {
        if let Some(reading) = &mut self.reading {
            reading.stale = true;
        }
    }

    /// A line to deliver.
    pub fn poll_line(&mut self) -> Option<(LogStream, Line)> {
        self.lines.pop_front()
    }

    /// What was begun and not ended is a line, as far as anybody can say.
    fn rest(&mut self) {
        let Some(reading) = &mut self.reading else {
            return;
        };
        for (stream, channel) in &mut reading.channels {
            if let Some(line) = channel.cutter.finish()
                && channel.pass(&line)
            {
                self.lines.push_back((*stream, line));
            }
        }
    }

    fn leave(&mut self) {
        self.rest();
        self.left.extend(self.reading.take().map(|r| r.container));
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
            fruitful: true,
        }
    }

    fn read(&mut self, status: Status, follow: bool) -> Next {
        self.live = status == Status::Running;
        self.stale = false;
        self.fruitful = false;
        Next::Read {
            container: self.container.clone(),
            since: self.resume(),
            follow: follow && self.live,
        }
    }

    /// Prepares for another read, and says since when.
    fn resume(&mut self) -> i64 {
        let marks = self.channels.values().filter_map(|channel| channel.mark);
        let stamps: Option<Vec<i64>> = marks.map(|mark| Some(mark.ts?.seconds)).collect();
        let newest = stamps.and_then(|stamps| stamps.into_iter().max());
        // A line that is not complete is read again from its beginning.
        let open = self.channels.values().filter_map(|c| c.cutter.begun());
        let open = open.map(|ts| ts.map(|ts| ts.seconds)).min();
        for channel in self.channels.values_mut() {
            channel.cutter = Cutter::default();
            channel.behind = channel.mark.map(|_| 0);
        }
        // From the beginning if nothing was delivered, or something without a timestamp.
        let from = open.map_or(newest, |open| newest.min(open));
        from.map_or(self.since, |ts| self.since.max(ts - OVERLAP))
    }
}

impl Channel {
    /// Whether a line is new; then it is the mark.
    fn pass(&mut self, line: &Line) -> bool {
        if let (Some(seen), Some(mark)) = (&mut self.behind, self.mark) {
            if line.ts == mark.ts {
                *seen += 1;
                if *seen >= mark.count {
                    self.behind = None;
                }
                return false;
            }
            // A read may begin amid the pieces of the last line.
            let remains = key(line.ts) <= key(mark.end) && key(mark.ts) < key(mark.end);
            if key(line.ts) < key(mark.ts) || remains {
                return false;
            }
            self.behind = None;
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

/// Timestamps in order; what has none comes first.
fn key(ts: Option<Timestamp>) -> Option<(i64, i32)> {
    ts.map(|ts| (ts.seconds, ts.nanos))
}

#[cfg(test)]
mod tests;
