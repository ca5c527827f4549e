//! Answers of upstream servers without what belongs to one hop.

use super::wire::{AA, HEADER, Layout, OPT, RA, Section, put_u32, question, u32_at};

/// An answer of an upstream server, ready to be relayed to any client with the same question.
///
/// It has no EDNS record: that one is about the path to the server, and each client gets this
/// node's own. Additional records after it are dropped with it, because names in later records are
/// offsets; they are additions that any server may omit (RFC 2181 section 9).
#[derive(Clone, Debug)]
pub struct Relayed {
    message: Vec<u8>,
    question_len: usize,
    /// Offsets of the times to live.
    ttls: Vec<usize>,
}

impl Relayed {
    /// Prepares an answer; `None` if it is malformed.
    #[must_use]
    pub fn of(reply: &[u8]) -> Option<Self> {
        let question_len = question(reply)?.len();
        let mut layout = Layout::parse(reply)?;
        let is_opt = |record: &super::wire::RecordAt| {
            record.kind == OPT && record.section == Section::Additional
        };
        let additional = layout.count(Section::Additional);
        let (mut end, mut kept) = (layout.end, additional);
        if let Some(at) = layout.records.iter().position(is_opt) {
            kept -= layout.records.len() - at;
            end = layout.records[at].start;
            layout.records.truncate(at);
        }
        let mut message = reply.get(..end)?.to_vec();
        let [_, _, high, low, .., arcount_high, arcount_low] =
            message.first_chunk_mut::<HEADER>()?;
        // Recursion is available here, and this node is no authority for the answer.
        *high &= !AA;
        *low |= RA;
        [*arcount_high, *arcount_low] = u16::try_from(kept).ok()?.to_be_bytes();
        let ttls = layout.records.iter().map(|record| record.ttl_at).collect();
        Some(Self {
            message,
            question_len,
            ttls,
        })
    }

    /// Writes the answer with its times to live reduced by `age` seconds.
    pub(super) fn write(&self, age: u32, answer: &mut Vec<u8>) {
        answer.clear();
        answer.extend(&self.message);
        if age > 0 {
            for at in &self.ttls {
                let ttl = u32_at(answer, *at).unwrap_or(0);
                put_u32(answer, *at, ttl.saturating_sub(age));
            }
        }
    }

    /// The message as it is written at age zero.
    pub(super) fn message(&self) -> &[u8] {
        &self.message
    }

    /// Changes one time to live.
    pub(super) fn put_ttl(&mut self, at: usize, ttl: u32) {
        put_u32(&mut self.message, at, ttl);
    }

    pub(super) fn question_len(&self) -> usize {
        self.question_len
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.message.len() + size_of_val(&self.ttls[..])
    }
}

#[cfg(test)]
mod tests;
