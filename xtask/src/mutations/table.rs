//! The mutations: how each rule is broken, and the test that has to notice.

/// A fault: one text of one file becomes another.
pub struct Mutation {
    /// Number of the rule in `docs/data-rules.md`.
    pub rule: u8,
    /// The mutation's name for `--only`, and of its log.
    pub name: &'static str,
    /// The fault, for people.
    pub what: &'static str,
    pub file: &'static str,
    /// The text that is replaced; it is in the file exactly once.
    pub find: &'static str,
    pub replace: &'static str,
    pub proof: Proof,
}

/// The test that has to fail by the fault.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    pub package: &'static str,
    pub test_target: TestTarget,
    /// Name of the test's function.
    pub test: &'static str,
}

/// The place of a test in its package.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TestTarget {
    /// Beside the code.
    Library,
    /// In an integration test of that name.
    Integration(&'static str),
    /// On real guests, which take longer.
    Guests,
}

impl Mutation {
    pub fn is_called(&self, text: &str) -> bool {
        match text.parse::<u8>() {
            Ok(rule) => self.rule == rule,
            Err(_) => self.name.contains(text),
        }
    }
}

impl TestTarget {
    /// Cargo's options for the tests of this place.
    pub fn cargo_args(self) -> Vec<&'static str> {
        match self {
            Self::Library => vec!["--lib"],
            Self::Integration(name) => vec!["--test", name],
            Self::Guests => vec!["--test", "guests"],
        }
    }
}

const fn in_pagetable(test: &'static str) -> Proof {
    Proof {
        package: "terrace-pagetable",
        test_target: TestTarget::Library,
        test,
    }
}

const fn of_scanner(test: &'static str) -> Proof {
    Proof {
        package: "terrace-pagetable",
        test_target: TestTarget::Integration("scanner"),
        test,
    }
}

const fn in_host(test: &'static str) -> Proof {
    Proof {
        package: "terrace-host",
        test_target: TestTarget::Library,
        test,
    }
}

const fn in_flex(test: &'static str) -> Proof {
    Proof {
        package: "terrace-hyperflex",
        test_target: TestTarget::Library,
        test,
    }
}

const fn in_daemon(test: &'static str) -> Proof {
    Proof {
        package: "terraced",
        test_target: TestTarget::Library,
        test,
    }
}

const fn on_guests(test: &'static str) -> Proof {
    Proof {
        package: "terrace-host",
        test_target: TestTarget::Guests,
        test,
    }
}

const ENTRY: &str = "crates/terrace-pagetable/src/entry.rs";
const PASS: &str = "crates/terrace-pagetable/src/pass.rs";
const DIRECT_MAP: &str = "crates/terrace-pagetable/src/direct_map.rs";
const ALLOCATED: &str = "crates/terrace-host/src/worker/allocated.rs";
const ROOTS: &str = "crates/terrace-host/src/worker/roots/mod.rs";
const LEASE: &str = "crates/terrace-hyperflex/src/lease.rs";
const LEASED: &str = "crates/terrace-hyperflex/src/device/leased/mod.rs";
const WATCH: &str = "crates/terrace-host/src/memory_map/watch/mod.rs";
const GUARD: &str = "crates/terraced/src/executor/map_guard.rs";
const MOVER: &str = "crates/terrace-host/src/mover/run/mod.rs";
const SHARERS: &str = "crates/terrace-host/src/sharers/mod.rs";
const SHARERS_OF_A_PROCESS: &str = "crates/terrace-host/src/sharers/process.rs";

/// The text by which the walk comes by a table.
const ASKED_FOR: &str = "self.holds_data(frame)
            .then(|| self.memory.table(frame))
            .flatten()";
/// The text because of which a guest without KASLR is not searched.
const NO_SEARCH: &str = "if kernel.map.is_at_default_base() {";
const SEARCH: &str = "if kernel.map.is_at_default_base() && self.earlier.len() > EARLIER {";

