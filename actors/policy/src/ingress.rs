//! Ingress: the replicas that serve each route, as seen from one node.

pub mod table;
