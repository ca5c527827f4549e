//! Runs [`jaco_fuzz::proxy_path()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::proxy_path(data));
