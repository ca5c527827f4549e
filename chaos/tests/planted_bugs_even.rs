//! Planted bugs with an even position in the list.

mod planted_bugs;

#[test]
fn planted_bugs_are_found() {
    planted_bugs::find(0);
}
