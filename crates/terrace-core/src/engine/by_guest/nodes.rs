//! The nodes of a guest: each lies in one tier of the host, so that its kernel's nodes are tiers.
//!
//! A frame's tier follows from its node, and is not queried. That holds only as long as each frame lies where its node does: what
//! the host moved by itself meanwhile is put back before the guest moves pages.

use std::ops::Range;

use terrace_proto::{GuestNode, GuestNodes, PAGE_SIZE, PageCode, Tick, TierId};

use super::{Shared, Stand, Vm};
use crate::engine::rounds::Phase;
use crate::place::Flow;

/// Rounds in which frames are put back before a guest is refused.
const ROUNDS: u8 = 4;
/// The part of a VM's memory that may lie elsewhere in the end: pages that are pinned, or that others map.
const MAY_STAY: u64 = 64;
/// Places that are taken over at once.
const AT_ONCE: usize = 4096;

impl Vm {
    /// Takes in which tier each of the guest's nodes lies in; none if that is not known.
    pub fn set_nodes(&mut self, now: Tick, nodes: &GuestNodes, shared: &Shared) {
        self.moving.by_guest.only_guest = nodes.only_guest;
        if self.moving.by_guest.nodes == nodes.nodes {
            return;
        }
        self.moving.by_guest.nodes.clone_from(&nodes.nodes);
        let guest = &mut self.moving.by_guest;
        if guest.room.is_some() && guest.stand != Stand::Host {
            guest.stand = Stand::Host;
            self.begin_by_guest(now, shared);
        }
    }

    /// Looks at all frames again, as a plan of the host's was carried out after its guest took over: frames may lie elsewhere by it.
    pub fn look_again(&mut self, now: Tick, shared: &Shared) {
        if self.knows_tiers() {
            self.moving.by_guest.stand = Stand::Host;
            let text = "a plan of the host's ended after its guest took over: its frames' places are looked at again";
            self.history.say(now, text);
            self.begin_by_guest(now, shared);
        }
    }

    /// Whether frames' tiers follow from their nodes, and are not queried.
    pub fn knows_tiers(&self) -> bool {
        self.moves_by_guest() && !self.moving.by_guest.nodes.is_empty()
    }

    /// Takes over the tiers of the guest's nodes, once.
    pub fn place_by_nodes(&mut self, shared: &mut Shared) {
        let Stand::Guest { is_placed } = &mut self.moving.by_guest.stand else {
            return;
        };
        if std::mem::replace(is_placed, true) {
            return;
        }
        let before = self.held();
        for node in &self.moving.by_guest.nodes {
            let end = self.pages_of(node).end;
            let codes = [PageCode::new(node.tier, false); AT_ONCE];
            let mut start = node.start;
            while start.0 < end {
                let left = usize::try_from(end - start.0).unwrap_or(AT_ONCE);
                let codes = &codes[..left.min(AT_ONCE)];
                self.pages.place_run(start, codes);
                start.0 += codes.len() as u64;
            }
        }
        self.found_since(before, &mut shared.tiers);
    }

    /// The pages of a node, as far as the VM's memory has any.
    fn pages_of(&self, node: &GuestNode) -> Range<u64> {
        let end = node.start.0.saturating_add(node.pages);
        node.start.0..end.min(self.pages.ram().span_pages())
    }

    /// Whether the host puts frames back for now.
    pub fn is_checking(&self) -> bool {
        matches!(self.moving.by_guest.stand, Stand::Checking(_))
    }

    /// Puts frames back into the tiers of their nodes, or hands over to the guest if they are there. Returns whether the round goes
    /// on with scans.
    pub fn put_back(&mut self, now: Tick) -> bool {
        let Stand::Checking(rounds) = self.moving.by_guest.stand else {
            return true;
        };
        if self.rounds.plans_only() {
            // Nothing is moved by it, and nobody takes over by it either.
            return true;
        }
        let flows = self.misplaced();
        let units = flows.iter().flat_map(|flow| &flow.units);
        let bytes = units.map(|unit| self.moved_pages(*unit)).sum::<u64>() * PAGE_SIZE;
        let all = self.pages.ram().pages() * PAGE_SIZE;
        let tried = rounds >= ROUNDS;
        if bytes == 0 || tried && bytes <= all / MAY_STAY {
            self.hand_over(now);
            return true;
        }
        if tried || !self.may_move() {
            let why = format!(
                "{} MiB of its memory do not lie in the tier of the guest's node that they are in, and {}",
                bytes.div_ceil(1 << 20),
                match self.may_move() {
                    true =>
                        "the kernel does not put them back, or a limit of the VM's does not allow it",
                    false => "the host moves nothing, so that they are not put back",
                }
            );
            let text = format!("the host moves its pages: {why}");
            self.end_by_guest(now, Stand::Refused(why), &text);
            return false;
        }
        self.moving.by_guest.stand = Stand::Checking(rounds + 1);
        if rounds == 0 {
            let text = format!(
                "{} MiB are put back into the tiers of the guest's nodes before the guest moves pages",
                bytes.div_ceil(1 << 20)
            );
            self.history.say(now, text);
        }
        self.moving.take(flows, &self.pages);
        self.rounds.phase = Phase::Moving { since: now };
        false
    }

    /// The round that put frames back is over: the next one looks whether they are there.
    pub fn complete_put_back(&mut self, now: Tick, shared: &Shared) {
        if let Some(mut round) = self.rounds.current.take() {
            round.ended_at = Some(now);
            round.refused = self.rounds.refused.shown();
            self.rounds.last = Some(round);
            self.history.counters.rounds += 1;
        }
        self.round_soon(now, shared);
    }

    /// Frames that lie in another tier than their node, demotions first.
    fn misplaced(&self) -> Vec<Flow> {
        let mut flows: Vec<Flow> = Vec::new();
        for node in &self.moving.by_guest.nodes {
            let pages = self.pages_of(node);
            let unit_pages = self.pages.ram().unit().base_pages();
            let units = pages.start / unit_pages..pages.end.div_ceil(unit_pages);
            let units = units.filter_map(|unit| u32::try_from(unit).ok());
            let elsewhere = units.filter(|unit| {
                let tier = self.pages.tier(*unit);
                tier.is_some_and(|tier| tier != node.tier)
            });
            let mut seen = None;
            let blocks = elsewhere.filter(|unit| {
                // A huge page of the host goes as one.
                let first = match self.pages.in_huge_block(*unit) {
                    true => unit - unit % 512,
                    false => *unit,
                };
                seen.replace(first) != Some(first) && first == *unit
            });
            let units: Vec<u32> = blocks.collect();
            if !units.is_empty() {
                flows.push(Flow {
                    to: node.tier,
                    forced: units.len(),
                    units,
                });
            }
        }
        flows.sort_by_key(|flow| flow.to == TierId::FAST);
        flows
    }
}
