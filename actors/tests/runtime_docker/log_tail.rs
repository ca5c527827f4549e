//! Log tails across restarts and replacements of a container.

use std::{fs, path::Path};

use jaco_actors::runtime::logs::{Query, Tail};
use tempfile::TempDir;

use super::lab::Lab;

/// Lines that a container writes between two pauses.
const BURST: usize = 10;
/// Number before that of the first line: all numbers have six digits.
const BASE: usize = 100_000;
/// Fills a line to 210 bytes. With time and stream, Podman's record of a line then has 256 bytes.
///
/// The library by which Podman follows a log (nxadm/tail 1.4.8) meets a half-written record as a
/// line and then skips to the end of the file, so lines are lost. A record that crosses a page of
/// the file may be read half-written, and so may each 43rd one of those written at once. Records of
/// 256 bytes cross no page, and short bursts stay below 43 lines.
const FILLER: usize = 198;
/// Lines by which a container of Podman is ahead of the reader when it pauses. Podman's monitor
/// reads 8 KiB at once and records a line that this cuts in two parts of other sizes; it must
/// therefore never find more than 38 lines, however late it is scheduled.
const AHEAD: usize = 2 * BURST;

/// A service that numbers its lines across all its containers, and records each in `/out/all` when
/// it is written. It exits between two lines.
fn numbered(lab: &Lab, folder: &TempDir) -> String {
    let filler = ".".repeat(FILLER);
    let wait = if lab.is_podman() {
        format!(
            "while [ -z $stop ] && [ $n -gt $(($(busybox cat /out/read)+{})) ]; do \
               busybox usleep 10000; \
             done",
            AHEAD - BURST
        )
    } else {
        "busybox usleep 1000".to_owned()
    };
    let script = format!(
        "trap 'stop=1' TERM; n=$(busybox wc -l </out/all); n=$((n+{BASE})); \
         while [ -z $stop ]; do \
           i=0; while [ $i -lt {BURST} ]; do \
             i=$((i+1)); n=$((n+1)); \
             echo line $n {filler} >>/out/all; echo line $n {filler}; \
           done; {wait}; \
         done"
    );
    fs::write(folder.path().join("all"), "").expect("a file");
    set_read(folder, BASE);
    let volume = format!("    volumes: [\"{}:/out\"]\n", folder.path().display());
    lab.service(&script, &volume)
}

/// Tells the containers which line was read last.
fn set_read(folder: &TempDir, number: usize) {
    let new = folder.path().join("read.new");
    fs::write(&new, number.to_string()).expect("a file");
    fs::rename(new, folder.path().join("read")).expect("a file");
}

/// Reader of the lines of a [`numbered`] service.
struct Reader<'a> {
    lab: &'a Lab,
    folder: &'a TempDir,
    tail: Tail,
    lines: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(lab: &'a Lab, folder: &'a TempDir) -> Self {
        Self {
            lab,
            folder,
            tail: follow(lab),
            lines: Vec::new(),
        }
    }

    /// Reads the next line and returns its number. Cancellation loses no line.
    async fn next(&mut self) -> Option<usize> {
        let line = self.lab.soon(self.tail.next()).await?.line;
        let number = number(&line);
        self.lines.push(line);
        if number.is_multiple_of(BURST) {
            set_read(self.folder, number);
        }
        Some(number)
    }

    /// Reads lines until the number of one satisfies `last`.
    async fn take(&mut self, last: impl Fn(usize) -> bool) {
        while !last(self.next().await.expect("the tail goes on")) {}
    }

    /// Reads some more lines than are written now.
    async fn take_more(&mut self) {
        let ahead = BASE + written(self.folder).len() + 20 * BURST;
        self.take(|number| number > ahead).await;
    }

    /// Reads the rest of a tail that ends, and checks that no line is missing or repeated.
    async fn finish(mut self) {
        while self.next().await.is_some() {}
        let outcome = self.lab.soon(self.tail.finish()).await;
        outcome.expect("every source was read");
        assert_same(&self.lines, &written(self.folder));
    }
}

fn written(folder: &TempDir) -> Vec<String> {
    let all = fs::read_to_string(folder.path().join("all")).expect("what was written");
    all.lines().map(str::to_owned).collect()
}

