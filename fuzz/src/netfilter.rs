//! Fuzzes the parsers of the kernel's packet filter: its tables and its tracked connections.

use jaco_net::firewall;

/// Input: a byte that selects the parser, and what it parses.
///
/// Elements are ranges in order, and of sets that can hold them alone.
pub fn netfilter(data: &[u8]) {
    let Some((parser, rest)) = data.split_first() else {
        return;
    };
    if parser % 2 == 1 {
        let _ = firewall::parse_flows(rest);
        return;
    }
    let Ok(table) = firewall::parse(rest) else {
        return;
    };
    for set in &table.sets {
        assert!(set.elements.iter().all(|(first, last)| first <= last));
        assert!(set.elements.is_sorted());
    }
}
