//! Runs [`jaco_fuzz::env_file()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::env_file(data));
