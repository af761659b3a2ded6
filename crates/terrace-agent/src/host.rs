//! The host's instructions, and how the agent follows them.

use terrace_proto::agent::{Budgets, Mode};

use crate::account::Account;
use crate::channel::{Counts, FrameRequests, Instructions, LinkState};
use crate::journal::Journal;
use crate::status::ChannelStatus;

/// The host as the agent sees it.
#[derive(Debug)]
pub struct Host {
    instructions: Instructions,
    channel: ChannelStatus,
}

impl Host {
    /// A host that has said nothing: the agent follows its own configuration.
    #[must_use]
    pub fn new(budgets: Budgets) -> Self {
        Self {
            instructions: own_instructions(budgets),
            channel: ChannelStatus::default(),
        }
    }

    /// The instructions in force.
    #[must_use]
    pub fn instructions(&self) -> &Instructions {
        &self.instructions
    }

    /// State of the channel.
    #[must_use]
    pub fn channel(&self) -> &ChannelStatus {
        &self.channel
    }

    /// Whether the agent neither samples nor moves by itself: it is paused or off, or the host counts accesses.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.instructions.paused || self.instructions.mode != Mode::Guest
    }

    /// Whether the agent moves what the host names.
    #[must_use]
    pub fn names(&self) -> bool {
        !self.instructions.paused && self.instructions.mode == Mode::Coordinated
    }

    /// The frames that the host named since the last call.
    #[must_use]
    pub fn take_frames(&mut self) -> FrameRequests {
        std::mem::take(&mut self.instructions.frames)
    }

    /// Takes in instructions. Returns the budgets if they changed.
    #[must_use]
    pub fn follow(
        &mut self,
        instructions: Instructions,
        epoch: u32,
        account: &mut Account,
    ) -> Option<Budgets> {
        if instructions.mode != self.instructions.mode
            || instructions.paused != self.instructions.paused
        {
            let pause = if instructions.paused { ", paused" } else { "" };
            let who = if instructions.by_host {
                "at the host's instruction"
            } else {
                "by its own configuration"
            };
            let text = format!("mode {}{pause}, {who}", instructions.mode);
            account.journal.tell(epoch, text);
        }
        let before = std::mem::replace(&mut self.instructions, instructions);
        (before.budgets != self.instructions.budgets).then_some(self.instructions.budgets)
    }

    /// Takes in the counters of the host's messages.
    pub fn counted(&mut self, counts: Counts) {
        self.channel.hot_taken = counts.hot_taken;
        self.channel.hot_refused = counts.hot_refused;
    }

    /// Takes in the state of the link; a change goes into the journal.
    pub fn linked(&mut self, state: &LinkState, epoch: u32, journal: &mut Journal) {
        let word = match state {
            LinkState::Down(_) => "absent",
            LinkState::Greeting => "greeting",
            LinkState::Welcomed(_) => "connected",
            LinkState::Refused(_) => "refused",
            LinkState::Silent => "silent",
        };
        let before = std::mem::replace(&mut self.channel.state, word.into());
        self.channel.detail = state.to_string();
        if before != self.channel.state {
            journal.tell(epoch, self.channel.detail.clone());
        }
    }
}

/// The orders of an agent without a host.
#[must_use]
pub fn own_instructions(budgets: Budgets) -> Instructions {
    Instructions {
        by_host: false,
        mode: Mode::Guest,
        paused: false,
        budgets,
        frames: FrameRequests::default(),
    }
}
