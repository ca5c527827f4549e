//! Network mechanisms of JACO, independent of actors and of the replicated state.
//!
//! - [`interfaces`]: the network interfaces of this machine and their addresses.
//! - [`pki`]: keys, certificates, fingerprints and their files.
//! - [`process`]: inherited sockets, temporary change of user, immediate exit.
//! - [`proxy`]: the HTTP data plane of the ingress.
//! - [`quic`]: the transport between members.
//! - [`tls`]: server and client configurations; there is no unverified mode.
//! - [`tun`]: interfaces whose packets a program reads and writes.

pub mod interfaces;
pub mod pki;
pub mod process;
pub mod proxy;
pub mod quic;
pub mod tls;
pub mod tun;
