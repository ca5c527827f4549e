//! Runs [`jaco_fuzz::wireguard()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::wireguard(data));
