//! The example does what it says.

#[path = "../examples/supervise.rs"]
mod supervise;

#[test]
fn a_tree_loses_actors_and_heals() {
    supervise::main().expect("the shop closes in good order");
}
