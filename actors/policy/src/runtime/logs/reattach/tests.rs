//! [`Reattach`] against a model of an engine with the defects of real ones.

use proptest::prelude::*;

use super::*;

const BILLION: i64 = 1_000_000_000;

/// One message of a container as its engine stores it.
#[derive(Clone, Debug)]
struct Message {
    stream: LogStream,
    /// Nanoseconds.
    at: i64,
    text: String,
    ends: bool,
}

impl Message {
    fn frame(&self) -> Vec<u8> {
        let ts = Timestamp {
            seconds: self.at / BILLION,
            nanos: (self.at % BILLION) as i32,
        };
        let end = if self.ends { "\n" } else { "" };
        format!("{ts} {}{end}", self.text).into_bytes()
    }
}

#[derive(Debug, Default)]
struct Container {
    id: String,
    running: bool,
    log: Vec<Message>,
}

/// Open read and its position in the log.
#[derive(Debug)]
struct Cursor {
    container: String,
    since: i64,
    follow: bool,
    at: usize,
}

/// Model of an engine with the containers of one replica, and a tail on it.
struct World {
    clock: i64,
    made: usize,
    lines: u64,
    container: Option<Container>,
    tail: Reattach,
    /// Action in progress; [`Action::Deliver`] never is.
    next: Action,
    cursor: Option<Cursor>,
    news: bool,
    written: Vec<(LogStream, String)>,
    delivered: Vec<(LogStream, String)>,
}

/// Step of a simulation.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Writes whole lines to stdout or stderr, with this gap between them.
    Write {
        lines: u8,
        error: bool,
        gap: i64,
    },
    /// Writes a line in pieces.
    Long {
        pieces: u8,
        error: bool,
        gap: i64,
    },
    Stop,
    Start,
    Recreate,
    /// The tail executes this many steps.
    Tail(u8),
    /// The engine ends a followed read early if the container has stopped.
    Cut,
}

impl World {
    fn new() -> Self {
        Self {
            clock: 1_000 * BILLION,
            made: 0,
            lines: 0,
            container: None,
            tail: begin(0, true),
            next: Action::List,
            cursor: None,
            news: false,
            written: Vec::new(),
            delivered: Vec::new(),
        }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Write { lines, error, gap } => {
                for _ in 0..lines {
                    self.write(1, error, gap);
                }
            }
            Step::Long { pieces, error, gap } => {
                self.write(pieces, error, gap);
                self.clock += 1;
            }
            Step::Stop => self.run(false),
            Step::Start => self.run(true),
            Step::Recreate => self.recreate(),
            Step::Tail(times) => (0..times).for_each(|_| self.tail()),
            Step::Cut => {
                let stopped = self.container.as_ref().is_some_and(|c| !c.running);
                if stopped && self.cursor.as_ref().is_some_and(|cursor| cursor.follow) {
                    self.ended();
                    self.drive();
                }
            }
        }
    }

    fn write(&mut self, pieces: u8, error: bool, gap: i64) {
        let Some(container) = self.container.as_mut().filter(|c| c.running) else {
            return;
        };
        let stream = [LogStream::Stdout, LogStream::Stderr][usize::from(error)];
        self.lines += 1;
        let mut whole = String::new();
        for piece in 0..pieces {
            self.clock += gap;
            let text = format!("{}.{piece};", self.lines);
            whole.push_str(&text);
            container.log.push(Message {
                stream,
                at: self.clock,
                text,
                ends: piece + 1 == pieces,
            });
        }
        self.written.push((stream, whole));
    }

    fn run(&mut self, running: bool) {
        if let Some(container) = &mut self.container {
            self.news |= container.running != running;
            container.running = running;
        }
    }

    /// Replaces the container once the tail has read its output; the runtime waits for that.
    fn recreate(&mut self) {
        self.run(false);
        while self.container.is_some() && (self.news || self.next != Action::Pause) {
            self.tail();
        }
        self.made += 1;
        self.news = true;
        self.container = Some(Container {
            id: format!("c{}", self.made),
            running: true,
            log: Vec::new(),
        });
    }

    fn tail(&mut self) {
        match self.next.clone() {
            Action::List => {
                let found: Vec<_> = self.container.iter().map(found).collect();
                self.tail.handle_found(&found, true);
            }
            Action::Read {
                container,
                since,
                follow,
            } => self.read(container, since, follow),
            Action::Pause => {
                if std::mem::take(&mut self.news) {
                    self.tail.handle_event();
                } else {
                    self.tail.handle_pause_ended();
                }
            }
            other @ (Action::End | Action::Deliver(..)) => panic!("unexpected action {other:?}"),
        }
        self.drive();
    }

    fn drive(&mut self) {
        while let Some(action) = self.tail.poll_action() {
            match action {
                Action::Deliver(stream, line) => {
                    let text = String::from_utf8(line.text).unwrap();
                    self.delivered.push((stream, text));
                }
                other @ (Action::List | Action::Read { .. } | Action::Pause | Action::End) => {
                    self.next = other;
                }
            }
        }
    }

    /// Returns one frame of a read, or its end.
    fn read(&mut self, container: String, since: i64, follow: bool) {
        let cursor = self.cursor.get_or_insert(Cursor {
            container,
            since,
            follow,
            at: 0,
        });
        let here = self.container.as_ref();
        let Some(container) = here.filter(|c| c.id == cursor.container) else {
            return self.ended();
        };
        let rest = container.log.iter().skip(cursor.at);
        let rest: Vec<_> = rest.cloned().collect();
        match rest.first() {
            Some(message) => {
                cursor.at += 1;
                if message.at >= cursor.since * BILLION {
                    self.tail.handle_frame(message.stream, &message.frame());
                }
            }
            None if cursor.follow && container.running => {} // the newest line was read
            None => self.ended(),
        }
    }

    fn ended(&mut self) {
        self.cursor = None;
        self.tail.handle_ended();
    }

    /// Stops the container and lets the tail read the remaining output.
    fn run_until_idle(&mut self) {
        self.run(false);
        for _ in 0..100_000 {
            if self.next == Action::Pause && !self.news {
                return;
            }
            self.tail();
        }
        panic!("the tail never rests: {:?}", self.next);
    }
}

