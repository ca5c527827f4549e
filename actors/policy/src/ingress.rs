//! Ingress: the replicas that serve each route and each published port, as seen from one node.

pub mod ports;
pub mod table;
