#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| terrace_host::agent::fuzz::fuzz_agent_talk(data));
