//! Rule 3: the number of levels comes from the registers.

use crate::Group;
use crate::guest::{Guest, READ_ONLY};
use crate::heat::{count, expect_found, measure};
use crate::machine::Machine;
use crate::picture::only_accessed_bits_change;

const LA57: u64 = 1 << 12;

const MACHINE: Machine = Machine {
    cpu: "max",
    vcpus: 2,
    memory_mib: 256,
    options: "region=32 hot=10 pause_ms=5 pti=on",
};

/// A kernel that uses five levels because its processor can.
pub const FIVE: Group = Group {
    machine: MACHINE,
    tests: &[(
        "la57_guest_is_walked_with_five_levels",
        la57_guest_is_walked_with_five_levels,
    )],
};

/// The same processor, with a kernel that was configured not to.
pub const FOUR: Group = Group {
    machine: Machine {
        options: "region=32 hot=10 pause_ms=5 pti=on no5lvl",
        ..MACHINE
    },
    tests: &[(
        "no5lvl_guest_on_an_la57_processor_is_walked_with_four_levels",
        no5lvl_guest_on_an_la57_processor_is_walked_with_four_levels,
    )],
};

fn la57_guest_is_walked_with_five_levels(guest: &mut Guest) {
    assert!(guest.registers().iter().all(|r| r.cr4 & LA57 != 0));
    expect_found_and_intact(guest);
    // The fault: the same tables taken for four levels. Only read, as clearing would do damage.
    let hot = guest.frames("truth");
    guest.stop();
    let mut registers = guest.registers();
    registers.iter_mut().for_each(|r| r.cr4 &= !LA57);
    let mut found = 0;
    for _ in 0..3 {
        if let Ok(answer) = guest.try_scan_from(READ_ONLY, registers.clone()) {
            found = found.max(count(&answer.known, &hot));
        }
    }
    guest.go_on();
    println!(
        "walked with four levels, {found} of {} hot pages are seen",
        hot.len()
    );
    assert!(found * 10 < hot.len(), "this test cannot fail");
}

fn no5lvl_guest_on_an_la57_processor_is_walked_with_four_levels(guest: &mut Guest) {
    assert!(guest.registers().iter().all(|r| r.cr4 & LA57 == 0));
    expect_found_and_intact(guest);
}

fn expect_found_and_intact(guest: &mut Guest) {
    guest.ask("churn 2");
    for prune in [false, true] {
        let (_, bits) = only_accessed_bits_change(guest);
        let heat = measure(guest, prune);
        println!("{heat}; a scan cleared {bits} accessed bits and changed nothing else");
        expect_found(&heat);
    }
    guest.ask("churn 0");
    guest.expect_intact();
}