/// All mutations, by rule.
pub const MUTATIONS: &[Mutation] = &[
    Mutation {
        rule: 1,
        name: "clear-dirty",
        what: "clearing A clears D too",
        file: ENTRY,
        find: "match slot.compare_exchange(seen, seen & !ACCESSED, ",
        replace: "match slot.compare_exchange(seen, seen & !(ACCESSED | DIRTY), ",
        proof: of_scanner("the_dirty_bit_is_never_cleared"),
    },
    Mutation {
        rule: 1,
        name: "drop-dirty",
        what: "D is dropped rather than moved to bit 58",
        file: ENTRY,
        find: "e & !DIRTY | SAVED_DIRTY\n",
        replace: "e & !DIRTY\n",
        proof: of_scanner("a_dirty_bit_is_never_lost"),
    },
    Mutation {
        rule: 2,
        name: "no-look-back",
        what: "what led to a table is not looked at again",
        file: PASS,
        find: "if holds { Ok(()) } else { Err(Gone) }",
        replace: "if holds || true { Ok(()) } else { Err(Gone) }",
        proof: of_scanner("a_table_reused_for_data_under_the_scan_keeps_every_word"),
    },
    Mutation {
        rule: 2,
        name: "other-entry",
        what: "an entry that is another one by now is changed",
        file: ENTRY,
        find: "if (now ^ seen) & IDENTITY != 0 {\n            return Written::Lost;",
        replace: "if (now ^ seen) & IDENTITY != 0 && now == 0 {\n            return Written::Lost;",
        proof: in_pagetable("an_entry_that_is_another_mapping_now_is_left_alone"),
    },
    Mutation {
        rule: 3,
        name: "four-levels",
        what: "levels are always four",
        file: "crates/terrace-pagetable/src/paging.rs",
        find: "if registers.cr4 & CR4_LA57 == 0 { 4 } else { 5 }",
        replace: "if registers.cr4 & CR4_LA57 == 0 { 4 } else { 4 }",
        proof: in_pagetable("la57_means_five_levels"),
    },
    Mutation {
        rule: 4,
        name: "prune-top",
        what: "the top level is pruned",
        file: PASS,
        find: "if self.prune && self.prunes_by(level) && !entry.is_accessed() {",
        replace: "if self.prune && !entry.is_accessed() {",
        proof: of_scanner("the_top_level_is_neither_pruned_nor_written"),
    },
    Mutation {
        rule: 4,
        name: "part-clears-above",
        what: "a pass over a part clears bits that speak of other parts, too",
        file: PASS,
        find: "!self.is_top(level) && (self.part.is_none() || level == 2)",
        replace: "!self.is_top(level)",
        proof: of_scanner("a_part_leaves_the_bits_above_other_parts"),
    },
    Mutation {
        rule: 2,
        name: "pair-unseen",
        what: "a pair of entries is exchanged for what is there, not for what was read",
        file: PASS,
        find: "&& pairs::clear_accessed(slots, *seen)",
        replace: "&& pairs::clear_accessed(slots, [0, 1].map(|i| { let _ = seen; slots[i].load(Ordering::Relaxed) }))",
        proof: of_scanner("a_pair_that_became_other_mappings_is_left_alone"),
    },
    Mutation {
        rule: 5,
        name: "no-isolation",
        what: "an emulated guest boots without `pti=on`",
        file: "crates/terrace-host/tests/guests/isolation.rs",
        find: "options: \"region=32 hot=10 pause_ms=5 pti=on\",",
        replace: "options: \"region=32 hot=10 pause_ms=5 pti=off\",",
        proof: on_guests("ten_page_hot_set_is_found"),
    },
    Mutation {
        rule: 6,
        name: "search-holes",
        what: "all RAM is searched, not what is allocated",
        file: "crates/terrace-host/src/worker/guest.rs",
        find: "self.roots.search(&self.memory, &mut pieces);",
        replace: "self.roots.search(&self.memory, [Gfn(0)..Gfn(self.memory.frames())]);",
        proof: on_guests("scans_do_not_allocate_memory_that_the_guest_never_touched"),
    },
    Mutation {
        rule: 7,
        name: "offset-is-address",
        what: "the file's offset is the guest's address",
        file: "crates/terrace-host/src/memory_map/build/mod.rs",
        find: "let file_offset = mapping.offset + (run.hva - mapping.start);",
        replace: "let file_offset = run.gpa % self.lens[index];",
        proof: in_host("ram_is_joined_with_its_file_and_adjacent_runs_become_one"),
    },
    Mutation {
        rule: 7,
        name: "map-read-once",
        what: "a map that is another one by now is gone by",
        file: WATCH,
        find: "if let Some(text) = self.layout.change(&now) {",
        replace: "if let Some(text) = self.layout.change(&now).filter(|_| self.pid == 0) {",
        proof: in_host("changed_ram_is_another_map_for_good"),
    },
    Mutation {
        rule: 7,
        name: "map-not-looked-at-after",
        what: "what came back is believed without a second look at the map",
        file: GUARD,
        find: "let came = act();
        self.check(Extent::Glance)?;",
        replace: "let came = act();",
        proof: in_daemon("memory_unplugged_in_mid_round_is_neither_scanned_nor_moved"),
    },
    Mutation {
        rule: 7,
        name: "map-not-looked-at-before",
        what: "something is begun by a map that changed",
        file: GUARD,
        find: "self.check(if whole { Extent::Whole } else { Extent::Glance })?;",
        replace: "let _ = (whole, Extent::Whole);",
        proof: in_daemon("nothing_is_begun_by_a_map_that_changed"),
    },
    Mutation {
        rule: 7,
        name: "map-glanced-at",
        what: "the whole map is not looked at before a round",
        file: GUARD,
        find: "if whole { Extent::Whole }",
        replace: "if whole && false { Extent::Whole }",
        proof: in_daemon("nothing_is_begun_by_a_map_that_changed"),
    },
    Mutation {
        rule: 7,
        name: "map-moves-go-on",
        what: "moves that are under way go on by a map that changed",
        file: GUARD,
        find: "self.stop.store(true, Ordering::Relaxed);",
        replace: "self.stop.store(false, Ordering::Relaxed);",
        proof: in_daemon("nothing_is_begun_by_a_map_that_changed"),
    },
    Mutation {
        rule: 7,
        name: "map-events",
        what: "what QEMU tells of its memory is not heard",
        file: WATCH,
        find: "if self.seen != Some(self.witness.memory_events()) {",
        replace: "if self.seen.is_none() {",
        proof: in_host("changed_ram_is_another_map_for_good"),
    },
    Mutation {
        rule: 7,
        name: "map-holds-again",
        what: "a map that changed holds again once it looks as before",
        file: WATCH,
        find: "self.changed = Some(text.clone());",
        replace: "self.changed = None;",
        proof: in_host("changed_ram_is_another_map_for_good"),
    },
    Mutation {
        rule: 7,
        name: "map-unmapped",
        what: "that QEMU maps something else there is not noticed",
        file: WATCH,
        find: "is_mapped.map_err(|text| self.change_to(text))",
        replace: "is_mapped.or(Ok(()))",
        proof: in_host("ram_mapped_elsewhere_is_noticed_without_qemus_help"),
    },
    Mutation {
        rule: 7,
        name: "map-kept",
        what: "the old map's worker and threads go on",
        file: "crates/terraced/src/daemon/remapped.rs",
        find: "drop(self.executors.take(id));",
        replace: "std::mem::forget(self.executors.take(id));",
        proof: in_daemon("memory_plugged_later_is_scanned_and_the_old_map_is_not"),
    },
    Mutation {
        rule: 8,
        name: "huge-unsaid",
        what: "nobody is told that a leaf is of 2 MiB",
        file: "crates/terrace-pagetable/src/scanner.rs",
        find: "huge_leaf: self.mapped.blocks(),",
        replace: "huge_leaf: terrace_proto::PageBitmap::new(self.frames.div_ceil(512)),",
        proof: of_scanner("a_giant_leaf_is_512_huge_blocks_and_accessed_throughout"),
    },
    Mutation {
        rule: 8,
        name: "huge-unsaid-of-a-guest",
        what: "the same, of a real guest",
        file: "crates/terrace-pagetable/src/scanner.rs",
        find: "huge_leaf: self.mapped.blocks(),",
        replace: "huge_leaf: terrace_proto::PageBitmap::new(self.frames.div_ceil(512)),",
        proof: on_guests("a_2_mib_leaf_speaks_for_all_its_parts_and_says_so"),
    },
    Mutation {
        rule: 9,
        name: "crash-qemu",
        what: "QEMU is asked for `calc_dirty_rate`",
        file: "crates/terrace-host/src/qemu/monitor.rs",
        find: "let text = self.human(\"info numa\")?;",
        replace: "let text = self.human(\"calc_dirty_rate 1\")?;",
        proof: Proof {
            package: "terrace-host",
            test_target: TestTarget::Integration("qmp_commands"),
            test: "qemu_is_asked_nothing_but_what_is_listed",
        },
    },
    Mutation {
        rule: 10,
        name: "move-all",
        what: "pages of private RAM are moved whoever maps them",
        file: MOVER,
        find: "if is_shared && !others_map {",
        replace: "if is_shared || !others_map {",
        proof: in_host("pages_that_others_map_stay"),
    },
    Mutation {
        rule: 10,
        name: "move-all-in-one-call",
        what: "private RAM is moved in one call with shared RAM",
        file: MOVER,
        find: "let is_alike = items[start].scope == item.scope;",
        replace: "let is_alike = items[start].scope == item.scope || limit > 0;",
        proof: in_host("pages_that_others_map_stay"),
    },
    Mutation {
        rule: 10,
        name: "move-all-of-a-huge-page",
        what: "a huge page that is shared in part counts as shared",
        file: "crates/terrace-host/src/memory_map/mod.rs",
        find: "there.peek().is_some() && there.all(|r| r.shared)",
        replace: "there.peek().is_some_and(|r| r.shared)",
        proof: in_host("an_address_among_private_and_shared_ram_counts_as_private"),
    },
    Mutation {
        rule: 10,
        name: "move-believed",
        what: "a page counts as moved without the kernel's word where it is",
        file: MOVER,
        find: "if self.tier(node) == Some(to) {",
        replace: "if self.tier(node) == Some(to) || there == MoveStatus::Moved {",
        proof: in_host("every_outcome_is_told_apart"),
    },
    Mutation {
        rule: 10,
        name: "move-again",
        what: "a page that others map is proposed again in each round",
        file: "crates/terrace-core/src/engine/landing.rs",
        find: "if status == MoveStatus::MappedByOthers {\n                // Proposed",
        replace: "if false && status == MoveStatus::MappedByOthers {\n                // Proposed",
        proof: Proof {
            package: "terrace-core",
            test_target: TestTarget::Integration("engine"),
            test: "pages_mapped_by_others_stay_and_rest_for_two_rounds",
        },
    },
    Mutation {
        rule: 11,
        name: "other-tier",
        what: "the device takes a block that ends outside of its tier",
        file: "crates/terrace-hyperflex/src/tier.rs",
        find: "tier.find(entry.gpa(), pages).ok_or(EntryRefusal::Outside)",
        replace: "tier.find(entry.gpa(), pages.min(1)).ok_or(EntryRefusal::Outside)",
        proof: in_flex("only_aligned_offered_blocks_within_the_tier_are_admitted"),
    },
    Mutation {
        rule: 12,
        name: "kernel-entries",
        what: "entries that are not for users count",
        file: "crates/terrace-pagetable/src/chunk.rs",
        find: "let user = lanes.map(|l| l & l >> USER.trailing_zeros());",
        replace: "let user = *lanes;",
        proof: of_scanner("the_kernel_half_and_kernel_entries_are_left_alone"),
    },
    Mutation {
        rule: 13,
        name: "no-proof",
        what: "a kernel half without a direct map counts",
        file: DIRECT_MAP,
        find: "search.run().ok_or(Unproven::NoDirectMap(root))",
        replace: "Ok(search.run().unwrap_or(Self { base: 0, paging }))",
        proof: in_host("a_nested_guests_register_is_not_walked"),
    },
    Mutation {
        rule: 13,
        name: "no-proof-on-a-guest",
        what: "the same, on a real guest",
        file: DIRECT_MAP,
        find: "search.run().ok_or(Unproven::NoDirectMap(root))",
        replace: "Ok(search.run().unwrap_or(Self { base: 0, paging }))",
        proof: on_guests("an_unproven_kernel_half_changes_no_byte"),
    },
    Mutation {
        rule: 13,
        name: "some-tables",
        what: "a direct map need not cover what the half names",
        file: DIRECT_MAP,
        find: "self.covers_tables(memory, half, half) && self.maps_to_itself(memory, half, root)",
        replace: "self.maps_to_itself(memory, half, root)",
        proof: in_pagetable("every_table_of_the_kernel_half_must_be_in_the_direct_map"),
    },
    Mutation {
        rule: 13,
        name: "one-leaf",
        what: "one leaf over all of them proves a half",
        file: DIRECT_MAP,
        find: "own >= MIN_LEAVES && (foreign == 0 || level == 3)",
        replace: "own >= 1 && (foreign == 0 || level == 3 || MIN_LEAVES > 0)",
        proof: in_pagetable("a_single_leaf_that_covers_everything_proves_nothing"),
    },
    Mutation {
        rule: 13,
        name: "nested-registers",
        what: "registers count of a vCPU that runs a nested guest",
        file: "crates/terrace-host/src/qemu/nesting/mod.rs",
        find: "Some(!before.inside && before == after)",
        replace: "Some(before == after)",
        proof: Proof {
            package: "terrace-host",
            test_target: TestTarget::Integration("readings"),
            test: "a_nested_guests_registers_never_count_whenever_it_ran",
        },
    },
    Mutation {
        rule: 14,
        name: "search-default-base",
        what: "a guest without KASLR is searched",
        file: ROOTS,
        find: NO_SEARCH,
        replace: SEARCH,
        proof: in_host("a_guest_without_kaslr_is_not_searched_for_forgeable_tables"),
    },
    Mutation {
        rule: 14,
        name: "search-default-base-of-a-guest",
        what: "the same, where a process forges a table",
        file: ROOTS,
        find: NO_SEARCH,
        replace: SEARCH,
        proof: on_guests("a_top_level_table_that_a_process_forged_leads_nowhere"),
    },
    Mutation {
        rule: 14,
        name: "found-before-reset",
        what: "what was found before a reset counts after it",
        file: ROOTS,
        find: "        self.found.clear();\n        self.in_use.clear();\n",
        replace: "        self.in_use.clear();\n",
        proof: in_host("nothing_found_before_a_reset_counts_after_it"),
    },
    Mutation {
        rule: 14,
        name: "half-before-reset",
        what: "a half seen before a reset is searched for",
        file: ROOTS,
        find: "} else if self.earlier.contains(&digest(&kernel.half)) {",
        replace: "} else if self.earlier.len() > EARLIER {",
        proof: in_host("nothing_found_before_a_reset_counts_after_it"),
    },
    Mutation {
        rule: 14,
        name: "old-registers",
        what: "a walk goes on when its registers are too old",
        file: PASS,
        find: "if self.guard.is_in_time() {",
        replace: "if self.guard.is_in_time() || !self.links.is_empty() {",
        proof: of_scanner("nothing_is_written_once_a_walk_took_too_long"),
    },
    Mutation {
        rule: 15,
        name: "walk-holes",
        what: "the walk reads where no data is",
        file: ALLOCATED,
        find: ASKED_FOR,
        replace: "self.memory.table(frame)",
        proof: in_host("pages_without_data_are_no_tables_and_stay_without"),
    },
    Mutation {
        rule: 15,
        name: "walk-holes-of-a-guest",
        what: "the same, of a real guest's hostile tables",
        file: ALLOCATED,
        find: ASKED_FOR,
        replace: "self.memory.table(frame)",
        proof: on_guests("tables_that_name_untouched_memory_do_not_allocate_it"),
    },
    Mutation {
        rule: 16,
        name: "stop-does-not-wait",
        what: "a ring changes without waiting for its chain",
        file: "crates/terrace-hyperflex/src/ring.rs",
        find: "let _held = self.lock();\n        self.changes.fetch_add(1, Ordering::Relaxed);",
        replace: "self.changes.fetch_add(1, Ordering::Relaxed);",
        proof: in_flex("a_chain_stopped_at_any_hole_is_undone_and_redone"),
    },
    Mutation {
        rule: 16,
        name: "stop-leaves-open-chains",
        what: "a chain that waits for a look is answered although its ring was stopped",
        file: LEASED,
        find: "if open.changes != ring.changes() {",
        replace: "if open.changes > ring.changes() {",
        proof: in_flex("a_stopped_ring_awaits_no_pin_check_and_undoes_its_chain"),
    },
    Mutation {
        rule: 17,
        name: "punch-without-lease",
        what: "holes are punched although somebody has the memory",
        file: LEASED,
        find: "if may == May::Refuse {",
        replace: "if may == May::Refuse && chain.bytes.is_empty() {",
        proof: in_flex("nothing_is_punched_while_another_process_maps_the_ram"),
    },
    Mutation {
        rule: 17,
        name: "old-look",
        what: "the answer to an earlier question renews a lease",
        file: LEASE,
        find: "|given| given.number == number",
        replace: "|given| given.number >= number",
        proof: in_flex("a_lease_of_an_old_look_does_not_count"),
    },
    Mutation {
        rule: 17,
        name: "early-look",
        what: "a look that began before a hole proves its pages",
        file: LEASE,
        find: "self.proven.max(given.punched)",
        replace: "self.proven.max(self.punched.max(given.punched))",
        proof: in_flex("only_a_look_that_began_after_a_hole_says_anything_of_it"),
    },
    Mutation {
        rule: 17,
        name: "newcomer-forgotten",
        what: "what was punched as somebody came is handed back once that is gone",
        file: LEASED,
        find: "self.withhold(tier, proven, who);",
        replace: "let _ = (tier, proven, who);",
        proof: in_flex("what_was_punched_as_somebody_came_stays_out_of_use"),
    },
    Mutation {
        rule: 17,
        name: "later-look",
        what: "a later look proves what was withheld",
        file: LEASED,
        find: "chain.number = u64::MAX;",
        replace: "chain.number = chain.number.max(1);",
        proof: in_flex("what_was_punched_as_somebody_came_stays_out_of_use"),
    },
    Mutation {
        rule: 17,
        name: "newcomer-at-a-stop-forgotten",
        what: "what an undone chain punched is not withheld",
        file: LEASED,
        find: "open.undone = Some(last.number);",
        replace: "self.state.put_unproven(tier, 0, last.number.max(u64::MAX), false);",
        proof: in_flex("somebody_who_came_before_a_ring_was_stopped_is_not_forgotten"),
    },
    Mutation {
        rule: 17,
        name: "undone-refused",
        what: "a chain that was punched and undone is refused before a look has spoken for its pages",
        file: LEASED,
        find: "May::Refuse if open > 0 || self.needs_proof(tier) => {",
        replace: "May::Refuse if open > 0 => {",
        proof: in_flex("a_punched_and_undone_chain_is_not_refused_before_a_pin_check"),
    },
    Mutation {
        rule: 17,
        name: "descriptors",
        what: "who holds the RAM open and does not map it is not seen",
        file: SHARERS_OF_A_PROCESS,
        find: "had.files.entry(file).or_insert(How::Holds);",
        replace: "let _ = (file, How::Holds);",
        proof: in_host("a_process_with_only_a_descriptor_is_seen_until_it_closes_it"),
    },
    Mutation {
        rule: 17,
        name: "unseen-is-nobody",
        what: "a process that cannot be looked at counts as having nothing",
        file: SHARERS,
        find: "(Err(error), process) => self.unseen.push(Unseen {",
        replace: "(Err(error), process) => drop(Unseen {",
        proof: in_host("a_process_that_cannot_be_looked_at_is_not_nobody"),
    },
    Mutation {
        rule: 17,
        name: "forks-and-ends",
        what: "who ended before it was looked at left nothing to a child",
        file: SHARERS,
        find: "if ended == 0 {",
        replace: "if ended < usize::MAX {",
        proof: in_host("a_process_that_forks_and_ends_over_and_over_is_not_nobody"),
    },
    Mutation {
        rule: 17,
        name: "pins-without-mapping",
        what: "a pin by registered buffers ends with the mapping",
        file: "crates/terrace-host/src/process_memory.rs",
        find: "|| target.contains(\"[io_uring]\")",
        replace: "",
        proof: in_host("a_former_holder_counts_while_it_can_pin_without_a_mapping"),
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;
    use std::path::Path;

    use super::super::tree::mutated;
    use super::*;
    use terrace_lab::places;

    #[test]
    fn each_mutation_applies_to_the_tree_as_it_is() {
        for mutation in MUTATIONS {
            let text = fs::read_to_string(places::repository().join(mutation.file)).unwrap();
            let broken = mutated(mutation, &text).unwrap();
            assert_ne!(broken, text, "{}", mutation.name);
        }
    }

    #[test]
    fn a_mutation_that_applies_twice_or_never_is_refused() {
        let Some(mutation) = MUTATIONS.first() else {
            return;
        };
        for times in [0, 2] {
            let error = mutated(mutation, &mutation.find.repeat(times)).unwrap_err();
            assert!(error.to_string().contains("not once"), "{error}");
        }
    }

    #[test]
    fn each_has_a_name_of_its_own_and_a_test_that_exists() {
        let names: BTreeSet<&str> = MUTATIONS.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), MUTATIONS.len());
        for Mutation { proof, .. } in MUTATIONS {
            let package = places::repository().join("crates").join(proof.package);
            let defined = format!("fn {}(", proof.test);
            assert!(holds(&package, &defined), "no test {}", proof.test);
        }
    }

    fn holds(folder: &Path, text: &str) -> bool {
        fs::read_dir(folder).unwrap().any(|entry| {
            let path = entry.unwrap().path();
            if path.is_dir() {
                return holds(&path, text);
            }
            let is_source = path.extension().is_some_and(|extension| extension == "rs");
            is_source && fs::read_to_string(path).unwrap().contains(text)
        })
    }
}
