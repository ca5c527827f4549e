//! Several whole nodes in this process that join and leave one cluster.
//!
//! No engine listens where the nodes look for one, or none that runs anything: membership is the
//! control plane's business.

#[path = "members/admission.rs"]
mod admission;
#[path = "members/certificates.rs"]
mod certificates;
#[path = "members/dead.rs"]
mod dead;
#[path = "members/lab.rs"]
mod lab;
#[path = "members/renewal.rs"]
mod renewal;
#[path = "members/voters.rs"]
mod voters;