fn follow(lab: &Lab) -> Tail {
    lab.runtime.logs(&Query {
        deployment: lab.deployment.clone(),
        follow: true,
        ..Default::default()
    })
}

/// Reads lines until one satisfies `last`.
async fn take(lab: &Lab, tail: &mut Tail, into: &mut Vec<String>, last: impl Fn(&str) -> bool) {
    loop {
        let line = lab.soon(tail.next()).await.expect("the tail goes on").line;
        let done = last(&line);
        into.push(line);
        if done {
            return;
        }
    }
}

/// Lines around one, to show what is out of place.
fn around(lines: &[String], at: usize) -> &[String] {
    &lines[at.saturating_sub(1)..(at + 10).min(lines.len())]
}

fn assert_same(delivered: &[String], written: &[String]) {
    let first = delivered
        .iter()
        .zip(written)
        .position(|(line, expected)| line != expected);
    assert_eq!(
        (delivered.len(), first),
        (written.len(), None),
        "lines, and the first that differs: {:?} for {:?}",
        first.map(|at| around(delivered, at)),
        first.map(|at| around(written, at))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followed_log_spans_replaced_containers() {
    let lab = Lab::new("follow").await;
    let folder = tempfile::tempdir().expect("a folder");
    let service = numbered(&lab, &folder);
    lab.apply(&service, 1).await;
    let mut reader = Reader::new(&lab, &folder);
    for revision in 2..7 {
        reader.take_more().await;
        let before = lab.containers();
        lab.apply(&service, revision).await;
        let row = lab.row().raft_index;
        while lab.containers() == before || lab.row().raft_index != row {
            reader.take(|number| number.is_multiple_of(50)).await;
        }
    }
    lab.remove().await;
    reader.finish().await;
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn followed_log_spans_container_restarts() {
    let lab = Lab::new("restart").await;
    let folder = tempfile::tempdir().expect("a folder");
    lab.apply(&numbered(&lab, &folder), 1).await;
    let mut reader = Reader::new(&lab, &folder);
    let mut restarts = 0;
    while restarts < 3 {
        reader.take(|_| true).await;
        let Ok([container]) = <[String; 1]>::try_from(lab.containers()) else {
            continue; // The replica actor is replacing the container.
        };
        let mut restart = std::pin::pin!(lab.restart(&container));
        let outcome = loop {
            tokio::select! {
                outcome = &mut restart => break outcome,
                read = reader.next() => assert!(read.is_some(), "the tail goes on"),
            }
        };
        // The replica actor may find the container stopped before the engine starts it again.
        restarts += usize::from(outcome.is_ok());
        reader.take_more().await;
    }
    lab.remove().await;
    reader.finish().await;
    lab.close().await;
}

fn number(line: &str) -> usize {
    let rest = line.strip_prefix("line ");
    let number = rest.and_then(|rest| rest.split(' ').next()?.parse().ok());
    number.unwrap_or_else(|| panic!("not a whole line: {line:?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_gets_every_line() {
    let lab = Lab::new("slow").await;
    let script = "n=0; while [ $n -lt 20000 ]; do n=$((n+1)); echo line $n; done; \
                  trap 'exit 0' TERM; while true; do busybox sleep 0.1; done";
    lab.apply(&lab.service(script, ""), 1).await;
    let (mut tail, mut lines) = (follow(&lab), Vec::new());
    take(&lab, &mut tail, &mut lines, |_| true).await;
    let container = lab.running().await.container_id;
    lab.until("everything is written", || {
        lab.docker(&["logs", "--tail", "1", &container]) == "line 20000"
    })
    .await;
    take(&lab, &mut tail, &mut lines, |line| number(line) == 20_000).await;
    let expected: Vec<_> = (1..=20_000).map(|n| format!("line {n}")).collect();
    assert_same(&lines, &expected);
    drop(tail);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_lines_are_joined_and_cut_at_mebibytes() {
    const MEBIBYTE: usize = 1 << 20;
    let lab = Lab::new("long").await;
    // Beyond 16 KiB, the engine sends the rest of a line as a separate message.
    let script = "busybox head -c 2500000 /dev/zero | busybox tr '\\\\0' x; echo; \
                  busybox head -c 40000 /dev/zero | busybox tr '\\\\0' y; echo; echo end; \
                  trap 'exit 0' TERM; while true; do busybox sleep 0.1; done";
    lab.apply(&lab.service(script, ""), 1).await;
    let (mut tail, mut lines) = (follow(&lab), Vec::new());
    take(&lab, &mut tail, &mut lines, |line| line == "end").await;
    let shapes: Vec<_> = lines
        .iter()
        .map(|line| (line.len(), line.chars().next(), line.chars().next_back()))
        .collect();
    let (x, y) = (Some('x'), Some('y'));
    let expected = [
        (MEBIBYTE, x, x),
        (MEBIBYTE, x, x),
        (2_500_000 - 2 * MEBIBYTE, x, x),
        (40_000, y, y),
        (3, Some('e'), Some('d')),
    ];
    assert_eq!(shapes, expected);
    drop(tail);
    lab.close().await;
}

/// Removes a timestamp inside a line: Podman stamps each part of a line that it read in several,
/// and the output of a terminal has no frames that would separate the parts.
fn without_stamp(mut line: String) -> String {
    const SECONDS: usize = "2026-11-21T22:13:55".len();
    let is_stamp = |part: &str| {
        let digits = |c: char| if c.is_ascii_digit() { '0' } else { c };
        part.chars().map(digits).eq("0000-00-00T00:00:00".chars())
    };
    let starts = 0..line.len().saturating_sub(SECONDS);
    let start = starts.into_iter().find(|&at| {
        let part = line.get(at..at + SECONDS);
        part.is_some_and(is_stamp)
    });
    if let Some(start) = start
        && let Some(length) = line[start..].find(' ')
    {
        line.replace_range(start..=start + length, "");
    }
    line
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn terminal_output_is_read_as_stdout() {
    let lab = Lab::new("tty").await;
    let script = "echo to-out; echo to-err >&2; echo; echo end; exec busybox sleep 600";
    // A compose file cannot request a terminal, so the container is started without the runtime,
    // which adopts it.
    let container = lab.run_replica(&["-t"], script);
    lab.apply(&lab.service(script, ""), 1).await;
    let (mut tail, mut lines) = (follow(&lab), Vec::new());
    while lines
        .last()
        .is_none_or(|(_, line): &(String, String)| line != "end\r")
    {
        let line = lab.soon(tail.next()).await.expect("a line");
        assert!(line.ts.is_some());
        lines.push((line.stream, without_stamp(line.line)));
    }
    let expected = ["to-out\r", "to-err\r", "\r", "end\r"];
    assert_eq!(
        lines,
        expected.map(|line| ("stdout".to_owned(), line.to_owned()))
    );
    assert_eq!(lab.containers(), [container]);
    drop(tail);
    lab.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn since_skips_older_lines() {
    let lab = Lab::new("since").await;
    let folder = tempfile::tempdir().expect("a folder");
    let script = "echo old; while [ ! -e /out/go ]; do busybox usleep 10000; done; echo new; \
                  trap 'exit 0' TERM; while true; do busybox sleep 0.1; done";
    let volume = format!("    volumes: [\"{}:/out\"]\n", folder.path().display());
    lab.apply(&lab.service(script, &volume), 1).await;
    let (mut tail, mut lines) = (follow(&lab), Vec::new());
    let old = lab
        .soon(tail.next())
        .await
        .expect("a line")
        .ts
        .expect("a time");
    // The engine's resolution is one second.
    go_at(folder.path(), old.seconds + 2).await;
    take(&lab, &mut tail, &mut lines, |line| line == "new").await;
    let mut recent = lab.runtime.logs(&Query {
        deployment: lab.deployment.clone(),
        since: old.seconds + 1,
        ..Default::default()
    });
    assert_eq!(lab.soon(recent.next()).await.expect("a line").line, "new");
    assert_eq!(lab.soon(recent.next()).await, None);
    drop(tail);
    lab.close().await;
}

/// Lets the container continue at a given Unix second.
async fn go_at(folder: &Path, seconds: i64) {
    let now = || {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        i64::try_from(now.expect("a clock").as_secs()).expect("a time")
    };
    while now() < seconds {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    fs::write(folder.join("go"), "").expect("a file");
}
