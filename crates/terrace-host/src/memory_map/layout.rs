//! The layout that a memory map was built from, and whether it still holds.
//!
//! Responsible for: QEMU's word for where each run of the guest's RAM is, joined with the mapping that is there, as a
//! value that can be compared with one that is read later. It leaves to others: when to check ([`super::MapWatch`]).

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::build::{MemoryTree, covering, locate_range, main_memory};
use super::procfs::{FileId, Mapping, mappings};
use super::{MemoryMapError, Unscannable};
use crate::HostRoot;
use crate::qemu::encryption;

/// The largest part of a run that may come or go without being another map, bytes. Firmware shadows or hides RAM for
/// itself with each reset (the BIOS area below 1 MiB, SMRAM), in the same file at the same place. The least that can
/// be plugged on its own is twice as much (a memory slot of virtio-mem).
const SHADOWED: u64 = 64 << 20;

/// The location of one run of main memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    pub gpa: u64,
    pub len: u64,
    pub hva: u64,
    /// The memory backend.
    pub region: String,
    /// The mapping that holds its start; those that continue it are alike.
    pub held: Held,
}

/// A mapping's description of the page at the start of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Held {
    pub file: FileId,
    /// Offset in that file of the run's first byte; `None` if there is no file.
    pub offset: Option<u64>,
    pub shared: bool,
    pub read_write: bool,
}

/// All runs, ascending by their guest physical addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pub(super) pieces: Vec<Piece>,
}

impl Layout {
    /// Asks QEMU for the runs and the kernel for what it maps there.
    pub(super) fn read(
        root: &HostRoot,
        pid: u32,
        tree: &mut impl MemoryTree,
    ) -> Result<(Self, Vec<Mapping>), MemoryMapError> {
        if let Some(what) = encryption(root, pid) {
            return Err(Unscannable::Encrypted(what).into());
        }
        let names: BTreeSet<String> = tree.memdevs()?.into_iter().map(|m| m.id).collect();
        let main = main_memory(tree.ram()?, &names)?;
        let placed: Result<Vec<_>, _> = main
            .into_iter()
            .map(|range| locate_range(tree, range))
            .collect();
        let (placed, mappings) = (placed?, mappings(root, pid)?);
        let mut pieces = Vec::new();
        for run in placed {
            let mapping = covering(&run, &mappings)?;
            pieces.push(Piece {
                held: Held::of(mapping, run.hva),
                gpa: run.gpa,
                len: run.len,
                hva: run.hva,
                region: run.region,
            });
        }
        Ok((Self { pieces }, mappings))
    }

    /// Whether the process still maps the same files at the same places; nothing of QEMU is asked. Reports what is not.
    pub(super) fn is_mapped(&self, mappings: &[Mapping]) -> Result<(), String> {
        let gone = self.pieces.iter().find(|piece| {
            let run = super::build::Placed {
                gpa: piece.gpa,
                len: piece.len,
                hva: piece.hva,
                region: piece.region.clone(),
            };
            let now = covering(&run, mappings).map(|mapping| Held::of(mapping, piece.hva));
            now.ok() != Some(piece.held)
        });
        gone.map_or(Ok(()), |piece| {
            Err(format!(
                "QEMU maps something else in place of its RAM '{}' at {:#x}",
                piece.region, piece.gpa
            ))
        })
    }

    /// The first difference between this map and one that was read later, for people; `None` if there is none.
    pub(super) fn change(&self, now: &Self) -> Option<String> {
        let (mut was, mut is) = (self.pieces.iter(), now.pieces.iter());
        let gone = was.find(|piece| !piece.is_in(now));
        let new = is.find(|piece| !piece.is_in(self));
        if gone.is_none() && new.is_none() && self.shadowed(now) <= SHADOWED {
            return None;
        }
        let mut text = format!("{} MiB of RAM, now {} MiB", self.mib(), now.mib());
        for (what, piece) in [("gone or elsewhere", gone), ("new", new)] {
            if let Some(Piece { region, gpa, .. }) = piece {
                // Writing to a string does not fail.
                let _ = write!(text, "; '{region}' at {gpa:#x} is {what}");
            }
        }
        Some(text)
    }

    fn mib(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.len).sum::<u64>() >> 20
    }

    /// Bytes that only one of two maps has.
    fn shadowed(&self, other: &Self) -> u64 {
        let all = |layout: &Self| layout.pieces.iter().map(|p| p.len).sum::<u64>();
        let common: u64 = self.pieces.iter().map(|piece| piece.common(other)).sum();
        (all(self) - common) + (all(other) - common)
    }
}

impl Held {
    fn of(mapping: &Mapping, hva: u64) -> Self {
        let has_file = mapping.file.inode != 0;
        Self {
            file: mapping.file,
            offset: has_file.then(|| mapping.offset.wrapping_add(hva - mapping.start)),
            shared: mapping.shared,
            read_write: mapping.read_write,
        }
    }
}

impl Piece {
    /// Whether a page at the same guest address would be at the same place by the other one.
    fn agrees(&self, other: &Self) -> bool {
        let apart = |a: u64, b: u64| b.wrapping_sub(a);
        let by = apart(self.gpa, other.gpa);
        let held = Held {
            offset: self.held.offset.map(|offset| offset.wrapping_add(by)),
            ..self.held
        };
        self.region == other.region && apart(self.hva, other.hva) == by && held == other.held
    }

    /// Whether the other map has any of its run at the same place.
    fn is_in(&self, other: &Layout) -> bool {
        other.pieces.iter().any(|piece| self.agrees(piece))
    }

    /// Bytes of it that the other map has at the same place.
    fn common(&self, other: &Layout) -> u64 {
        let agreed = other.pieces.iter().filter(|piece| self.agrees(piece));
        let bytes = agreed.map(|piece| {
            let end = (self.gpa + self.len).min(piece.gpa + piece.len);
            end.saturating_sub(self.gpa.max(piece.gpa))
        });
        bytes.sum()
    }
}
