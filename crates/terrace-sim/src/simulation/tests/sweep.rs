//! The mechanism of docs/add-a-mechanism.md: it is compiled and run here, so that the page stays true.

use super::attached::with;
use crate::base::number::index;
use crate::mechanisms::{Context, Mechanism, Setup, Stage};

// The page has what follows, word by word.
/// Between two sweeps, ns of the full-size machine.
const PERIOD_NS: u64 = 10_000_000;

/// Every 10 ms all pages are looked at: one that was touched in two sweeps in a row goes to fast memory, and one that
/// was not touched makes room for it.
#[derive(Debug)]
pub struct Sweep {
    due_ns: u64,
    touched: Vec<bool>,
    sweeps: u64,
}

impl Sweep {
    /// Nothing was looked at yet.
    pub fn new(setup: &Setup) -> Self {
        Self {
            due_ns: PERIOD_NS,
            touched: vec![false; index(setup.units)],
            sweeps: 0,
        }
    }
}

impl Mechanism for Sweep {
    fn run_quantum(&mut self, context: &mut Context) {
        if context.now_ns() < self.due_ns {
            return;
        }
        let mut cold = Vec::new();
        for unit in 0..context.units() {
            // Looking costs time, whoever looks.
            context.spend(Stage::Track, context.costs().lru_page);
            let young = context.young(unit);
            let again = std::mem::replace(&mut self.touched[index(unit)], young) && young;
            match context.tier(unit) {
                Some(0) if !young => cold.push(unit),
                Some(1) if again => {
                    if context.free(0) == 0
                        && let Some(victim) = cold.pop()
                    {
                        context.migrate_now(victim, 1);
                    }
                    context.migrate_now(unit, 0);
                }
                _ => {}
            }
        }
        // Translations that are cached set no bit: without this, hot pages would seem cold.
        context.flush();
        self.due_ns += PERIOD_NS;
        self.sweeps += 1;
    }

    fn rounds(&self) -> u64 {
        self.sweeps
    }

    fn heap_bytes(&self) -> usize {
        self.touched.len()
    }
}
// To here.

#[test]
fn the_mechanism_of_the_page_brings_hot_pages_to_fast_memory() {
    let load = "kind = \"hotset\", size = \"12MiB\", hot = 0.1, hot_access = 1.0, write = 0.5, duration = \"200ms\"";
    let mut simulation = with(12, load, |setup| Box::new(Sweep::new(setup)));
    while simulation.advance(u64::MAX) {}
    let vm = &simulation.result().vms[0];
    assert!(vm.promoted_pages > 50, "{} promoted", vm.promoted_pages);
    assert!(vm.overhead_s.track > 0.0);
    assert!(simulation.vms[0].answers.rounds() > 10);
}

#[test]
fn the_page_about_mechanisms_has_this_one_word_by_word() {
    let here = include_str!("sweep.rs");
    let page = include_str!("../../../../../docs/add-a-mechanism.md");
    let begin = here.find("/// Between two sweeps").expect("the code");
    let end = here.find("// To here.").expect("its end");
    assert!(
        page.contains(&here[begin..end]),
        "docs/add-a-mechanism.md has another one"
    );
}
