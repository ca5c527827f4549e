//! Runs [`jaco_fuzz::netfilter()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::netfilter(data));
