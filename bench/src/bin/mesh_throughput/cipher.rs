//! Speed of the cipher alone: ring's, which the data plane uses.

use std::{
    thread,
    time::{Duration, Instant},
};

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};

use super::MTU;

/// Gigabits that `threads` seal in a second.
pub(super) fn rate(threads: usize, length: Duration) -> f64 {
    thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(|| seal(length))).collect();
        let rates = running
            .into_iter()
            .map(|thread| thread.join().unwrap_or(f64::NAN));
        rates.sum()
    })
}

fn seal(length: Duration) -> f64 {
    let Ok(key) = UnboundKey::new(&CHACHA20_POLY1305, &[7; 32]) else {
        return f64::NAN;
    };
    let key = LessSafeKey::new(key);
    let mut packet = [7; MTU as usize];
    let (began, mut sealed) = (Instant::now(), 0_u64);
    while began.elapsed() < length {
        for _ in 0..256 {
            let mut nonce = [0; 12];
            nonce[4..].copy_from_slice(&sealed.to_le_bytes());
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), &mut packet);
            if std::hint::black_box(tag).is_err() {
                return f64::NAN;
            }
            sealed += 1;
        }
    }
    sealed as f64 * f64::from(MTU) * 8.0 / began.elapsed().as_secs_f64() / 1e9
}
