//! The memory of a guest as its kernel first has it: free frames, nodes, and the swap device.

use terrace_proto::{PAGE_SIZE, PAGES_PER_HUGE};

use super::RunError;
use crate::base::number::low;
use crate::guest::reclaim::Reclaim;
use crate::guest::zones::Zones;
use crate::host::placer::Answers;
use crate::host::provision::Provisioned;
use crate::host::start::Tables;
use crate::machine::space::Space;
use crate::machine::tables::Guest;
use crate::scenario::{self, Scenario};

/// The units of each tier that the load gets at first of a guest that a device sizes, and the guest's kernel, if that swaps.
pub(super) fn first_memory(
    spec: &scenario::Vm,
    scale: u64,
    device: &Provisioned,
    space: &mut Space,
) -> (Vec<u64>, Option<Reclaim>) {
    let (tables, unit) = (counted_tables(spec, space), space.second.pages_per_unit());
    let most = device.given().iter().sum::<u64>().saturating_sub(tables);
    let pages = space.guest.pages().next_multiple_of(unit);
    let fit = device.fit(pages.min(most) + tables);
    let fit = fit.iter().map(|pages| pages / unit).collect();
    let reclaim = spec.has_nodes().then(|| {
        let mut reclaim = Reclaim::sized(device.zones(), swap(spec, scale));
        reclaim.take_in_spare(space);
        // Its program fills the memory that there is at first; the rest it has not touched.
        let untouched = low(most.min(space.guest.pages()));
        reclaim.release(space, untouched);
        reclaim
    });
    (fit, reclaim)
}

/// Pages of the guest's tables that count within the VM's sizes.
pub(super) fn counted_tables(spec: &scenario::Vm, space: &Space) -> u64 {
    match spec.initial.tables {
        Tables::Along => match space.second.pages_per_unit() {
            1 => u64::from(space.guest.table_frames()),
            pages => u64::from(space.second.tables()) * pages,
        },
        Tables::First | Tables::Slow => 0,
    }
}

/// Sets up the guest's kernel if the guest lacks memory, or if its programs free theirs.
pub(super) fn begin_programs(
    scenario: &Scenario,
    spec: &scenario::Vm,
    space: &mut Space,
    answers: &mut Answers,
) -> Result<(), RunError> {
    let scale = scenario.machine.scale;
    let (pages, ram) = (space.guest.pages(), ram(spec, scale));
    let first = spec.workload.first_program(scale, &scenario.folder);
    let first = first.map_err(|error| RunError(error.to_string()))?;
    let short = pages > ram || !spec.shortage.balloon.is_empty();
    if answers.reclaim.is_none() && (short || first.is_some()) {
        let spare = ram.saturating_sub(pages);
        answers.reclaim = Some(Reclaim::new(spare, swap(spec, scale)));
    }
    if let (Some(reclaim), Some(first)) = (&mut answers.reclaim, first) {
        // Later programs' pages are nowhere yet.
        reclaim.release(space, low(first));
    }
    Ok(())
}

/// 4 KiB pages of the guest's swap device, as simulated.
pub(super) fn swap(spec: &scenario::Vm, scale: u64) -> u64 {
    spec.shortage.swap / scale / PAGE_SIZE
}

/// 4 KiB pages of a VM's memory, as simulated; of the most that a guest which swaps can be given.
pub(super) fn ram(spec: &scenario::Vm, scale: u64) -> u64 {
    let nodes = spec.provision.as_ref().filter(|_| spec.has_nodes());
    let bytes = nodes.map_or(spec.bytes(), |provision| provision.nodes.iter().sum());
    bytes / scale / PAGE_SIZE
}

/// Blocks of 2 MiB of a guest that its load and its page tables leave free; at most half as many as the load has.
pub(super) fn spare_blocks(pages: u64, ram: u64) -> Result<u64, RunError> {
    let tables = pages.div_ceil(PAGES_PER_HUGE) + pages.div_ceil(PAGES_PER_HUGE.pow(2)) + 2;
    let load = pages.next_multiple_of(PAGES_PER_HUGE) + tables.next_multiple_of(PAGES_PER_HUGE);
    let blocks = ram.saturating_sub(load) / PAGES_PER_HUGE;
    let most = pages.div_ceil(PAGES_PER_HUGE).div_ceil(2);
    match blocks.min(most) {
        0 => Err(RunError(
            "gpac gathers into memory that the load does not use, and there is none: make the VM larger than its load"
                .into(),
        )),
        blocks => Ok(blocks),
    }
}

/// The kernel of a guest that moves pages between nodes which no device sizes: they are as large as `fit` says, in pages.
pub(super) fn of_own_nodes(
    spec: &scenario::Vm,
    scale: u64,
    fit: &[u64],
    space: &mut Space,
) -> Reclaim {
    space.quota.limit_to(fit);
    let nodes = std::array::from_fn(|tier| fit.get(tier).copied().unwrap_or(0));
    let mut reclaim = Reclaim::sized(Zones::new(nodes, scale), swap(spec, scale));
    reclaim.take_in_spare(space);
    reclaim
}

/// Frames of a guest that its load and its page tables leave free.
pub(super) fn spare_frames(
    spec: &scenario::Vm,
    guest: &Guest,
    scale: u64,
) -> Result<u64, RunError> {
    let tables = match spec.initial.tables {
        Tables::Along => u64::from(guest.table_frames()),
        Tables::First | Tables::Slow => 0,
    };
    let load = guest.frames() - u64::from(guest.first_data());
    let spare = ram(spec, scale).saturating_sub(load + tables);
    match spare {
        0 if spec.provision.is_none() => Err(RunError(
            "a guest moves pages by way of free memory, and its load leaves it none: make the VM larger than its load, or \
             set move = \"linux\""
                .into(),
        )),
        spare => Ok(spare),
    }
}
