//! The outcome of the epochs: sums, and the sentences about them in the journal.

use std::collections::BTreeMap;

use terrace_proto::ranges::{EpochSummary, Exchanged, FRAMES, Stopped, Swap};

use crate::frames::{IndexSize, NotMoved};
use crate::journal::Journal;
use crate::programs::Programs;
use crate::sampler::Drained;

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Totals {
    /// Pages that came into the first tier.
    pub promoted_pages: u64,
    /// Pages that left it.
    pub demoted_pages: u64,
    /// Pages that could not be moved because they were in use.
    pub busy_pages: u64,
    /// Pages that could not be moved for other reasons.
    pub failed_pages: u64,
    /// Pages that were exchanged in place, both of each pair.
    pub swapped_pages: u64,
    /// Samples that the kernel dropped.
    pub lost_samples: u64,
    /// Records that made no sense.
    pub malformed_samples: u64,
    /// Epochs since a page last moved.
    pub quiet_epochs: u32,
    /// Frames that the host named and the agent moved.
    pub frames_taken: u64,
    /// Frames that the host named and the agent left in place.
    pub frames_refused: NotMoved,
    /// Frames that were named last, and the time that looking them up and moving them took, ns.
    pub frames_last: (u64, u64),
}

/// The outcome of the epochs so far.
#[derive(Debug, Default)]
pub struct Account {
    /// Sums since the start.
    pub totals: Totals,
    /// The latest events.
    pub journal: Journal,
    /// The reason why pages cannot be exchanged in place, if they cannot.
    pub no_swaps: Option<String>,
    /// The reason why pages cannot be moved by their frame numbers, if they cannot.
    pub no_migrate: Option<String>,
    /// The reason why the last exchange ended early, if it did.
    pub stopped: Option<Stopped>,
    /// The kernel's words by process, if it refused in this epoch to move pages.
    refused: BTreeMap<u32, String>,
}

impl Account {
    /// An account of no epoch yet. The arguments say why pages cannot be exchanged in place or moved by their frame
    /// numbers, if they cannot.
    #[must_use]
    pub fn new(no_swaps: Option<String>, no_migrate: Option<String>) -> Self {
        Self {
            no_swaps,
            no_migrate,
            ..Self::default()
        }
    }

    /// Takes in that the kernel refused to move pages of a process, in these words.
    pub fn record_refusal(&mut self, process: u32, text: String) {
        self.refused.insert(process, text);
    }

    /// Takes in an exchange in place: pairs that changed places, and the kernel's words if it refused.
    pub fn swapped(&mut self, swap: &Swap, pairs: u64, refused: Option<String>) {
        self.totals.swapped_pages += 2 * pairs;
        if let Some(text) = refused {
            self.record_refusal(swap.up.process, text.clone());
            self.record_refusal(swap.down.process, text);
        }
    }

    /// Takes in what came of frames that the host named: how many moved, and why others did not. The index may lack pages of
    /// managed processes.
    pub fn named(&mut self, epoch: u32, taken: u64, left: NotMoved, index: IndexSize) {
        self.totals.frames_taken += taken;
        self.totals.frames_refused.add(left);
        self.totals.frames_last.0 = taken + left.all();
        if index.left_out > 0 {
            self.journal.tell_once(
                epoch,
                "some pages of managed processes are not in the index of frames: if the host names them they may stay \
                 (`terrace-agent status` has how many, and the limit)"
                    .into(),
            );
        }
        if left.all() > taken {
            self.journal.tell_once(
                epoch,
                "most pages that the host names stay: `terrace-agent status` has the reasons"
                    .into(),
            );
        }
    }

    /// Counts the samples that a source lost.
    pub fn count_losses(&mut self, drained: Drained) {
        self.totals.lost_samples += drained.lost;
        self.totals.malformed_samples += drained.malformed;
    }

    /// Takes in the summary of an epoch.
    pub fn epoch_over(&mut self, summary: &EpochSummary, programs: &Programs) {
        let refused = std::mem::take(&mut self.refused);
        let exchanged = summary.exchanged.as_ref();
        self.stopped = exchanged.and_then(|exchanged| exchanged.stopped);
        let moved = exchanged.map_or(0, |exchanged| exchanged.promoted + exchanged.demoted);
        self.totals.quiet_epochs = if moved > 0 {
            0
        } else {
            self.totals.quiet_epochs + 1
        };
        let Some(exchanged) = exchanged else {
            return;
        };
        if let Some(why) = refused.get(&FRAMES) {
            let text = format!("the guest module did not move frames: {why}");
            self.journal.tell_once(summary.epoch, text);
        }
        for pid in &exchanged.refused {
            if let (Some(managed), Some(why)) = (programs.get(*pid), refused.get(pid)) {
                let text = format!(
                    "{}: its pages stay where they are for a while: {why}",
                    managed.name
                );
                self.journal.tell(summary.epoch, text);
            }
        }
        self.count(summary.epoch, exchanged);
    }

    fn count(&mut self, epoch: u32, exchanged: &Exchanged) {
        let totals = &mut self.totals;
        totals.promoted_pages += exchanged.promoted;
        totals.demoted_pages += exchanged.demoted;
        totals.busy_pages += exchanged.busy;
        totals.failed_pages += exchanged.failed;
        let mut text = format!(
            "{} pages up, {} down",
            exchanged.promoted, exchanged.demoted
        );
        if let Some(stopped) = &exchanged.stopped {
            text.push_str(&format!("; ended early: {stopped}"));
            if let (Stopped::BothFull, Some(why)) = (stopped, &self.no_swaps) {
                text.push_str(&format!(", and pages cannot be exchanged in place: {why}"));
            }
        }
        if exchanged.promoted + exchanged.demoted > 0 {
            self.journal.tell(epoch, text);
        } else {
            self.journal.tell_once(epoch, text);
        }
    }
}
