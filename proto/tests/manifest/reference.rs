//! Tests that `docs/compose.md` holds the current tables of keys.

use std::{fs, path::PathBuf};

use jaco_proto::manifest::compose::key_reference;

const BEGIN: &str = "<!-- keys: generated, see proto/tests/manifest/reference.rs -->\n";
const END: &str = "<!-- end of keys -->\n";

#[test]
fn documented_keys_equal_the_accepted_ones() {
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/compose.md"));
    let stored = fs::read_to_string(&path).unwrap();
    let (before, rest) = stored.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let made = format!("{before}{BEGIN}\n{}{END}{after}", key_reference());
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, &made).unwrap();
        return;
    }
    assert!(stored == made, "run this test with UPDATE_GOLDEN=1");
}
