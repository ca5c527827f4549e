//! Runs [`jaco_fuzz::registry()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::registry(data));
