//! The agent's memory of recent events, for `status`.

use std::collections::VecDeque;

/// Sentences that are remembered.
const MAX_LINES: usize = 64;

/// Recent events in words.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    lines: VecDeque<(u32, String)>,
}

impl Journal {
    /// Remembers a sentence, and logs it.
    pub fn tell(&mut self, epoch: u32, text: String) {
        tracing::info!("epoch {epoch}: {text}");
        self.remember(epoch, text);
    }

    /// Remembers a sentence, and logs it as a warning.
    pub fn warn(&mut self, epoch: u32, text: String) {
        tracing::warn!("epoch {epoch}: {text}");
        self.remember(epoch, text);
    }

    fn remember(&mut self, epoch: u32, text: String) {
        if self.lines.len() == MAX_LINES {
            self.lines.pop_front();
        }
        self.lines.push_back((epoch, text));
    }

    /// Remembers and logs a sentence, unless it is remembered already.
    pub fn tell_once(&mut self, epoch: u32, text: String) {
        if !self.lines.iter().any(|(_, line)| *line == text) {
            self.tell(epoch, text);
        }
    }

    /// The sentences that are remembered, oldest first, each with its epoch.
    pub fn lines(&self) -> impl Iterator<Item = (u32, &str)> {
        self.lines.iter().map(|(epoch, text)| (*epoch, &text[..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_keeps_the_newest() {
        let mut journal = Journal::default();
        (0..100).for_each(|epoch| journal.tell(epoch, epoch.to_string()));
        assert_eq!(journal.lines.len(), MAX_LINES);
        assert_eq!(journal.lines.back().unwrap().0, 99);
        journal.tell_once(101, "99".into());
        assert_eq!(journal.lines.back().unwrap().0, 99);
    }
}