fn found(container: &Container) -> Found {
    Found {
        id: container.id.clone(),
        replica_id: None,
        raft_index: None,
        status: if container.running {
            Status::Running
        } else {
            Status::Exited
        },
    }
}

fn of(lines: &[(LogStream, String)], stream: LogStream) -> Vec<&str> {
    let of_it = lines.iter().filter(|(of, _)| *of == stream);
    of_it.map(|(_, line)| line.as_str()).collect()
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    // Equal timestamps, close ones, and gaps larger than the overlap.
    let gap = prop_oneof![
        Just(0),
        1..1_000_i64,
        1_000_000..BILLION,
        Just(3 * BILLION),
        Just(7 * BILLION)
    ];
    // The pieces of a line never share a timestamp, neither among each other nor with the next
    // line.
    let apart = prop_oneof![1..1_000_i64, Just(BILLION / 3), Just(7 * BILLION)];
    let step = prop_oneof![
        4 => (1..20_u8, any::<bool>(), gap).prop_map(|(lines, error, gap)| Step::Write { lines, error, gap }),
        2 => (2..4_u8, any::<bool>(), apart).prop_map(|(pieces, error, gap)| Step::Long { pieces, error, gap }),
        1 => Just(Step::Stop),
        1 => Just(Step::Start),
        1 => Just(Step::Recreate),
        6 => (1..30_u8).prop_map(Step::Tail),
        2 => Just(Step::Cut),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_line_is_delivered_once_in_order(steps in steps()) {
        let mut world = World::new();
        world.step(Step::Recreate);
        for step in steps {
            world.step(step);
        }
        world.run_until_idle();
        for stream in [LogStream::Stdout, LogStream::Stderr] {
            prop_assert_eq!(of(&world.delivered, stream), of(&world.written, stream));
        }
    }
}

fn read(container: &str, since: i64, follow: bool) -> Action {
    Action::Read {
        container: container.to_owned(),
        since,
        follow,
    }
}

fn listed(id: &str, status: Status) -> Found {
    Found {
        id: id.to_owned(),
        replica_id: None,
        raft_index: None,
        status,
    }
}

/// A tail whose first listing is in progress.
fn begin(since: i64, follow: bool) -> Reattach {
    let mut tail = Reattach::new(since, follow);
    assert_eq!(tail.poll_action(), Some(Action::List));
    tail
}

/// The lines delivered by the actions so far, and the one action after them, if any.
fn polled(tail: &mut Reattach) -> (Vec<String>, Option<Action>) {
    let mut lines = Vec::new();
    while let Some(action) = tail.poll_action() {
        match action {
            Action::Deliver(_, line) => lines.push(String::from_utf8(line.text).unwrap()),
            other @ (Action::List | Action::Read { .. } | Action::Pause | Action::End) => {
                assert_eq!(tail.poll_action(), None, "after {other:?}");
                return (lines, Some(other));
            }
        }
    }
    (lines, None)
}

/// Handles a listing and returns the action that follows, without lines before it.
fn after_found(tail: &mut Reattach, found: &[Found], wanted: bool) -> Action {
    tail.handle_found(found, wanted);
    next(tail)
}

/// Handles the end of a read and returns the action that follows, without lines before it.
fn after_ended(tail: &mut Reattach) -> Action {
    tail.handle_ended();
    next(tail)
}

fn next(tail: &mut Reattach) -> Action {
    let (lines, action) = polled(tail);
    assert!(lines.is_empty(), "{lines:?}");
    action.expect("an action")
}

#[test]
fn tail_without_follow_reads_once() {
    let mut tail = begin(7, false);
    assert_eq!(after_found(&mut tail, &[], true), Action::End);
    let mut tail = begin(7, false);
    let found = [listed("a", Status::Exited), listed("b", Status::Running)];
    assert_eq!(after_found(&mut tail, &found, true), read("b", 7, false));
    tail.handle_frame(LogStream::Stdout, b"no newline");
    tail.handle_ended();
    assert_eq!(
        polled(&mut tail),
        (vec!["no newline".to_owned()], Some(Action::End))
    );
}

#[test]
fn stopped_container_is_read_once_more() {
    let mut tail = begin(0, true);
    let running = [listed("a", Status::Running)];
    let exited = [listed("a", Status::Exited)];
    assert_eq!(after_found(&mut tail, &running, true), read("a", 0, true));
    assert_eq!(after_ended(&mut tail), Action::List);
    assert_eq!(after_found(&mut tail, &exited, true), read("a", 0, false));
    assert_eq!(after_ended(&mut tail), Action::List);
    assert_eq!(after_found(&mut tail, &exited, true), Action::Pause);
    tail.handle_pause_ended();
    assert_eq!(next(&mut tail), Action::List);
    assert_eq!(after_found(&mut tail, &exited, true), Action::Pause);
    // The container ran again in between without an event.
    tail.handle_event();
    assert_eq!(next(&mut tail), Action::List);
    assert_eq!(after_found(&mut tail, &exited, true), read("a", 0, false));
}

#[test]
fn immediately_ending_reads_are_delayed() {
    let mut tail = begin(0, true);
    let running = [listed("a", Status::Running)];
    assert_eq!(after_found(&mut tail, &running, true), read("a", 0, true));
    assert_eq!(after_ended(&mut tail), Action::List);
    assert_eq!(after_found(&mut tail, &running, true), Action::Pause);
    tail.handle_pause_ended();
    assert_eq!(next(&mut tail), Action::List);
    assert_eq!(after_found(&mut tail, &running, true), read("a", 0, true));
}

#[test]
fn replacement_container_is_read_from_its_beginning() {
    let mut tail = begin(7, true);
    let both = [listed("a", Status::Exited), listed("b", Status::Running)];
    assert_eq!(
        after_found(&mut tail, &both[..1], true),
        read("a", 7, false)
    );
    tail.handle_frame(LogStream::Stdout, b"open");
    assert_eq!(after_ended(&mut tail), Action::List);
    tail.handle_found(&both, true);
    let replaced = (vec!["open".to_owned()], Some(read("b", 0, true)));
    assert_eq!(polled(&mut tail), replaced);
    assert_eq!(after_ended(&mut tail), Action::List);
    assert_eq!(after_found(&mut tail, &both, true), Action::Pause);
}

#[test]
fn tail_of_removed_row_ends_after_reading() {
    let mut tail = begin(0, true);
    let exited = [listed("a", Status::Exited)];
    after_found(&mut tail, &[listed("a", Status::Running)], true);
    after_ended(&mut tail);
    assert_eq!(after_found(&mut tail, &exited, false), read("a", 0, false));
    after_ended(&mut tail);
    assert_eq!(after_found(&mut tail, &exited, false), Action::End);
    let mut tail = begin(0, true);
    assert_eq!(after_found(&mut tail, &[], false), Action::End);
}

#[test]
fn reread_overlaps_newest_line_within_requested_range() {
    let at = |seconds: i64| {
        let frame = Message {
            stream: LogStream::Stdout,
            at: seconds * BILLION,
            text: "x".to_owned(),
            ends: true,
        };
        frame.frame()
    };
    for (since, newest, again) in [(0, 1_000, 995), (900, 1_000, 995), (998, 1_000, 998)] {
        let mut tail = begin(since, true);
        let running = [listed("a", Status::Running)];
        assert_eq!(
            after_found(&mut tail, &running, true),
            read("a", since, true)
        );
        tail.handle_frame(LogStream::Stdout, &at(newest));
        assert_eq!(polled(&mut tail).1, None);
        after_ended(&mut tail);
        assert_eq!(
            after_found(&mut tail, &running, true),
            read("a", again, true)
        );
    }
}

#[test]
fn lines_without_timestamps_are_deduplicated_by_count() {
    let mut tail = begin(0, true);
    let running = [listed("a", Status::Running)];
    after_found(&mut tail, &running, true);
    tail.handle_frame(LogStream::Stdout, b"same\nsame\n");
    assert_eq!(polled(&mut tail).0, ["same", "same"]);
    after_ended(&mut tail);
    assert_eq!(after_found(&mut tail, &running, true), read("a", 0, true));
    tail.handle_frame(LogStream::Stdout, b"same\nsame\nsame\n");
    assert_eq!(polled(&mut tail).0, ["same"]);
}
