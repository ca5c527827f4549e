//! Compose files: the container set of a deployment.

mod model;

pub use model::*;
