//! Linearizability checker for registers.
//!
//! A history is linearizable if each operation can be assigned a point in time between its call and
//! its answer so that, in the order of these points, every read returns the value of the last write
//! before it. Registers are independent of each other, so each history is checked alone (Herlihy
//! and Wing, "Linearizability", TOPLAS 1990, theorem 1).
//!
//! The search is that of Wing and Gong, "Testing and Verifying Concurrent Objects", JPDC 1993, with
//! the cache of Lowe, "Testing for Linearizability", CCPE 2017: a set of linearized operations
//! together with a register value is not explored twice.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    fmt,
};

/// Effect of an operation. Every write of a history writes a different value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Writes this value.
    Write(u64),
    /// Returned this value, or none if the register was unset.
    Read(Option<u64>),
}

/// One operation on a register, as observed by its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Number of the client, for display only.
    pub client: u32,
    /// Kind of the operation, with the value.
    pub action: Action,
    /// Time of the call, in any unit that all clients share.
    pub called: u64,
    /// Time of the answer. `None` if there was none: a write may then take effect at any time after
    /// the call, or never. A read without an answer, or a write that was refused, is no operation.
    pub answered: Option<u64>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { client, called, .. } = self;
        match self.action {
            Action::Write(value) => write!(f, "client {client} wrote {value}")?,
            Action::Read(Some(value)) => write!(f, "client {client} read {value}")?,
            Action::Read(None) => write!(f, "client {client} read nothing")?,
        }
        match self.answered {
            Some(answered) => write!(f, " within {called}..{answered}"),
            None => write!(f, " from {called} on, outcome unknown"),
        }
    }
}

/// Proof that a history is not linearizable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The longest prefix of an order that was found.
    pub order: Vec<Operation>,
    /// The operation that could not be next, although its answer came before every other remaining
    /// answer.
    pub stuck: Option<Operation>,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 10;
        writeln!(
            f,
            "not linearizable; {} operations fit, the last of them:",
            self.order.len()
        )?;
        for operation in &self.order[self.order.len().saturating_sub(SHOWN)..] {
            writeln!(f, "  {operation}")?;
        }
        match &self.stuck {
            Some(operation) => write!(f, "but then not: {operation}"),
            None => write!(f, "and then none"),
        }
    }
}

impl std::error::Error for Violation {}

/// Checks the history of one register, in any order of operations; the register is unset at first.
///
/// # Errors
/// Describes the longest possible order.
///
/// # Panics
/// When two writes write the same value, or an answer is earlier than its call: such a history
/// cannot be judged.
pub fn check(history: &[Operation]) -> Result<(), Box<Violation>> {
    let operations = relevant(history);
    let mut search = Search::new(&operations);
    if search.run() {
        return Ok(());
    }
    let of = |ids: &[usize]| ids.iter().map(|id| operations[*id]).collect();
    Err(Box::new(Violation {
        order: of(&search.longest),
        stuck: search.stuck.map(|id| operations[id]),
    }))
}

/// Checks the histories of several registers.
///
/// # Errors
/// The first register whose history is not linearizable.
pub fn check_all<K: Ord + Clone>(
    histories: &BTreeMap<K, Vec<Operation>>,
) -> Result<(), (K, Box<Violation>)> {
    for (key, history) in histories {
        check(history).map_err(|violation| (key.clone(), violation))?;
    }
    Ok(())
}

/// Drops writes with an unknown outcome whose value was never read: no read depends on whether they
/// took effect, so the verdict is the same, and each would double the search.
fn relevant(history: &[Operation]) -> Vec<Operation> {
    let mut written = BTreeSet::new();
    let mut read = BTreeSet::new();
    for operation in history {
        assert!(
            operation
                .answered
                .is_none_or(|answered| operation.called <= answered),
            "answered before called: {operation}"
        );
        match operation.action {
            Action::Write(value) => assert!(written.insert(value), "{value} is written twice"),
            Action::Read(value) => read.extend(value),
        }
    }
    let is_relevant = |operation: &&Operation| match operation.action {
        Action::Write(value) => operation.answered.is_some() || read.contains(&value),
        Action::Read(_) => operation.answered.is_some(),
    };
    history.iter().filter(is_relevant).copied().collect()
}

/// A call or an answer, in a doubly linked list from which linearized operations are removed.
#[derive(Clone, Copy, Debug)]
struct Entry {
    operation: usize,
    is_call: bool,
    before: usize,
    after: usize,
}

