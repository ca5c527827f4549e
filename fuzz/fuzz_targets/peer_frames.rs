//! Runs [`jaco_fuzz::peer_frames()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::peer_frames(data));
