//! Placeholder until the real one lands.

fn main() {}
