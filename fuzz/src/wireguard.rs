//! Fuzzes the parsers of the mesh: frames of the kernel, datagrams of anyone, tables of networks.

use jaco_net::wireguard::fuzzing;

/// Input: a byte that selects the parser, and what it parses.
///
/// Packets survive joining and splitting, forged messages are never believed, and the longest
/// network wins.
pub fn wireguard(data: &[u8]) {
    let Some((parser, rest)) = data.split_first() else {
        return;
    };
    match parser % 3 {
        0 => fuzzing::frame(rest),
        1 => fuzzing::datagram(rest),
        _ => fuzzing::allowed_ips(rest),
    }
}
