//! A whole cluster in one thread, on virtual time, from one seed.
//!
//! Several nodes with the real cores (raft and the state machine, the membership policy, the
//! scheduler's passes, node health, replicas) live on simulated machines: a disk that forgets
//! what was not synced, an engine that fails and loses answers, clocks that drift, and a network
//! that loses, delays, repeats and cuts. Faults are drawn from the seed; so is everything else,
//! so a seed that fails fails again, event by event.
//!
//! While faults happen, at each event that could break it; those marked with * once in a virtual
//! second:
//!
//! | property | what is checked |
//! |---|---|
//! | election safety | no term has two leaders |
//! | leader completeness | a new leader's log has every entry that was committed in earlier terms |
//! | log matching | an entry's index and term decide its content and what is before it |
//! | state machine safety | no node applies another entry at an index, nor out of order |
//! | equal states | states, and so digests, are equal at equal applied index, also after restarts and snapshots, and equal to a state made entry by entry |
//! | committed is durable | a committed entry is synced on a majority of voters' disks |
//! | applied is durable | after a crash nothing is applied that the log or the commit index lacks |
//! | acknowledged writes | what was acknowledged is committed, and stays |
//! | at most once | no command of a client is committed twice, or after its client was told it was not appended |
//! | consistent reads | a consistent read shows everything acknowledged before it began |
//! | unique numbers | no revision and no raft id is given out twice |
//! | containers belong to rows | a container is made only by the host of the row it is labelled with |
//! | starts wait for the cluster | a node that is out of touch makes no container of a row that never ran on it |
//! | reports are true | what is reported as running was made there, from the row that is named |
//! | ready when settled | a node that calls itself ready runs nothing that moved away before it confirmed its state |
//! | one container per replica * | a node that has applied a row's removal, move or new issue stops the old container as soon as it can |
//! | not appended * | what a client was told is in no log is never committed |
//!
//! With a nuisance instead of faults (pauses under five seconds, 5 % loss, or a delay of 200 ms),
//! also: nobody is taken for dead, so nothing moves.
//!
//! A move lets the old container serve until the new one runs, so for a while a replica may have
//! one container on its old host (`previous_host`) and one on its new; both hosts know it from
//! the row. Whatever else runs of it has one grace and a few requests from the moment its node
//! applied the change, and in any case a sweep more from the moment the node is in touch with the
//! leader. Time in which the daemon is down or paused does not count, and what a failing engine
//! refused may be repeated after half a minute.
//!
//! When the faults stop, within a bounded virtual time: one leader, equal states everywhere, as
//! many voters as a table of its own says, everybody ready, the rows that the deployments ask for
//! and no others, every replica running where its row says and nowhere else (or its restart budget
//! spent), and nothing left for the scheduler to do. Then every member takes a write and answers a
//! consistent read.

mod audit;
mod boot;
mod calls;
mod client;
mod control;
mod disk;
mod documents;
mod engine;
mod expected;
mod fault;
mod hunt;
mod members;
mod mutation;
mod network;
mod node;
mod oracle;
mod overstay;
mod pulse;
mod run;
mod runtime;
mod step;
mod strike;
mod time;
mod trace;
mod world;

pub use fault::Nuisance;
pub use hunt::hunt;
pub use mutation::Mutation;
pub use oracle::Violation;
pub use run::{Failure, Options, Summary, THREAD, Tally, run, run_and_shrink, sweep};
