//! Network mechanisms of JACO, independent of actors and of the replicated state.
//!
//! - [`acme`]: certificates from an ACME directory.
//! - [`dns`]: sockets of DNS servers and forwarders.
//! - [`domain`]: addresses of a domain, and what answers there.
//! - [`firewall`]: tables, chains and sets of the kernel's packet filter.
//! - [`handover`]: listening sockets that pass to the next process.
//! - [`ingress`]: the HTTP data plane of the ingress.
//! - [`interfaces`]: the network interfaces of this machine and their addresses.
//! - [`l4`]: the data plane of published TCP and UDP ports.
//! - [`limit`]: rates and connections per client.
//! - [`link`]: links, addresses and routes of the kernel.
//! - [`netns`]: network namespaces, and work inside them.
//! - [`pki`]: keys, certificates, fingerprints and their files.
//! - [`probe`]: probes of the container networks, as by a container.
//! - [`process`]: inherited sockets, temporary change of user, immediate exit.
//! - [`quic`]: the transport between members.
//! - [`secrets`]: the key that seals replicated values.
//! - [`tls`]: server and client configurations; there is no unverified mode.
//! - [`tmpfs`]: file systems in memory.
//! - [`tun`]: interfaces whose packets a program reads and writes.
//! - [`wireguard`]: the data plane of the encrypted mesh.

pub mod acme;
pub mod dns;
pub mod domain;
pub mod firewall;
pub mod handover;
pub mod ingress;
pub mod interfaces;
pub mod l4;
pub mod limit;
pub mod link;
mod listen;
pub mod netns;
pub mod pki;
pub mod probe;
pub mod process;
pub mod quic;
pub mod secrets;
pub mod tls;
pub mod tmpfs;
pub mod tun;
pub mod wireguard;
