#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::proxy_path(data));
