//! Runs [`jaco_fuzz::error_status()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::error_status(data));
