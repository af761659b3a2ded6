//! Hot pages that are named to guests that gather.

use std::time::Duration;

use terrace_api::types::NamedHot;
use terrace_core::engine::HotPages;
use terrace_proto::Tick;
use terrace_proto::agent::Gather;

/// Least time between two sets for one guest: a set is four messages at most, and an agent takes 64 a second.
const PAUSE: Duration = Duration::from_secs(1);

/// A guest that gathers, and what was named to it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Gathers {
    said: Option<(Tick, NamedHot)>,
}

impl Gathers {
    /// The pages that were named last.
    pub fn last(self) -> Option<NamedHot> {
        self.said.map(|(_, named)| named)
    }

    /// Whether a round's pages are to be named now.
    pub fn is_due(self, now: Tick) -> bool {
        self.said.is_none_or(|(at, _)| now.since(at) >= PAUSE)
    }

    /// The messages that name a round's hot pages; none if they were named already. A later set has a greater generation, whichever
    /// guest it is for.
    pub fn name(&mut self, now: Tick, generation: &mut u64, hot: &HotPages) -> Vec<Gather> {
        if self.last().is_some_and(|named| named.round == hot.round) {
            return Vec::new();
        }
        *generation += 1;
        let counted = u64::try_from(now.since(hot.began).as_millis()).unwrap_or(u64::MAX);
        let set = Gather::set(*generation, counted, &hot.named);
        let named = NamedHot {
            round: hot.round,
            named_pages: hot.named.len() as u64,
            hot_pages: hot.hot,
            hot_blocks: hot.blocks,
        };
        self.said = Some((now, named));
        set
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::Gfn;

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn round(round: u64, pages: u64) -> HotPages {
        HotPages {
            round,
            began: Tick(SECOND),
            hot: pages + 7,
            blocks: 3,
            named: (0..pages).map(Gfn).collect(),
        }
    }

    #[test]
    fn each_round_is_named_once_and_says_how_long_it_counted() {
        let (mut gathers, mut generation) = (Gathers::default(), 4);
        let now = Tick(6 * SECOND);
        assert!(gathers.is_due(now));
        let set = gathers.name(now, &mut generation, &round(3, 5000));
        let parts: Vec<usize> = set.iter().map(|part| part.hot().len()).collect();
        assert_eq!(parts, [4096, 904]);
        assert_eq!((set[0].generation(), set[0].counted_ms()), (5, 5000));
        assert_eq!(gathers.name(now, &mut generation, &round(3, 5000)), []);
        assert!(!gathers.is_due(now) && gathers.is_due(Tick(7 * SECOND)));
        let next = gathers.name(Tick(9 * SECOND), &mut generation, &round(4, 0));
        assert_eq!((next.len(), next[0].whole(), generation), (1, 0, 6));
        let last = gathers.last().unwrap();
        assert_eq!((last.round, last.named_pages, last.hot_pages), (4, 0, 7));
    }
}
