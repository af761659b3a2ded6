//! Calls to the guest's kernel module, whatever their arguments and its answers are: the fuzz body on stable Rust.

use proptest::prelude::*;
use terrace_testkit::fuzz::{changed, fuzz_guest_module};

#[test]
fn changes_of_each_kind_of_call_break_no_promise() {
    for kind in 0..5 {
        // A process, an address, 200 pages; and answers of all kinds.
        let call = [kind, 7, 0, 0x10, 0, 0, 0, 0, 0, 0, 100, 5, 130, 251, 10];
        let input: Vec<u8> = std::iter::repeat_n(call, 8).flatten().collect();
        for number in 0..500 {
            fuzz_guest_module(&changed(&input, number));
        }
    }
}

proptest! {
    #[test]
    fn random_arguments_and_answers_break_no_promise(data in proptest::collection::vec(any::<u8>(), 0..256)) {
        fuzz_guest_module(&data);
    }
}
