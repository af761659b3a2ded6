//! Whether a provider answers: when something was last heard of it, and whether it hangs.

use terrace_proto::Tick;

use super::config::ProvisionConfig;

/// The silence of a provider.
#[derive(Debug)]
pub(super) struct Liveness {
    /// Whether nothing was heard yet, and no request came: the provider is not shown.
    is_quiet: bool,
    /// The time when something was last heard of the provider.
    heard: Tick,
    /// Whether it was said that the provider hangs.
    is_said: bool,
}

impl Liveness {
    /// A provider that counts as heard of now. `is_quiet`: no request waits for it.
    pub fn new(now: Tick, is_quiet: bool) -> Self {
        Self {
            is_quiet,
            heard: now,
            is_said: false,
        }
    }

    /// Whether nothing was heard yet, and no request came.
    pub fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Whether the provider hangs.
    pub fn is_silent(&self) -> bool {
        self.is_said
    }

    /// The time for which nothing was heard, s.
    pub fn silent_s(&self, now: Tick) -> u64 {
        now.since(self.heard).as_secs()
    }

    /// Takes in that something was heard of the provider, or that a request wants it.
    pub fn heard_of(&mut self, now: Tick) {
        self.heard = now;
        self.is_quiet = false;
    }

    /// Takes in that the provider answers, and returns whether it was said before that it does not.
    pub fn answers(&mut self, now: Tick) -> bool {
        self.heard_of(now);
        std::mem::take(&mut self.is_said)
    }

    /// The time at which the provider counts as hung if nothing is heard until then; `None` if it is quiet, or was
    /// said to hang already.
    pub fn hangs_at(&self, config: &ProvisionConfig) -> Option<Tick> {
        // One that no request waits for is not missed, and one that was said to hang is not said to again.
        let may = !self.is_quiet && !self.is_said;
        may.then(|| self.heard.after(config.idle() + config.patience()))
    }

    /// Whether the provider hangs from now on.
    pub fn watch(&mut self, now: Tick, config: &ProvisionConfig) -> bool {
        let hangs = self.hangs_at(config).is_some_and(|at| at <= now);
        self.is_said |= hangs;
        hangs
    }
}
