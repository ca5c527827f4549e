//! Random choices, repeatable from a seed.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    ops::Range,
    time::Duration,
};

/// A small generator (SplitMix64); equal seeds give equal choices.
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

    /// The generator of the seed in the environment variable `JACO_SEED`, or of a random one.
    ///
    /// Prints the seed: the test harness shows it if the test fails.
    #[expect(clippy::print_stdout, reason = "nothing but tests uses this crate")]
    #[must_use]
    pub fn announced() -> Self {
        let given = std::env::var("JACO_SEED").ok();
        let seed = given
            .and_then(|text| text.parse().ok())
            .unwrap_or_else(unique);
        println!("JACO_SEED={seed}");
        Self::new(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of a range (with a slight modulo bias).
    ///
    /// # Panics
    /// If the range is empty.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.number() % (range.end - range.start)
    }

    /// One element of a slice; `None` if it is empty.
    pub fn choose<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(from.len()).ok().filter(|count| *count > 0)?;
        from.get(usize::try_from(self.within(0..count)).ok()?)
    }

    /// A time below `limit`, in microseconds.
    pub fn below(&mut self, limit: Duration) -> Duration {
        let micros = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(self.within(0..micros.max(1)))
    }
}

/// A random number, to tell the objects of tests on this machine apart.
#[must_use]
pub fn unique() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choose_picks_every_element() {
        let mut rng = Rng::new(1);
        let mut seen = [0; 3];
        (0..100).for_each(|_| seen[*rng.choose(&[0, 1, 2]).unwrap()] += 1);
        assert!(seen.iter().all(|count| *count > 10), "{seen:?}");
        assert_eq!(rng.choose::<u8>(&[]), None);
    }

    #[test]
    fn equal_seeds_give_equal_choices() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            (0..8).map(|_| rng.within(10..1000)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
        assert!(draw(7).iter().all(|n| (10..1000).contains(n)));
    }
}
