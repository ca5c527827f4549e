//! Log entries for tests.

use protobuf::Message as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeType, ConfChangeV2, Entry, EntryType};

/// The entry of term 2 that changes the role of member `id`.
pub(crate) fn change(index: u64, id: u64, kind: ConfChangeType) -> Entry {
    let mut single = ConfChangeSingle {
        node_id: id,
        ..ConfChangeSingle::default()
    };
    single.set_change_type(kind);
    let change = ConfChangeV2 {
        changes: vec![single],
        ..ConfChangeV2::default()
    };
    let mut entry = Entry {
        index,
        term: 2,
        data: change.write_to_bytes().unwrap(),
        ..Entry::default()
    };
    entry.set_entry_type(EntryType::EntryConfChangeV2);
    entry
}
