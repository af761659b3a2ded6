//! What the host wishes, and what becomes of it.

use terrace_proto::agent::{Budgets, Mode};

use crate::account::Account;
use crate::channel::{FrameWishes, LinkState, Wishes};
use crate::journal::Journal;
use crate::status::ChannelStatus;

/// The host as the agent hears it.
#[derive(Debug)]
pub struct Host {
    wishes: Wishes,
    channel: ChannelStatus,
}

impl Host {
    /// A host that has said nothing: the agent goes by its own configuration.
    #[must_use]
    pub fn new(budgets: Budgets) -> Self {
        Self {
            wishes: own_wishes(budgets),
            channel: ChannelStatus::default(),
        }
    }

    /// What is followed now.
    #[must_use]
    pub fn wishes(&self) -> &Wishes {
        &self.wishes
    }

    /// How the channel is.
    #[must_use]
    pub fn channel(&self) -> &ChannelStatus {
        &self.channel
    }

    /// Neither samples nor moves: paused, off, or the host counts accesses itself.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.wishes.paused || self.wishes.mode != Mode::Guest
    }

    /// Takes in wishes; the budgets, if they are others than before.
    #[must_use]
    pub fn wish(&mut self, wishes: Wishes, epoch: u32, account: &mut Account) -> Option<Budgets> {
        let frames = wishes.frames.promote.len() + wishes.frames.demote.len();
        if frames > 0 {
            account.totals.frames_refused += frames as u64;
            account.journal.tell_once(
                epoch,
                "the host names frames, which this agent cannot move: they stay where they are \
                 (moving by frame takes a module in the guest's kernel)"
                    .into(),
            );
        }
        if wishes.mode != self.wishes.mode || wishes.paused != self.wishes.paused {
            let pause = if wishes.paused { ", paused" } else { "" };
            let who = if wishes.by_host {
                "the host wishes"
            } else {
                "by its own configuration"
            };
            let words = format!("mode {}{pause}, {who}", wishes.mode);
            account.journal.tell(epoch, words);
        }
        let before = std::mem::replace(&mut self.wishes, wishes);
        (before.budgets != self.wishes.budgets).then_some(self.wishes.budgets)
    }

    /// Takes in how the link is; a change is told.
    pub fn linked(&mut self, state: &LinkState, epoch: u32, journal: &mut Journal) {
        let word = match state {
            LinkState::Down(_) => "absent",
            LinkState::Greeting => "greeting",
            LinkState::Welcomed(_) => "connected",
            LinkState::Refused(_) => "refused",
            LinkState::Silent => "silent",
        };
        let before = std::mem::replace(
            &mut self.channel,
            ChannelStatus {
                state: word.into(),
                detail: state.to_string(),
            },
        );
        if before.state != self.channel.state {
            journal.tell(epoch, self.channel.detail.clone());
        }
    }
}

/// What an agent without a host does.
#[must_use]
pub fn own_wishes(budgets: Budgets) -> Wishes {
    Wishes {
        by_host: false,
        mode: Mode::Guest,
        paused: false,
        budgets,
        frames: FrameWishes::default(),
    }
}
