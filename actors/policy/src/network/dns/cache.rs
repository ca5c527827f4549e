//! Answers of upstream servers, until their time to live ends.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    relay::Relayed,
    wire::{self, Layout, OPT, Section, TC, u16_at, u32_at},
};

/// Bytes that an entry costs besides its key and answer.
const OVERHEAD: usize = 192;
/// Longest time for which an answer is kept; a longer time to live is served from here and
/// renewed from the server.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// Type that any record answers.
const ANY: u16 = 255;

/// Bounded cache of whole answers.
///
/// Times to live count down while an answer is kept. Negative answers are kept for the time that
/// the zone's start of authority allows (RFC 2308 section 5), and not at all without one. Failures
/// are never kept. The answer that was used least recently makes room for a new one.
#[derive(Clone, Debug)]
pub struct Cache {
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Keys by the time of their last use.
    by_use: BTreeMap<u64, Vec<u8>>,
    uses: u64,
    bytes: usize,
    max_entries: usize,
    max_bytes: usize,
}

#[derive(Clone, Debug)]
struct Entry {
    reply: Arc<Relayed>,
    stored: Instant,
    expires: Instant,
    used: u64,
}

impl Cache {
    /// Creates a cache of at most `max_entries` answers and `max_bytes` bytes, keys and overhead
    /// included.
    #[must_use]
    pub fn new(max_entries: usize, max_bytes: usize) -> Self {
        Self {
            entries: BTreeMap::new(),
            by_use: BTreeMap::new(),
            uses: 0,
            bytes: 0,
            max_entries,
            max_bytes,
        }
    }

    /// Number of answers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is no answer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes in use.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the answer for `key` and its age in whole seconds, by which its times to live have
    /// to be reduced.
    pub fn get(&mut self, now: Instant, key: &[u8]) -> Option<(Arc<Relayed>, u32)> {
        let entry = self.entries.get_mut(key)?;
        if now >= entry.expires {
            self.remove(key);
            return None;
        }
        self.uses += 1;
        if let Some(key) = self.by_use.remove(&entry.used) {
            self.by_use.insert(self.uses, key);
        }
        entry.used = self.uses;
        let age = now.saturating_duration_since(entry.stored).as_secs();
        let age = u32::try_from(age).unwrap_or(u32::MAX);
        Some((Arc::clone(&entry.reply), age))
    }

    /// Keeps an answer, if it may be kept and is not larger than the cache.
    pub fn insert(&mut self, now: Instant, key: &[u8], reply: &Relayed) {
        self.remove(key);
        let Some(entry) = self.entry(now, reply) else {
            return;
        };
        let cost = cost(key, &entry);
        if cost > self.max_bytes || self.max_entries == 0 {
            return;
        }
        while self.bytes + cost > self.max_bytes || self.entries.len() >= self.max_entries {
            let Some((_, oldest)) = self.by_use.pop_first() else {
                break;
            };
            self.remove(&oldest);
        }
        self.bytes += cost;
        self.by_use.insert(entry.used, key.to_vec());
        self.entries.insert(key.to_vec(), entry);
    }

    fn entry(&mut self, now: Instant, reply: &Relayed) -> Option<Entry> {
        let mut reply = reply.clone();
        let kept = limit_times(&mut reply)?;
        let kept = Duration::from_secs(u64::from(kept)).min(MAX_AGE);
        self.uses += 1;
        Some(Entry {
            reply: Arc::new(reply),
            stored: now,
            expires: now.checked_add(kept)?,
            used: self.uses,
        })
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(entry) = self.entries.remove(key) {
            self.by_use.remove(&entry.used);
            self.bytes -= cost(key, &entry);
        }
    }
}

fn cost(key: &[u8], entry: &Entry) -> usize {
    OVERHEAD + 2 * key.len() + entry.reply.bytes()
}

/// Returns how many seconds an answer may be kept; `None` if it must not be kept. Limits the time
/// to live of a start of authority to its minimum, which is what a client computes from it.
fn limit_times(reply: &mut Relayed) -> Option<u32> {
    const NOERROR: u8 = 0;
    const NXDOMAIN: u8 = 3;
    let message = reply.message();
    let code = wire::response_code(message)?;
    if message[2] & TC != 0 || !matches!(code, NOERROR | NXDOMAIN) {
        return None;
    }
    let layout = Layout::parse(message)?;
    let question = wire::question(message)?;
    let asked = u16_at(question, question.len() - 4)?;
    let is_answer = |kind: u16| kind == asked || asked == ANY;
    let (mut positive, mut authority) = (false, false);
    let (mut shortest, mut limited) = (None::<u32>, Vec::new());
    for record in layout.records.iter().filter(|record| record.kind != OPT) {
        positive |= record.section == Section::Answer && is_answer(record.kind);
        // Values with the highest bit set count as zero (RFC 2181 section 8).
        let ttl = u32_at(message, record.ttl_at).filter(|ttl| *ttl <= i32::MAX.unsigned_abs());
        let mut ttl = ttl.unwrap_or(0);
        if record.section == Section::Authority
            && let Some(minimum) = record.soa_minimum(message)
        {
            authority = true;
            ttl = ttl.min(minimum);
            limited.push((record.ttl_at, ttl));
        }
        shortest = Some(shortest.map_or(ttl, |shortest| shortest.min(ttl)));
    }
    for (at, ttl) in limited {
        reply.put_ttl(at, ttl);
    }
    let negative = code == NXDOMAIN || !positive;
    shortest.filter(|ttl| *ttl > 0 && (!negative || authority))
}

#[cfg(test)]
mod tests;
