//! Migrations of pages that a mechanism sent to other tiers.

use terrace_proto::PageBitmap;

use super::traps::take;
use crate::base::side::Side;
use crate::host::migration::{Memory, Migration, MigrationMode, Wanted, Way};
use crate::host::vm::Vm;
use crate::mechanisms::{Moved, Unit};

/// Pages unmapped together to change places: few, because an access to one waits for all of them.
const EXCHANGE_BATCH: usize = 32;

/// Migrations in flight, and the threads that make them.
#[derive(Debug)]
pub(super) struct Migrations {
    /// Pages under migration, and their number.
    migrating: PageBitmap,
    under_way: u64,
    running: Vec<Migration>,
    /// Number of threads that move pages; each takes a migration, the oldest first.
    movers: usize,
    /// Pages that the threads unmap together; `None`: the kernel's usual number.
    batch: Option<usize>,
}

impl Migrations {
    /// Migrations of so many units, none of which migrates.
    pub(super) fn new(units: u32) -> Self {
        Self {
            migrating: PageBitmap::new(u64::from(units)),
            under_way: 0,
            running: Vec::new(),
            movers: 1,
            batch: None,
        }
    }

    /// Sets how many threads move pages.
    pub(super) fn set_movers(&mut self, threads: usize) {
        self.movers = threads.max(1);
    }

    /// Sets how many pages are unmapped together.
    pub(super) fn set_batch(&mut self, pages: usize) {
        self.batch = Some(pages);
    }

    /// Whether a page is being migrated.
    pub(super) fn has(&self, unit: Unit) -> bool {
        self.migrating.get(u64::from(unit))
    }

    /// Number of units under migration.
    pub(super) fn under_way(&self) -> u64 {
        self.under_way
    }

    /// Puts a page on the next migration.
    pub(super) fn board(&mut self, unit: Unit) {
        self.migrating.set(u64::from(unit));
        self.under_way += 1;
    }

    /// Begins a migration; `usual` is the kernel's batch.
    pub(super) fn begin(
        &mut self,
        wanted: Vec<Wanted>,
        kind: MigrationMode,
        side: Side,
        usual: usize,
    ) {
        let batch = self.batch.unwrap_or(match kind {
            MigrationMode::Exchange => EXCHANGE_BATCH,
            MigrationMode::Transaction => 1,
            _ => usual,
        });
        let way = Way { kind, side, batch };
        self.running.push(Migration::new(wanted, way));
    }

    /// Lets each mover work for `ps`; returns the time that they spent, ps, and the pages that arrived. `unit_of`
    /// gives the load's unit behind one of the second stage.
    pub(super) fn go_on(
        &mut self,
        vm: &mut Vm,
        memory: &mut Memory,
        ps: u64,
        unit_of: impl Fn(u32) -> Unit,
    ) -> (u64, Vec<Moved>) {
        let (mut spent, mut moved) = (0, Vec::new());
        let mut at = 0;
        for _ in 0..self.movers {
            let Some(migration) = self.running.get_mut(at) else {
                break;
            };
            let before = migration.spent();
            let done = migration.work(vm, memory, ps);
            spent += migration.spent() - before;
            // A page is reported before a vCPU can reach it in its new place.
            while let Some((wanted, outcome)) = migration.next_known() {
                let (unit, to) = (unit_of(wanted.unit), wanted.to.0);
                self.under_way -= u64::from(take(&mut self.migrating, unit));
                moved.push(Moved { unit, to, outcome });
            }
            if done {
                self.running.remove(at);
            } else {
                at += 1;
            }
        }
        (spent, moved)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.migrating.heap_bytes()
    }
}
