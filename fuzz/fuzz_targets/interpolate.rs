//! Runs [`jaco_fuzz::interpolate()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::interpolate(data));
