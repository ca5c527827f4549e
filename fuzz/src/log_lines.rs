//! Fuzzes the conversion of the engine's log frames to lines.

use jaco_policy::runtime::logs::lines::{LineSplitter, MAX_LINE};

use crate::parts::parts;

/// Maximum number of frames per input.
const FRAMES: usize = 8;

/// Input: the frames of one stream.
///
/// No byte is added, and none is lost except newlines and timestamps. No line exceeds its length
/// limit or contains a newline, and lines keep their order.
pub fn log_lines(data: &[u8]) {
    let frames: [&[u8]; FRAMES] = parts(data);
    let mut cutter = LineSplitter::default();
    let mut lines = Vec::new();
    for frame in frames {
        lines.extend(cutter.feed(frame));
    }
    lines.extend(cutter.finish());
    assert_eq!(cutter.finish(), None, "the last line is returned once");
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
    // A timestamp ends with a space, so none is removed without one.
    if !written.contains(&b' ') {
        let text = lines.iter().flat_map(|line| &line.text);
        let kept = written.iter().filter(|byte| **byte != b'\n');
        assert!(text.eq(kept), "bytes were lost");
    }
}
