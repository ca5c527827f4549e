//! Runs [`jaco_fuzz::log_lines()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::log_lines(data));
