//! Tests of the reports that a mechanism gets in a run.

use std::path::Path;

use crate::mechanisms::attached::Attached;
use crate::mechanisms::{Context, Mechanism, MigrationMode, Moved, Setup, Unit};
use crate::scenario::Scenario;
use crate::simulation::{Options, Simulation};

const PAGES: Unit = 8;

/// A mechanism that sends pages down, and checks after each quantum that each page that is there was reported to it.
struct Watcher {
    reported: u64,
    sent: bool,
}

impl Mechanism for Watcher {
    fn run_quantum(&mut self, context: &mut Context) {
        if !std::mem::replace(&mut self.sent, true) {
            let down: Vec<(Unit, u8)> = (0..PAGES).map(|unit| (unit, 1)).collect();
            return context.submit(&down, MigrationMode::Transaction);
        }
        let down = (0..PAGES).filter(|unit| context.tier(*unit) == Some(1));
        assert_eq!(down.count() as u64, self.reported);
        assert_eq!(context.migrating(), u64::from(PAGES) - self.reported);
    }

    fn moved(&mut self, _: &mut Context, moved: &[Moved]) {
        self.reported += moved.len() as u64;
    }

    fn rounds(&self) -> u64 {
        self.reported
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}

#[test]
fn a_page_is_told_of_in_the_quantum_in_which_it_arrives() {
    let load = "kind = \"sequential\", size = \"8MiB\", hot = 1.0, write = 0.0, period = \"1h\", duration = \"1ms\"";
    let watcher = Watcher {
        reported: 0,
        sent: false,
    };
    let mut simulation = with(8, load, |_| Box::new(watcher));
    while simulation.advance(u64::MAX) {}
    assert_eq!(simulation.vms[0].answers.rounds(), u64::from(PAGES));
}

/// A guest with 8 MiB in each tier and a load of `mib`, whose pages this mechanism places.
pub fn with(mib: u32, load: &str, begin: impl FnOnce(&Setup) -> Box<dyn Mechanism>) -> Simulation {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nsmall_vms = \"allow\"\nvcpus_per_vm = 2\n[[vm]]\nname = \"a\"\n\
         fast = \"8MiB\"\nslow = \"8MiB\"\npolicy = \"autonuma\"\nworkload = {{ {load} }}\n"
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s")).expect("valid");
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    let vm = &mut simulation.vms[0];
    let first = vm.space.second.first_data();
    let setup = Setup::of_units(mib << 8);
    let attached = Attached::new(begin(&setup), setup, first, [2048, 2048, 0, 0]);
    vm.answers.placer = Some(Box::new(attached));
    simulation
}
