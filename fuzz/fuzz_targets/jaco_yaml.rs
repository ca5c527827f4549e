//! Runs [`jaco_fuzz::jaco_yaml()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::jaco_yaml(data));
