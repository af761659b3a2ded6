//! Two spans of memory, one of them hot.

use super::Context;
use super::draw::{Permutation, Random, Writes, access, to_f64, to_u64};
use crate::base::access::{Access, LINES_PER_PAGE};
use crate::base::number::multiply_high;
use crate::base::random::Purpose;

/// A span of lines on which accesses fall evenly; one that goes past the end of memory continues at its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    /// The span's first line.
    pub(super) start: u64,
    /// Length of the span, in cache lines.
    pub(super) lines: u64,
}

impl Span {
    /// A span of whole pages.
    pub(super) fn pages(start: u64, pages: u64) -> Self {
        Self {
            start: start * LINES_PER_PAGE,
            lines: pages * LINES_PER_PAGE,
        }
    }
}

/// The scattering of the hot span over memory.
#[derive(Clone, Debug)]
pub(super) enum Scatter {
    /// No scattering: the hot span is contiguous.
    Nothing,
    /// Scattering of each page.
    Pages(Permutation),
    /// Scattering of each page to the same distance from the one before.
    Even(Stride),
    /// Scattering of each line.
    Lines(Permutation),
}

/// Pages at equal distances, as nearly as whole pages can be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stride {
    pages: u64,
    hot: u64,
}

impl Stride {
    /// So many of so many pages.
    pub(super) fn new(pages: u64, hot: u64) -> Self {
        Self {
            pages,
            hot: hot.max(1),
        }
    }

    /// The page of a number below the number of those that are placed.
    fn page(self, number: u64) -> u64 {
        number * self.pages / self.hot
    }
}

/// A generator of accesses to two spans. The low 24 bits of one draw choose the span, all of it chooses the line: the
/// share of the hot span is exact to 2^-25, and each page's share of its span to `pages / 2^34` of it.
#[derive(Clone)]
pub(super) struct HotCold {
    random: Random,
    writes: Writes,
    pub(super) spans: Spans,
    pub(super) scatter: Scatter,
}

/// The spans, and the chance of each.
#[derive(Clone, Copy)]
pub(super) struct Spans {
    /// The chance of the hot span, of 2^24.
    chance: u64,
    /// Number of lines of memory.
    total: u64,
    pub(super) hot: Span,
    pub(super) cold: Span,
}

const CHOICE_BITS: u32 = 24;

impl HotCold {
    /// A generator whose spans are both all of memory, until the caller sets them.
    pub(super) fn new(context: &Context, vcpu: u32, pages: u64, hot: f64, write: f64) -> Self {
        let all = Span::pages(0, pages);
        Self {
            random: Random::new(context, vcpu, Purpose::Accesses),
            writes: Writes::new(context, vcpu, write),
            spans: Spans {
                chance: to_u64(hot * to_f64(1 << CHOICE_BITS) + 0.5),
                total: all.lines,
                hot: all,
                cold: all,
            },
            scatter: Scatter::Nothing,
        }
    }

    pub(super) fn fill(&mut self, batch: &mut [Access]) {
        let Self {
            random,
            writes,
            scatter,
            spans,
        } = self;
        // A loop for each, so that it is small: this is the busiest generator.
        match scatter {
            Scatter::Nothing => spans.fill(random, writes, batch, |line| line),
            Scatter::Lines(lines) => spans.fill(random, writes, batch, |line| lines.apply(line)),
            Scatter::Even(stride) => {
                let page = |line| stride.page(line / LINES_PER_PAGE).min(stride.pages - 1);
                spans.fill(random, writes, batch, |line| {
                    page(line) * LINES_PER_PAGE + line % LINES_PER_PAGE
                });
            }
            Scatter::Pages(pages) => spans.fill(random, writes, batch, |line| {
                pages.apply(line / LINES_PER_PAGE) * LINES_PER_PAGE + line % LINES_PER_PAGE
            }),
        }
    }
}

impl Spans {
    /// Fills the batch; `place` gives the location of a line of the hot span.
    fn fill(
        &self,
        random: &mut Random,
        writes: &mut Writes,
        batch: &mut [Access],
        place: impl Fn(u64) -> u64,
    ) {
        const CHOICE: u64 = (1 << CHOICE_BITS) - 1;
        for slot in batch {
            let bits = random.bits();
            let is_hot = bits & CHOICE < self.chance;
            let span = if is_hot { self.hot } else { self.cold };
            let line = span.start + multiply_high(bits, span.lines);
            let line = line.min(line.wrapping_sub(self.total));
            // Cold lines are placed too, in vain: that costs less than a branch that is often mispredicted.
            let placed = place(line);
            let line = if is_hot { placed } else { line };
            *slot = access(line, writes.draw());
        }
    }
}
