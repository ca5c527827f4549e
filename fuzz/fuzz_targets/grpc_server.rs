//! Runs [`jaco_fuzz::grpc_server()`] under libFuzzer.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| jaco_fuzz::grpc_server(data));
