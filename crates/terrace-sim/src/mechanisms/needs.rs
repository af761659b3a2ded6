//! The least memory of a VM for which a mechanism's own constants make sense.
//!
//! A constant counts in bytes of the full-size machine, or in pages, as the mechanism's code has it. Pages are
//! simulated ones: at a large scale each stands for much memory.

use crate::guest::marks::Marks;
use terrace_proto::PAGE_SIZE;

/// The memory of a VM, bytes of the full-size machine.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// All tiers together.
    pub all: u64,
    /// The first tier.
    pub first: u64,
    /// The part that a simulated page stands for.
    pub page: u64,
}

/// A part of a VM's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All tiers together.
    All,
    /// The first tier.
    First,
}

/// A constant of a mechanism that makes no sense for a small VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// The memory that the constant is about.
    pub part: Part,
    /// The least size of that memory, bytes of the full-size machine.
    pub least: u64,
    /// The mechanism's use of the constant, with the constant's name: "scans 256 MiB at a time (…)".
    pub constant: &'static str,
    /// The relation to a memory that is too small, whose size follows: "more than this VM's".
    pub relation: &'static str,
}

impl Need {
    /// The need of a first tier of so many simulated pages.
    pub(super) fn of_pages(pages: u64, memory: Memory, constant: &'static str) -> Self {
        Self {
            part: Part::First,
            least: pages.saturating_mul(memory.page),
            constant,
            relation: "more than the simulated pages of this VM's",
        }
    }

    /// The need of a first tier whose lowest watermark is a page at least: with less, its kernel keeps nothing free.
    pub(super) fn of_watermarks(memory: Memory) -> Self {
        Self {
            part: Part::First,
            least: Marks::least_node(memory.all / PAGE_SIZE) * PAGE_SIZE,
            constant: "keeps each node's part of memory free (min_free_kbytes)",
            relation: "less than a page of this VM's",
        }
    }

    /// Whether a VM's memory is too small.
    #[must_use]
    pub fn is_missed(&self, memory: Memory) -> bool {
        self.has(memory) < self.least
    }

    /// The size of the memory that the constant is about, bytes.
    #[must_use]
    pub fn has(&self, memory: Memory) -> u64 {
        match self.part {
            Part::All => memory.all,
            Part::First => memory.first,
        }
    }
}
