//! Network mechanisms of JACO, ignorant of actors and of the replicated state.
//!
//! - [`pki`]: keys, certificates, fingerprints and their files.
//! - [`tls`]: server and client configurations; there is no unverified mode.

pub mod pki;
pub mod tls;
