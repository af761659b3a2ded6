#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| terrace_testkit::fuzz::fuzz_guest_module(data));
