#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| terrace_proto::agent::fuzz::fuzz_host_bytes(data));
