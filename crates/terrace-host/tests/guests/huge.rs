//! Rule 8: a leaf of 2 MiB gives nothing about its 512 parts.

use crate::Group;
use crate::guest::{CLEAR, Guest, READ_ONLY};
use crate::heat::count;
use crate::machine::Machine;
use crate::picture::only_accessed_bits_change;

pub const GROUP: Group = Group {
    machine: Machine {
        cpu: "qemu64",
        vcpus: 2,
        // Linux turns huge pages off if there is less than 512 MiB.
        memory_mib: 768,
        options: "region=64 hot=10 pause_ms=5 pti=on thp=1",
    },
    tests: &[(
        "a_2_mib_leaf_speaks_for_all_its_parts_and_says_so",
        a_2_mib_leaf_speaks_for_all_its_parts_and_says_so,
    )],
};

fn a_2_mib_leaf_speaks_for_all_its_parts_and_says_so(guest: &mut Guest) {
    // A few hot pages: most of the region's blocks hold none.
    guest.ask("hot 8");
    let (hot, region) = (guest.frames("truth"), guest.frames("region"));
    guest.scan(CLEAR);
    guest.wait_for_passes(3);
    let answer = guest.scan(READ_ONLY);
    let huge = |frame: &&u64| answer.huge_leaf.get(**frame / 512);
    let in_huge = region.iter().filter(huge).count();
    assert!(
        in_huge * 2 > region.len(),
        "the guest has no huge pages: {in_huge}"
    );
    let blocks: std::collections::BTreeSet<u64> =
        hot.iter().filter(huge).map(|f| f / 512).collect();
    for block in &blocks {
        let parts = (block * 512..(block + 1) * 512).filter(|p| answer.accessed.get(*p));
        assert_eq!(parts.count(), 512, "parts of block {block:#x}");
    }
    assert_eq!(count(&answer.accessed, &hot), hot.len());
    let accessed = count(&answer.accessed, &region);
    assert!(
        accessed < region.len(),
        "every block is said to be accessed"
    );
    println!(
        "{in_huge} of {} pages in 2 MiB leaves; {} hot pages make {accessed} accessed ones in {} blocks",
        region.len(),
        hot.len(),
        blocks.len()
    );
    only_accessed_bits_change(guest);
    guest.expect_intact();
}
