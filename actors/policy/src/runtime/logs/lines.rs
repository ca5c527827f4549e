//! Splits the engine's frames of one stream into lines. Pure.
//!
//! A frame is one message of the engine's log driver, prefixed with its timestamp. A long line
//! arrives in several messages, each with its own timestamp; only the first timestamp belongs to
//! the line.

use prost_types::Timestamp;

/// Longest line in bytes; longer ones are continued in the next line.
pub const MAX_LINE: usize = 1 << 20;

/// One line without its newline.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Timestamp of its first piece, if the engine sent one.
    pub ts: Option<Timestamp>,
    /// Timestamp of its last piece.
    pub end: Option<Timestamp>,
    /// The bytes as the container wrote them.
    pub text: Vec<u8>,
}

/// Splits the frames of one stream into lines.
#[derive(Clone, Debug, Default)]
pub struct LineSplitter {
    ts: Option<Timestamp>,
    /// Timestamp of the newest piece.
    newest: Option<Timestamp>,
    text: Vec<u8>,
    /// A line is incomplete, even if it is still empty.
    open: bool,
}

impl LineSplitter {
    /// Consumes one frame and returns the lines it completes.
    pub fn feed(&mut self, frame: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        let mut at_start = true;
        for piece in frame.split_inclusive(|byte| *byte == b'\n') {
            let (body, ended) = match piece.strip_suffix(b"\n") {
                Some(body) => (body, true),
                None => (piece, false),
            };
            let body = if self.open && !at_start {
                body
            } else {
                let (ts, rest) = split_timestamp(body);
                if !self.open {
                    self.ts = ts;
                }
                self.newest = ts;
                rest
            };
            at_start = false;
            self.open = true;
            self.append(body, &mut lines);
            if ended {
                lines.push(self.take());
                self.open = false;
            }
        }
        lines
    }

    /// Timestamp of the incomplete line; the outer `None` means that there is no incomplete line.
    #[must_use]
    pub fn open_line_start(&self) -> Option<Option<Timestamp>> {
        self.open.then_some(self.ts)
    }

    /// Returns the incomplete line, if any, at the end of the stream; an empty one is dropped.
    pub fn finish(&mut self) -> Option<Line> {
        let open = std::mem::take(&mut self.open);
        (open && !self.text.is_empty()).then(|| self.take())
    }

    fn append(&mut self, mut body: &[u8], lines: &mut Vec<Line>) {
        while self.text.len() + body.len() > MAX_LINE {
            let (now, later) = body.split_at(MAX_LINE - self.text.len());
            self.text.extend_from_slice(now);
            let ts = self.ts;
            lines.push(self.take());
            self.ts = ts;
            body = later;
        }
        self.text.extend_from_slice(body);
    }

    fn take(&mut self) -> Line {
        Line {
            ts: self.ts.take(),
            end: self.newest,
            text: std::mem::take(&mut self.text),
        }
    }
}

/// Splits off a leading timestamp and the space after it, if there is one.
fn split_timestamp(body: &[u8]) -> (Option<Timestamp>, &[u8]) {
    let Some(space) = body.iter().position(|byte| *byte == b' ') else {
        return (None, body);
    };
    let stamp = std::str::from_utf8(&body[..space])
        .ok()
        .filter(|text| looks_like_rfc3339(text))
        .and_then(|text| text.parse::<Timestamp>().ok());
    match stamp {
        Some(ts) => (Some(ts), &body[space + 1..]),
        None => (None, body),
    }
}

