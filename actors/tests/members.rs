//! Tests of whole nodes, several in this process, that join and leave a cluster.
//!
//! The nodes have no container engine, or one without containers: membership involves only the
//! control plane.

#[path = "members/admission.rs"]
mod admission;
#[path = "members/certificates.rs"]
mod certificates;
#[path = "members/dead.rs"]
mod dead;
#[path = "members/drain.rs"]
mod drain;
#[path = "members/idle_engine.rs"]
mod idle_engine;
#[path = "members/lab.rs"]
mod lab;
#[path = "members/renewal.rs"]
mod renewal;
#[path = "members/voters.rs"]
mod voters;
