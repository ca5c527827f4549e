//! Fuzzes the parsers of the kernel's packet filter: its tables and its tracked connections.

use jaco_net::firewall::{self, Elements};

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
    let _ = firewall::parse_drops(rest);
    let Ok(table) = firewall::parse(rest) else {
        return;
    };
    for set in &table.sets {
        match &set.elements {
            Elements::Intervals(intervals) => {
                assert!(intervals.iter().all(|(first, last)| first <= last));
                assert!(intervals.is_sorted());
            }
            Elements::Chains(list) => {
                assert!(list.iter().all(|((first, last), _)| first <= last));
                assert!(list.is_sorted_by_key(|(interval, _)| *interval));
            }
            Elements::Interfaces(list) => assert!(list.is_sorted()),
            Elements::Other => {}
        }
    }
}
