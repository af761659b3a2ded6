#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| terrace_agent::channel::fuzz::fuzz_host_talk(data));
