//! Event trace of a run: a hash that two equal runs share, and lines of text for people.

use std::collections::VecDeque;

use super::time::{MS, Time};

/// Lines kept.
const TAIL: usize = 4_000;

/// The trace of one run.
#[derive(Debug, Default)]
pub(super) struct Trace {
    hash: u64,
    lines: Option<VecDeque<String>>,
}

impl Trace {
    /// A trace without text, which suffices for most runs.
    pub(super) fn hash_only() -> Self {
        Self::default()
    }

    /// A trace that also keeps the last lines of text.
    pub(super) fn with_lines() -> Self {
        Self {
            hash: 0,
            lines: Some(VecDeque::new()),
        }
    }

    pub(super) fn note(&mut self, now: Time, numbers: &[u64], text: impl FnOnce() -> String) {
        self.mix(now);
        numbers.iter().for_each(|number| self.mix(*number));
        if let Some(lines) = &mut self.lines {
            if lines.len() == TAIL {
                lines.pop_front();
            }
            let (ms, us) = (now / MS, now % MS);
            lines.push_back(format!("{ms:>7}.{us:03} {}", text()));
        }
    }

    fn mix(&mut self, number: u64) {
        let mixed = (self.hash ^ number).wrapping_mul(0xff51_afd7_ed55_8ccd);
        self.hash = mixed ^ (mixed >> 32);
    }

    /// Hash of the events so far, equal for equal runs.
    pub(super) fn hash(&self) -> u64 {
        self.hash
    }

    pub(super) fn into_lines(self) -> Vec<String> {
        self.lines.unwrap_or_default().into()
    }
}
