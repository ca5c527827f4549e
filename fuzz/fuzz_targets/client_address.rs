//! Runs [`jaco_fuzz::client_address()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::client_address(data));
