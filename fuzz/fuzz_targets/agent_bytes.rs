#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| terrace_proto::agent::fuzz::fuzz_agent_bytes(data));
