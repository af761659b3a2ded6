//! Scans and their cost: by the live scanner on simulated tables, or of the second stage's bits.

use terrace_core::policy::Observe;
use terrace_proto::{
    PageBitmap, PartAnswer, PartRequest, Rearm, ScanAnswer, ScanRequest, ScanStats,
};

use super::vm::Vm;
use crate::base::number::low;
use crate::machine::costs::Costs;
use crate::machine::second_stage::bits;

/// Makes a scan; returns its answer and the time that it took, ps. The bits are read and cleared at once, at the
/// scan's start.
pub fn scan(vm: &mut Vm, request: &ScanRequest, costs: &Costs) -> (ScanAnswer, u64) {
    let observe = vm.stages.map(|stages| stages.observe);
    if observe != Some(Observe::PmlLog) {
        // Moves by pre-copy have a log too, which is not read here.
        drop(vm.space.pml.take());
    }
    match observe {
        Some(Observe::EptScan) => second_stage(vm, request, costs),
        Some(Observe::PmlLog) => logged_tables(vm, request, costs),
        _ => {
            let answer = guest_tables(vm, request);
            let ps = leaves_ps(&answer.stats, costs);
            (answer, ps)
        }
    }
}

/// Makes a scan of a part of the guest's tables; returns its answer and the time that it took, ps.
pub fn scan_part(vm: &mut Vm, request: &PartRequest, costs: &Costs) -> (PartAnswer, u64) {
    drop(vm.space.pml.take());
    let (memory, paging) = vm.space.guest.memory();
    let roots = [paging.root()];
    let always = |_| true;
    let answer = vm
        .scanner
        .scan_part(memory, paging, &roots, request, always);
    let ps = leaves_ps(&answer.stats, costs);
    (answer, ps)
}

fn guest_tables(vm: &mut Vm, request: &ScanRequest) -> ScanAnswer {
    let (memory, paging) = vm.space.guest.memory();
    vm.scanner.scan(memory, paging, &[paging.root()], request)
}

/// The time of the live scanner, ps, from measured times per entry.
fn leaves_ps(stats: &ScanStats, costs: &Costs) -> u64 {
    stats.leaves * costs.scan_leaf
        + stats.accessed * (costs.scan_accessed - costs.scan_leaf)
        + stats.tables * costs.scan_table
}

fn shoot_down(vm: &mut Vm, costs: &Costs) -> u64 {
    let before = vm.space.counts.exits;
    let ps = vm.shoot_down(costs);
    vm.space.counts.scan_exits += vm.space.counts.exits - before;
    ps
}

/// Scans as vTMM does: of the guest's tables only those in the log are read, and the translations of re-armed pages
/// are flushed, so that the processor sets bits (and logs) anew.
fn logged_tables(vm: &mut Vm, request: &ScanRequest, costs: &Costs) -> (ScanAnswer, u64) {
    let mut answer = guest_tables(vm, request);
    let mut frames = vm.space.pml.take();
    for vcpu in &mut vm.vcpus {
        frames.extend(vcpu.mmu().drain_pml());
    }
    let first_data = vm.space.guest.first_data();
    frames.retain(|frame| *frame < first_data);
    frames.sort_unstable();
    frames.dedup();
    for frame in &frames {
        let unit = vm.space.second.unit_of(*frame);
        vm.space.second.lower(unit, bits::DIRTY);
    }
    let tables = frames.len() as u64;
    let read = ScanStats {
        leaves: answer.stats.leaves.min(tables * 512),
        tables,
        ..answer.stats
    };
    let mut ps = leaves_ps(&read, costs);
    answer.stats = read;
    if request.rearm != Rearm::None {
        ps += shoot_down(vm, costs);
    }
    (answer, ps)
}

/// Scans A and D of everything that the second stage maps (vTMM's "EPT scanner").
fn second_stage(vm: &mut Vm, request: &ScanRequest, costs: &Costs) -> (ScanAnswer, u64) {
    let frames = vm.space.guest.frames();
    let mut answer = ScanAnswer {
        id: request.id,
        space: request.space,
        known: PageBitmap::new(frames),
        accessed: PageBitmap::new(frames),
        written: Some(PageBitmap::new(frames)),
        huge_leaf: PageBitmap::new(frames.div_ceil(512)),
        stats: ScanStats::default(),
    };
    let second = &mut vm.space.second;
    let pages = second.pages_per_unit();
    // The guest's tables are left out: they come on top of the VM's sizes and stay where they are.
    for unit in second.first_data()..second.len() {
        let state = second.get(unit);
        if state & (bits::ABSENT | bits::UNFILLED | bits::UNMAPPED) != 0 {
            continue;
        }
        let first = second.first_frame(unit).0;
        let count = pages.min(frames - first);
        answer.known.set_range(first, count);
        answer.stats.leaves += 1;
        if state & bits::ACCESSED != 0 {
            answer.accessed.set_range(first, count);
            answer.stats.accessed += 1;
        }
        if state & bits::DIRTY != 0
            && let Some(written) = &mut answer.written
        {
            written.set_range(first, count);
        }
        let rearm = match &request.rearm {
            Rearm::None => false,
            Rearm::All => true,
            Rearm::Only(only) => (first..first + count).any(|page| only.get(page)),
        };
        if rearm && state & (bits::ACCESSED | bits::DIRTY) != 0 {
            second.lower(unit, bits::ACCESSED | bits::DIRTY);
            answer.stats.cleared += 1;
        }
    }
    answer.stats.tables = u64::from(low(u64::from(second.len()).div_ceil(512)));
    let mut ps = leaves_ps(&answer.stats, costs);
    if answer.stats.cleared > 0 {
        ps += shoot_down(vm, costs);
    }
    (answer, ps)
}
