#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::env_file(data));
