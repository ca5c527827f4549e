//! Random choices that a seed repeats.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    ops::Range,
    time::Duration,
};

/// A small generator; equal seeds give equal choices.
///
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seed in the environment variable `JACO_SEED`, or a new one; a test prints it.
    #[must_use]
    pub fn seed() -> u64 {
        std::env::var("JACO_SEED")
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(unique)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of a range.
    ///
    /// # Panics
    /// If the range is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start)
    }

    /// A time below `limit`, in microseconds.
    pub fn below(&mut self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.within(0..micros.max(1)))
    }
}

/// A number that no other test of this machine has.
#[must_use]
pub fn unique() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_choices_and_another_does_not() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..8).map(|_| rng.within(10..1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|n| (10..1000).contains(n)));
    }
}
