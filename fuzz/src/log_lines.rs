//! The engine's log frames as lines.

use jaco_actors::runtime::logs::lines::{Cutter, MAX_LINE};

use crate::parts::parts;

/// Most frames of one input.
const FRAMES: usize = 8;

/// Input: the frames of one stream.
///
/// No byte is made up or lost but newlines and timestamps, no line is longer than allowed or
/// holds a newline, and lines come in the order in which they were written.
pub fn log_lines(data: &[u8]) {
    let frames: [&[u8]; FRAMES] = parts(data);
    let mut cutter = Cutter::default();
    let mut lines = Vec::new();
    for frame in frames {
        lines.extend(cutter.feed(frame));
    }
    lines.extend(cutter.finish());
    assert_eq!(cutter.finish(), None, "the last line comes once");
    for line in &lines {
        assert!(line.text.len() <= MAX_LINE);
        assert!(!line.text.contains(&b'\n'));
    }
    let written: Vec<u8> = frames.concat();
    let mut rest = written.iter();
    for byte in lines.iter().flat_map(|line| &line.text) {
        assert!(
            rest.any(|candidate| candidate == byte),
            "a byte out of order"
        );
    }
    // Without a space there is no timestamp to cut off.
    if !written.contains(&b' ') {
        let text = lines.iter().flat_map(|line| &line.text);
        let kept = written.iter().filter(|byte| **byte != b'\n');
        assert!(text.eq(kept), "bytes were lost");
    }
}
