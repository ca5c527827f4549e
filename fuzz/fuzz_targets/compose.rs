//! Runs [`jaco_fuzz::compose()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::compose(data));
