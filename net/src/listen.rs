//! Sockets on all addresses of the machine.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
};

use rustix::io::Errno;

/// Binds `::`, which takes IPv4 too unless `bind` sets `IPV6_V6ONLY`, or `0.0.0.0` on a machine
/// without IPv6.
pub(crate) fn on_all_addresses<T>(
    port: u16,
    bind: impl Fn(SocketAddr) -> io::Result<T>,
) -> io::Result<T> {
    match bind((Ipv6Addr::UNSPECIFIED, port).into()) {
        Err(error) if is_without_v6(&error) => bind((Ipv4Addr::UNSPECIFIED, port).into()),
        bound => bound,
    }
}

/// Whether an attempt to bind `::` failed because the machine has no IPv6: the kernel was built
/// without it, or it is switched off.
fn is_without_v6(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Unsupported | io::ErrorKind::AddrNotAvailable
    ) || error.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_bound_only_without_ipv6() {
        for (error, expected) in [
            (Errno::AFNOSUPPORT, Ok("0.0.0.0:80")),
            (Errno::ADDRNOTAVAIL, Ok("0.0.0.0:80")),
            (Errno::ADDRINUSE, Err(io::ErrorKind::AddrInUse)),
            (Errno::ACCESS, Err(io::ErrorKind::PermissionDenied)),
        ] {
            let bound = on_all_addresses(80, |addr| match addr {
                SocketAddr::V4(_) => Ok(addr.to_string()),
                SocketAddr::V6(_) => Err(error.into()),
            });
            let bound = bound.map_err(|error| error.kind());
            assert_eq!(bound.as_deref(), expected.as_deref(), "{error}");
        }
        let bound = on_all_addresses(80, |addr| Ok(addr.to_string()));
        assert_eq!(bound.unwrap(), "[::]:80");
    }
}