/// The engine always writes date, time, fraction and zone.
fn looks_like_rfc3339(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 20
        && bytes[4] == b'-'
        && bytes[7] == b'-'
        && bytes[10] == b'T'
        && bytes[13] == b':'
        && bytes[16] == b':'
        && bytes[..4].iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TS: &str = "2026-01-02T03:04:05.000000006Z";

    fn texts(lines: &[Line]) -> Vec<String> {
        lines
            .iter()
            .map(|line| String::from_utf8_lossy(&line.text).into_owned())
            .collect()
    }

    #[test]
    fn timestamp_and_following_space_are_removed() {
        let lines = LineSplitter::default().feed(format!("{TS}  two spaces\r\n").as_bytes());
        assert_eq!(texts(&lines), [" two spaces\r"]);
        let ts = lines[0].ts.unwrap();
        assert_eq!((ts.seconds, ts.nanos), (1_767_323_045, 6));
    }

    #[test]
    fn text_without_timestamp_is_unchanged() {
        for text in [
            "no stamp",
            "2026 is near",
            "2026-01-02 x",
            "x",
            "\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9} x",
        ] {
            let lines = LineSplitter::default().feed(format!("{text}\n").as_bytes());
            assert_eq!((lines[0].ts, texts(&lines)), (None, vec![text.to_owned()]));
        }
    }

    #[test]
    fn empty_lines_are_kept() {
        let frame = format!("{TS} \n{TS} a\n\n");
        assert_eq!(
            texts(&LineSplitter::default().feed(frame.as_bytes())),
            ["", "a", ""]
        );
    }

    #[test]
    fn line_may_span_several_frames() {
        let mut cutter = LineSplitter::default();
        assert!(cutter.feed(format!("{TS} begin").as_bytes()).is_empty());
        assert!(cutter.feed(format!("{TS} middle").as_bytes()).is_empty());
        let lines = cutter.feed(format!("{TS} end\n").as_bytes());
        assert_eq!(texts(&lines), ["beginmiddleend"]);
        assert_eq!(cutter.finish(), None);
    }

    #[test]
    fn partial_last_line_is_flushed() {
        let mut cutter = LineSplitter::default();
        cutter.feed(format!("{TS} half").as_bytes());
        let line = cutter.finish().unwrap();
        assert_eq!(texts(&[line]), ["half"]);
        assert_eq!(cutter.finish(), None);
    }

    #[test]
    fn overlong_line_is_split_with_its_timestamp() {
        let mut cutter = LineSplitter::default();
        let mut frame = format!("{TS} ").into_bytes();
        frame.extend(std::iter::repeat_n(b'x', MAX_LINE + 3));
        frame.push(b'\n');
        let lines = cutter.feed(&frame);
        let lengths: Vec<_> = lines.iter().map(|line| line.text.len()).collect();
        assert_eq!(lengths, [MAX_LINE, 3]);
        assert!(lines.iter().all(|line| line.ts.is_some()));
    }

    proptest! {
        #[test]
        fn every_line_comes_out_once_in_any_framing(
            lines in proptest::collection::vec("[a-z ]{0,20}", 0..20),
            cuts in proptest::collection::vec(1usize..8, 0..40),
        ) {
            let mut cutter = LineSplitter::default();
            let mut out = Vec::new();
            let mut cuts = cuts.into_iter();
            for line in &lines {
                // The engine splits a message anywhere and timestamps each part.
                let mut rest = format!("{line}\n");
                while !rest.is_empty() {
                    let at = cuts.next().unwrap_or(rest.len()).min(rest.len());
                    let part: String = rest.drain(..at).collect();
                    out.extend(cutter.feed(format!("{TS} {part}").as_bytes()));
                }
            }
            prop_assert_eq!(texts(&out), lines);
            prop_assert!(out.iter().all(|line| line.ts.is_some()));
        }

        #[test]
        fn no_byte_is_lost_in_bounded_lines(frames in proptest::collection::vec(
            proptest::collection::vec(any::<u8>(), 0..40), 0..20,
        )) {
            let mut cutter = LineSplitter::default();
            let mut out = Vec::new();
            for frame in &frames {
                out.extend(cutter.feed(frame));
            }
            let ended = out.len();
            out.extend(cutter.finish());
            let written: usize = frames.iter().map(Vec::len).sum();
            let read: usize = out.iter().map(|line| line.text.len()).sum();
            // Random bytes contain no valid timestamp, so only the newlines are removed.
            prop_assert_eq!(read + ended, written);
        }
    }
}
