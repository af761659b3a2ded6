//! Whether a guest does what its counts say.
//!
//! A guest that moved a page left its frame: nothing is there any more, or something cold. If the frames that were named are
//! accessed as before, and the first tier takes no greater part of the accesses, then nothing was moved, whatever was counted.
//! Such a guest is named fewer frames each time, and in the end the host moves the pages by itself.

use terrace_proto::snapshot::Worth;
use terrace_proto::{MoveStatus, Tick, TierId};

use super::{Stand, Vm};
use crate::engine::moves::Flight;

/// Most frames of a plan (HMvisor §3.2.1); half as many after each round without effect.
const MOST_NAMED: u64 = 1024;
/// Rounds without effect after which the host moves pages.
const PATIENCE: u8 = 4;
/// Frames that say something about a guest.
const ENOUGH: u64 = 32;
/// Named frames of a round that are looked at afterwards.
const CHECKED: usize = 4096;
/// How much the first tier's part of the accesses has to rise, thousandths.
const RISE: u128 = 10;

/// The answers of a guest since its pages were ranked last, and how it did before.
#[derive(Debug, Default)]
pub(super) struct Doubt {
    /// Frames that were named for the first tier, and how often each had been accessed.
    named: Vec<(u32, u8)>,
    /// Frames that the guest counted as moved up.
    claimed: u64,
    /// Frames that were named, and those that were counted in neither way.
    asked: u64,
    unanswered: u64,
    /// The accesses by which they were chosen.
    before: Worth,
    /// Rounds without effect, one after the other.
    rounds: u8,
}

/// A round's verdict on a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Judgement {
    /// Too little to say.
    Nothing,
    /// Pages left the frames that were named.
    Moved,
    /// Frames that it counts as moved are accessed as before.
    Unmoved { claimed: u64, accessed: u64 },
    /// Frames are not counted at all.
    Silent { asked: u64 },
}

impl Doubt {
    /// How a guest did before, without the answers that were not judged yet. One that was found out, and is back without an operator's
    /// word, has one round to show that it moves pages.
    pub fn of_before(&self) -> Self {
        Self {
            rounds: self.rounds.min(PATIENCE - 1),
            ..Self::default()
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.named.capacity() * size_of::<(u32, u8)>()
    }
}

impl Vm {
    /// Most frames of one plan; without a bound if the host moves pages.
    pub fn most_named(&self) -> u64 {
        match self.moves_by_guest() {
            true => (MOST_NAMED >> self.moving.by_guest.doubt.rounds).max(1),
            false => u64::MAX,
        }
    }

    /// Takes in what the guest's counts say of a frame, before the frame is forgotten.
    pub fn note_answer(&mut self, flight: Flight, status: MoveStatus) {
        let heat = self.pages.reads.get(flight.unit as usize).copied();
        let doubt = &mut self.moving.by_guest.doubt;
        doubt.asked += 1;
        doubt.unanswered += u64::from(status == MoveStatus::NotTried);
        if flight.to == TierId::FAST {
            doubt.claimed += u64::from(status == MoveStatus::Moved);
            if doubt.named.len() < CHECKED {
                doubt.named.push((flight.unit, heat.unwrap_or(0)));
            }
        }
    }

    /// Judges a guest by the accesses of the windows after its moves. Returns whether the host takes over by that.
    pub fn judge_guest(&mut self, now: Tick, worth: &Worth) -> bool {
        if !self.moves_by_guest() {
            return false;
        }
        let judgement = self.judgement(worth);
        let doubt = &mut self.moving.by_guest.doubt;
        let rounds = match judgement {
            Judgement::Nothing => doubt.rounds,
            Judgement::Moved => 0,
            Judgement::Unmoved { .. } | Judgement::Silent { .. } => doubt.rounds + 1,
        };
        *doubt = Doubt {
            before: *worth,
            rounds,
            ..Doubt::default()
        };
        let Some(what) = judgement.text() else {
            return false;
        };
        if rounds < PATIENCE {
            let most = self.most_named();
            let text = format!("{what}; at most {most} frames at once are named from now on");
            self.history.say(now, text);
            return false;
        }
        let why = format!("{what}, {PATIENCE} times in a row");
        let text = format!(
            "the host moves its pages: {why} (terrace resume {} has the guest tried again)",
            self.name
        );
        self.end_by_guest(now, Stand::Refused(why), &text);
        true
    }

    fn judgement(&self, now: &Worth) -> Judgement {
        let doubt = &self.moving.by_guest.doubt;
        if doubt.asked >= ENOUGH && doubt.unanswered * 2 > doubt.asked {
            return Judgement::Silent { asked: doubt.asked };
        }
        if doubt.claimed < ENOUGH {
            return Judgement::Nothing;
        }
        let named = doubt.named.len() as u64;
        let claimed = doubt.claimed.min(named);
        let as_before = doubt.named.iter().filter(|(unit, heat)| {
            let now = self.pages.reads.get(*unit as usize).copied().unwrap_or(0);
            now > 0 && now >= heat / 2 && self.pages.known(*unit)
        });
        let accessed = as_before.count() as u64;
        // Those that it did not claim stay, rightly.
        let is_unmoved = accessed > (named - claimed) + claimed / 2;
        match is_unmoved && !rose(&doubt.before, now) {
            true => Judgement::Unmoved { claimed, accessed },
            false => Judgement::Moved,
        }
    }
}

impl Judgement {
    fn text(self) -> Option<String> {
        match self {
            Self::Nothing | Self::Moved => None,
            Self::Unmoved { claimed, accessed } => Some(format!(
                "its guest counts {claimed} frames as moved to fast memory, but {accessed} of those that were named are accessed \
                 as before, and fast memory takes no more of the accesses"
            )),
            Self::Silent { asked } => Some(format!(
                "its guest does not say what became of most of the {asked} frames that were named"
            )),
        }
    }
}

/// Whether the first tier takes a greater part of the accesses than before.
fn rose(before: &Worth, now: &Worth) -> bool {
    let thousandths = |worth: &Worth| {
        let fast = u128::from(worth.fast_accesses) * 1000;
        fast / u128::from(worth.accesses).max(1)
    };
    thousandths(now) >= thousandths(before) + RISE
}
