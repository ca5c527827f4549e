//! Runs [`jaco_fuzz::dns()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::dns(data));
