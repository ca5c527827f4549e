//! Deterministic simulation of a whole cluster: one thread, virtual time, one seed.
//!
//! Several nodes with the production cores (raft and the state machine, the membership policy, the
//! scheduler's passes, node health, replicas, certificates, address blocks, bridges, isolation and
//! mesh) run on
//! simulated machines: a disk that loses unsynced writes, an engine that fails and loses answers, a
//! kernel whose ruleset, routes and mesh device other programs change, clocks that drift, and a
//! network that loses, delays, duplicates and partitions. Faults and all other choices are drawn from the seed, so a
//! failing seed fails again in the same way, event by event.
//!
//! Properties checked at each event that could break them; those marked with * once in a virtual
//! second:
//!
//! | property | what is checked |
//! |---|---|
//! | election safety | no term has two leaders |
//! | leader completeness | a new leader's log has every entry that leaders of earlier terms committed |
//! | log matching | an entry's index and term decide its content and what is before it |
//! | state machine safety | no node applies another entry at an index, nor out of order |
//! | equal states | states, and so digests, are equal at equal applied index, also after restarts and snapshots, and equal to a state made entry by entry |
//! | committed is durable | a committed entry is synced on a majority of voters' disks |
//! | applied is durable | after a crash nothing is applied that the log or the commit index lacks |
//! | acknowledged writes | an acknowledged write is committed, and stays |
//! | at most once | no command of a client is committed twice, or after its client received "not appended" |
//! | consistent reads | a consistent read shows everything acknowledged before it began |
//! | unique numbers | no revision and no raft id is assigned twice |
//! | one owner per route | no deployment takes a route that another one has, nor is refused one only when its entry is applied |
//! | passes build on each other | every pass of the scheduler was planned on a state that contains the pass before it |
//! | containers belong to rows | a container is created only by the host of the row it is labelled with |
//! | starts wait for the cluster | a node that is out of touch, or does not apply the log, creates and starts containers only to restart one that failed there |
//! | reports are true | a container reported as running was created on that node, from the row named in the report |
//! | withdrawn before the stop | a container that is not wanted any more gets its stop signal only once every ready node routes nothing to it, or after two seconds |
//! | one order at a time | no two nodes have an order of one domain under way at an authority |
//! | orders take turns | no node has more orders under way than its queue allows |
//! | orders are needed | no order begins while the domain has a certificate that is not due to be renewed |
//! | one certificate lands | no stored certificate is replaced before it is due to be renewed |
//! | staging before production | a first order from production follows a certificate from staging |
//! | tokens before validation | an authority validates only once every ready node has the token, or after five seconds |
//! | waits are kept | no leader orders before its wait or the authority's `Retry-After` ends, nor twice in its first five minutes |
//! | newest certificate is served * | a node presents the certificate that its state shows for at most two seconds |
//! | renewed before expiry * | no certificate expires under a leader that had the time to renew it, without a failed order |
//! | ports lead to running replicas * | a published port of a node leads only to running replicas of the service that its state publishes it for, after two seconds |
//! | ready when settled | a node that reports itself ready runs no container whose row moved away before it confirmed its state |
//! | one container per replica * | a node that has applied a row's removal, move or new issue stops the old container as soon as it can |
//! | drains end * | after the faults, a member that leaves hands a replica over within two minutes after the last one, and is then removed; a removal is forced only if nothing else can end its drain |
//! | foreign routes are known | a member whose machine has routes of another program to containers knows that it is not protected |
//! | no forbidden connection | no packet that begins a connection arrives at a container of another network; no member's mesh accepts a machine that left |
//! | internal networks lead nowhere | no packet of a container that is on internal networks only leaves the cluster |
//! | containers join their own networks | a container is on networks of its deployment only, and on shared ones that its service names |
//! | shared blocks stay | no block of a shared network is freed while a deployment names the network and its node is a member |
//! | no forged source | no container reaches a network it is not on by claiming an address of another container or host |
//! | no plaintext | no packet to a container of another host leaves a machine unencrypted, once the machine had the time to route that host's block |
//! | files have their contents | every file of a revision has its content in the state; no content is removed that a row mounts, and none is kept that nothing mounts |
//! | finished jobs stay | no container of a row whose job was reported as completed starts again, and no scheduler that knew of it issues such a row again with the same settings |
//! | dependents wait for jobs | no node prepares the first container of a row before the jobs that it waits for have completed, by the state of the node |
//! | ready before running | a container is reported as running once it accepts connections on its port, or after five seconds; without a port, after one |
//! | one replica at a time | no rollout replaces a replica that runs while another of its service does not, and none of two at once |
//! | pulled before the stop | a container makes way for one of a newer row only once the image of that row is there |
//! | steps follow new containers | a rollout counts a replica only once its new container runs |
//! | paused rollouts replace nothing | no pass replaces a replica on its host while the rollouts of its deployment are paused |
//! | cordoned nodes receive nothing | no pass places a replica on a node that is cordoned |
//! | failed revisions are rolled back | a rollout that fails restores the content of the revision before, unless that was restored itself or has no place any more |
//! | not appended * | a command reported to its client as not appended is never committed |
//!
//! With a benign fault instead of faults (pauses under five seconds, 5 % loss, or a delay of 200 ms
//! on average), also: no node is marked offline and no replica moves.
//!
//! A move lets the old container serve until the new one runs, so for a while a replica may have
//! one container on its old host (`previous_host`) and one on its new; both hosts know this from
//! the row. Every other container of the replica must be gone within its withdrawal, one stop grace
//! and a few engine requests after its node applied the change, and in any case within one more sweep after
//! the node is in touch with the leader. Time in which the daemon is down or paused does not count,
//! and a request that a failing engine refused may be retried after half a minute.
//!
//! Packets are judged by what the kernels hold at that moment: the rulesets of both machines, their
//! bridges and routes, and the addresses that the mesh allows at both ends. A change by another
//! program excuses what follows from it until the daemon could repair it: two seconds after it, or
//! after the daemon was down, paused or without a leader, and longer while requests to the kernel
//! fail or are slow. Containers of blocks that no row has any more are not judged: no ruleset
//! contains such a block, and they are being stopped.
//!
//! After the faults stop, the following must hold within a bounded virtual time: one leader, equal
//! states on all nodes, as many voters as the table in `expected.rs` says, all members ready and
//! without a cordon, exactly the rows that the deployments ask for, every replica running where its
//! row says and nowhere else (or its restart budget spent), containers of one network that reach each other on
//! all machines, the ruleset of the newest state in every kernel, no bridge without a block, and an
//! empty scheduler pass. Then every member
//! accepts a write and answers a consistent read.

mod audit;
mod authority;
mod boot;
mod bridges;
mod calls;
mod certificates;
mod client;
mod cluster;
mod contacts;
mod contents;
mod control;
mod cordons;
mod disk;
mod documents;
mod drains;
mod engine;
mod expected;
mod fault;
mod find_bug;
mod flows;
mod forgery;
mod health;
mod inject;
mod ipam;
mod isolation;
mod issuance;
mod jobs;
mod kernel;
mod members;
mod mesh;
mod mutation;
mod network;
mod node;
mod oracle;
mod orders;
mod orphan_check;
mod outage;
mod ports;
mod proposals;
mod reachability;
mod rollouts;
mod routing;
mod run;
mod runtime;
mod secrets;
mod sharing;
mod shrink;
mod startup;
mod step;
mod survey;
mod time;
mod trace;
mod turns;

pub use fault::{BenignFault, Often};
pub use find_bug::find_bug;
pub use mutation::Mutation;
pub use oracle::Violation;
pub use run::{Failure, Options, Summary, Tally, run, silence_panics, sweep};
pub use shrink::{ShrinkBudget, Shrunk, shrink};
