//! Hot pages that the host names to a guest that gathers.

use serde::{Deserialize, Serialize};

use super::messages::{GREATEST_GFN, MAX_FRAMES, OutOfBounds, at_most};
use crate::Gfn;

/// Most hot pages of a set.
pub const MAX_HOT: usize = 16 << 10;
/// Longest time over which a set's accesses were counted, ms: an hour.
const MAX_COUNTED_MS: u32 = 3_600_000;

/// A part of a set of hot base pages, which one scan of the host found. A set is whole once as many frames were named as it has; one of
/// a greater generation replaces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawGather")]
pub struct Gather {
    generation: u64,
    whole: u32,
    counted_ms: u32,
    hot: Vec<Gfn>,
}

#[derive(Deserialize)]
struct RawGather {
    generation: u64,
    whole: u32,
    counted_ms: u32,
    hot: Vec<Gfn>,
}

impl TryFrom<RawGather> for Gather {
    type Error = OutOfBounds;

    fn try_from(raw: RawGather) -> Result<Self, OutOfBounds> {
        Self::new(raw.generation, raw.whole, raw.counted_ms, raw.hot)
    }
}

impl Gather {
    /// At most [`MAX_FRAMES`] frames of a set of `whole` frames, [`MAX_HOT`] at most; their accesses were counted over the last
    /// `counted_ms` milliseconds, an hour at most.
    ///
    /// # Errors
    /// If a number is greater, the set is smaller than this part, or a frame is above [`GREATEST_GFN`].
    pub fn new(
        generation: u64,
        whole: u32,
        counted_ms: u32,
        hot: Vec<Gfn>,
    ) -> Result<Self, OutOfBounds> {
        at_most("frames", hot.len() as u64, MAX_FRAMES as u64)?;
        at_most("frames of a set", whole.into(), MAX_HOT as u64)?;
        at_most("frames beside the set", hot.len() as u64, whole.into())?;
        at_most(
            "time of counting, ms",
            counted_ms.into(),
            MAX_COUNTED_MS.into(),
        )?;
        for gfn in &hot {
            at_most("frame", gfn.0, GREATEST_GFN.0)?;
        }
        Ok(Self {
            generation,
            whole,
            counted_ms,
            hot,
        })
    }

    /// The messages that name a set, hottest first: what is beyond [`MAX_HOT`] is left out. A set without pages is one message.
    #[must_use]
    pub fn set(generation: u64, counted_ms: u64, hot: &[Gfn]) -> Vec<Self> {
        let hot = &hot[..hot.len().min(MAX_HOT)];
        let whole = u32::try_from(hot.len()).unwrap_or(u32::MAX);
        let counted = counted_ms.min(MAX_COUNTED_MS.into());
        let counted = u32::try_from(counted).unwrap_or(MAX_COUNTED_MS);
        let parts = match hot.is_empty() {
            true => vec![hot],
            false => hot.chunks(MAX_FRAMES).collect(),
        };
        let messages = parts.into_iter();
        messages
            .filter_map(|part| Self::new(generation, whole, counted, part.to_vec()).ok())
            .collect()
    }

    /// The generation of the set.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Number of frames of the whole set.
    #[must_use]
    pub fn whole(&self) -> u32 {
        self.whole
    }

    /// Time over which accesses were counted, up to now, ms.
    #[must_use]
    pub fn counted_ms(&self) -> u32 {
        self.counted_ms
    }

    /// The frames of this part, hottest first.
    #[must_use]
    pub fn hot(&self) -> &[Gfn] {
        &self.hot
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Decoder, HostMessage, Message as _};
    use super::*;

    fn frames(count: u64) -> Vec<Gfn> {
        (0..count).map(Gfn).collect()
    }

    #[test]
    fn a_set_goes_out_in_messages_of_bounded_length() {
        let hot = frames(MAX_HOT as u64 + 5);
        let set = Gather::set(7, 1200, &hot);
        let sizes: Vec<usize> = set.iter().map(|part| part.hot().len()).collect();
        assert_eq!(sizes, [4096; 4], "what is beyond the most is left out");
        let named: Vec<Gfn> = set.iter().flat_map(|part| part.hot().to_vec()).collect();
        assert_eq!(named, hot[..MAX_HOT]);
        let is_whole = |part: &Gather| {
            (part.generation(), part.whole(), part.counted_ms()) == (7, 16384, 1200)
        };
        assert!(set.iter().all(is_whole));
        let none = Gather::set(8, u64::MAX, &[]);
        assert_eq!(none.len(), 1, "that nothing is hot is a word, too");
        assert_eq!((none[0].whole(), none[0].counted_ms()), (0, MAX_COUNTED_MS));
    }

    #[test]
    fn what_is_sent_is_heard() {
        let highest = vec![GREATEST_GFN; MAX_FRAMES];
        for hot in [Vec::new(), frames(3), highest] {
            let sent = HostMessage::Gather(Gather::new(3, 16384, 0, hot).unwrap());
            let mut decoder = Decoder::<HostMessage>::default();
            assert_eq!(decoder.push(&sent.encode().unwrap()), [sent]);
        }
    }

    #[test]
    fn what_is_out_of_bounds_is_neither_made_nor_read() {
        let wrong = [
            (4097, 0, frames(4097)),
            (16385, 0, frames(1)),
            (1, 0, frames(2)),
            (1, MAX_COUNTED_MS + 1, frames(1)),
            (1, 0, vec![Gfn(GREATEST_GFN.0 + 1)]),
        ];
        for (whole, counted_ms, hot) in wrong {
            assert!(Gather::new(1, whole, counted_ms, hot.clone()).is_err());
            let raw = postcard::to_allocvec(&(1_u64, whole, counted_ms, hot)).unwrap();
            assert!(postcard::from_bytes::<Gather>(&raw).is_err(), "{whole}");
        }
    }
}
