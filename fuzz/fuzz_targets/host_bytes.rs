#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| terrace_testkit::fuzz::frames::fuzz_host_bytes(data));
