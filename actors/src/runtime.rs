//! Runtime vertical: from a desired row to a container on this host.
//!
//! - [`engine`]: what is asked of a container engine, and the Docker implementation.
//! - [`projection`]: a compose service as the engine's create request.
//! - [`registry_key`]: image references and the credential that pulls them.
//! - [`replica`]: one container, from pull to removal.

pub mod engine;
pub mod registry_key;
pub mod replica;