/// Sentinel before the first and after the last entry.
const END: usize = 0;

/// State of the search: calls and answers in the order of time, and the operations linearized so
/// far.
struct Search<'a> {
    operations: &'a [Operation],
    entries: Vec<Entry>,
    /// Entries of each operation: its call and its answer.
    places: Vec<(usize, usize)>,
    value: Option<u64>,
    done: Vec<u64>,
    /// Operations linearized so far, each with the register's value before it.
    order: Vec<(usize, Option<u64>)>,
    tried: HashSet<(Box<[u64]>, Option<u64>)>,
    longest: Vec<usize>,
    stuck: Option<usize>,
}

impl<'a> Search<'a> {
    fn new(operations: &'a [Operation]) -> Self {
        // At equal times calls come before answers, which makes the operations concurrent.
        let mut moments: Vec<(u64, bool, usize)> = Vec::new();
        for (id, operation) in operations.iter().enumerate() {
            moments.push((operation.called, false, id));
            moments.push((operation.answered.unwrap_or(u64::MAX), true, id));
        }
        moments.sort_unstable();
        let mut entries = vec![Entry {
            operation: 0,
            is_call: false,
            before: moments.len(),
            after: if moments.is_empty() { END } else { 1 },
        }];
        let mut places = vec![(END, END); operations.len()];
        for (index, (_, is_answer, id)) in moments.iter().enumerate() {
            let at = index + 1;
            let place = &mut places[*id];
            *(if *is_answer {
                &mut place.1
            } else {
                &mut place.0
            }) = at;
            entries.push(Entry {
                operation: *id,
                is_call: !is_answer,
                before: index,
                after: if at == moments.len() { END } else { at + 1 },
            });
        }
        Self {
            operations,
            entries,
            places,
            value: None,
            done: vec![0; operations.len().div_ceil(64)],
            order: Vec::new(),
            tried: HashSet::new(),
            longest: Vec::new(),
            stuck: operations.first().map(|_| 0),
        }
    }

    /// Whether all operations can be ordered.
    fn run(&mut self) -> bool {
        let mut at = self.entries[END].after;
        while self.entries[END].after != END {
            let entry = self.entries[at];
            if entry.is_call {
                at = if self.can_linearize(entry.operation) {
                    self.linearize(entry.operation);
                    self.entries[END].after
                } else {
                    entry.after
                };
                continue;
            }
            // The answer of an operation that could not be linearized before it: backtrack.
            if self.order.len() >= self.longest.len() {
                self.longest = self.order.iter().map(|(id, _)| *id).collect();
                self.stuck = Some(entry.operation);
            }
            match self.undo() {
                Some(operation) => at = self.entries[self.places[operation].0].after,
                None => return false,
            }
        }
        true
    }

    /// Whether an operation is consistent with the register's value, in a configuration not
    /// explored before.
    fn can_linearize(&mut self, operation: usize) -> bool {
        let value = match self.operations[operation].action {
            Action::Write(value) => Some(value),
            Action::Read(value) if value == self.value => value,
            Action::Read(_) => return false,
        };
        let mut done = self.done.clone();
        done[operation / 64] |= 1 << (operation % 64);
        self.tried.insert((done.into(), value))
    }

    /// Linearizes an operation next.
    fn linearize(&mut self, operation: usize) {
        self.order.push((operation, self.value));
        if let Action::Write(value) = self.operations[operation].action {
            self.value = Some(value);
        }
        self.done[operation / 64] |= 1 << (operation % 64);
        let (call, answer) = self.places[operation];
        self.unlink(call);
        self.unlink(answer);
    }

    /// Undoes the last [`Search::linearize`], and returns its operation.
    fn undo(&mut self) -> Option<usize> {
        let (operation, value) = self.order.pop()?;
        self.value = value;
        self.done[operation / 64] &= !(1 << (operation % 64));
        let (call, answer) = self.places[operation];
        // In reverse order, so that each entry finds its neighbours as when it was removed.
        self.link(answer);
        self.link(call);
        Some(operation)
    }

    fn unlink(&mut self, at: usize) {
        let Entry { before, after, .. } = self.entries[at];
        self.entries[before].after = after;
        self.entries[after].before = before;
    }

    fn link(&mut self, at: usize) {
        let Entry { before, after, .. } = self.entries[at];
        self.entries[before].after = at;
        self.entries[after].before = at;
    }
}

#[cfg(test)]
mod tests;
