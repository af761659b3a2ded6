//! Page tables of the guest among the pages that are ranked.
//!
//! Responsible for: which pages are page tables in use by the scanner's word, how hot each is, and which of them may move. It leaves to others: where
//! they go, which is ranked with all other pages ([`crate::place`]), and the room, which is the VM's as for its other pages ([`super::check`]).
//!
//! No user table maps a table's page, so by its bits it is unknown, and stays. But each access whose translation no TLB has reads it: a leaf table's page is read as
//! often as all the pages together that it maps are found by a TLB's misses. So its rate is the sum of theirs, by the number of its leaves that a window finds accessed.
//!
//! A table that leads to other tables is waited for by all that lies below while it moves: of these one moves at a time, in a plan of its own, and it stays where it
//! came to.
//!
//! All this is the guest's word, as its accessed bits are. What it can gain by lies is what it gains by accesses: a place for its pages within its own share, at
//! the price of its other pages' places. A page that a user table maps is never a table here.

use terrace_proto::{PAGE_SIZE, PageSize, TableFrame, TablesAnswer, TierId};

use super::Shared;
use super::moves::Flight;
use super::vm::Vm;
use crate::config::{EngineConfig, TablePlace};
use crate::estimate::{PER_SECOND, Seen, fine_of, rate_of_fine};
use crate::pages::{Pages, flags};
use crate::policy::{Move, Observe};

/// Leaves that are found accessed for one touch of a data page. A touch stands for some 16 misses of data, and for at least one of the table's line; lines hold
/// eight leaves, but a program that goes through its memory page by page needs each line once for its eight pages.
const LEAVES_PER_TOUCH: u64 = 4;
/// The highest rate that averages have.
const MOST_RATE: u64 = 1 << 40;

/// A page table that was in use lately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Table {
    unit: u32,
    /// Touches per second, on the scale of long averages.
    rate: u16,
    level: u8,
}

impl Table {
    /// Whether it leads to other tables, or has leaves of 2 MiB.
    fn is_upper(self) -> bool {
        self.level > 1
    }
}

/// A VM's page tables, at most [`TableFrame::most`] of them.
#[derive(Debug, Default)]
pub(crate) struct TableRanks {
    /// Tables that the round's passes named so far.
    named: Vec<TableFrame>,
    /// In ascending order.
    tables: Vec<Table>,
    /// The upper one that may move in this round.
    alone: Option<u32>,
}

impl TableRanks {
    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.named.capacity() * size_of::<TableFrame>()
            + self.tables.capacity() * size_of::<Table>()
    }

    /// The level of the table in a unit, if one in use is there.
    pub fn level_of(&self, unit: u32) -> Option<u8> {
        let at = self.tables.binary_search_by_key(&unit, |t| t.unit).ok()?;
        Some(self.tables[at].level)
    }

    /// Takes in what a pass named.
    fn hear(&mut self, frames: &[TableFrame], most: usize) {
        self.named.extend_from_slice(frames);
        TableFrame::join(&mut self.named);
        TableFrame::bound(&mut self.named, most);
    }

    /// Takes the tables' rates out of the units' averages, so that what the round's bits say of these units finds no average of theirs.
    fn lift(&self, pages: &mut Pages) {
        for table in &self.tables {
            set_rate(pages, table.unit, 0);
        }
    }

    /// Ends a round: takes what was named into the tables' rates.
    fn end_round(&mut self, pages: &Pages, seen: Seen, most: usize) {
        let mut named = std::mem::take(&mut self.named).into_iter().peekable();
        let mut old = std::mem::take(&mut self.tables).into_iter().peekable();
        let mut tables: Vec<Table> = Vec::with_capacity(named.len());
        loop {
            let (next, had) = (named.peek().map(|t| t.frame), old.peek().map(|t| t.unit));
            let Some(unit) = next.into_iter().chain(had).min() else {
                break;
            };
            let now = named.next_if(|t| t.frame == unit);
            let then = old.next_if(|t| t.unit == unit);
            if !is_table(pages, unit) {
                continue;
            }
            let rate = mixed(now.map(|t| rate(t.accessed, seen)), then.map(|t| t.rate));
            let level = now.map(|t| t.level).or(then.map(|t| t.level));
            if rate > 0 {
                tables.push(Table {
                    unit,
                    rate,
                    level: level.unwrap_or(1),
                });
            }
        }
        if tables.len() > most {
            tables.sort_unstable_by_key(|t| (std::cmp::Reverse(t.rate), t.unit));
            tables.truncate(most);
            tables.sort_unstable_by_key(|t| t.unit);
        }
        tables.shrink_to_fit();
        self.tables = tables;
    }

    /// Gives the tables that may move their rates among those of all units, and makes them known.
    fn lay(&mut self, pages: &mut Pages) {
        let waits = |t: &&Table| {
            let below = pages.tier(t.unit).is_some_and(|tier| tier > TierId::FAST);
            t.is_upper() && below && pages.cool_down(t.unit) == 0 && !pages.in_huge_block(t.unit)
        };
        let upper = self.tables.iter().filter(waits);
        let alone = upper.max_by_key(|t| (t.rate, std::cmp::Reverse(t.unit)));
        self.alone = alone.map(|t| t.unit);
        for table in &self.tables {
            if !table.is_upper() || self.alone == Some(table.unit) {
                set_rate(pages, table.unit, table.rate);
                pages.flags[table.unit as usize] |= flags::KNOWN;
            }
        }
    }
}

/// Whether a unit can be a table: RAM that no user table maps.
fn is_table(pages: &Pages, unit: u32) -> bool {
    pages.ram().is_whole(unit) && !pages.known(unit)
}

fn set_rate(pages: &mut Pages, unit: u32, rate: u16) {
    let at = unit as usize;
    if let (Some(long), Some(recent)) = (pages.long.get_mut(at), pages.queue.get_mut(at)) {
        *long = rate;
        *recent = rate.to_le_bytes()[1];
    }
}

/// Touches per second of a table of which a window found so many leaves accessed.
fn rate(accessed: u16, seen: Seen) -> u64 {
    let touches = u128::from(accessed) * u128::from(PER_SECOND) / u128::from(LEAVES_PER_TOUCH);
    let a_second = touches * 1_000_000_000 / u128::from(seen.window_ns.max(1));
    u64::try_from(a_second).unwrap_or(MOST_RATE).min(MOST_RATE)
}

/// A table's rate after a round: by a quarter what the round says; one that it does not name halves, so that a freed page is forgotten in seconds.
fn mixed(now: Option<u64>, then: Option<u16>) -> u16 {
    let then = then.map(rate_of_fine);
    let next = match (now, then) {
        (Some(now), Some(then)) => (then * 3 + now) / 4,
        (Some(now), None) => now,
        (None, then) => then.unwrap_or(0) / 2,
    };
    fine_of(next, 0)
}

impl Vm {
    /// Whether passes name page tables: its policy has rates, by the guest's own tables, and ranks pages of 4 KiB, which the host moves.
    fn names_tables(&self, config: &EngineConfig) -> bool {
        let guest = matches!(
            self.policy.observe,
            Observe::GuestScan | Observe::GuestScanPlain
        );
        config.tables == TablePlace::First
            && self.has_rates()
            && guest
            && self.pages.ram().unit() == PageSize::Base
            && self.policy.moves != Move::Guest
            && !self.moves_by_guest()
    }

    /// Has the pass that is asked for next name page tables, if they are placed.
    pub fn ask_for_tables(&mut self, shared: &mut Shared) {
        if self.names_tables(&shared.config) {
            let space = terrace_proto::Space::Guest(self.id);
            shared.act(terrace_proto::Action::NameTables(space));
        }
    }

    /// Page tables that the pass under way names.
    pub fn tables_named(&mut self, answer: &TablesAnswer, shared: &Shared) {
        let windows = self.rhythm(&shared.config).windows;
        let asked = self.pass_under_way(answer.id).map(|(window, _)| window);
        if asked != Some(windows) || !self.names_tables(&shared.config) {
            self.history.counters.stale_answers += 1;
            return;
        }
        let span = self.pages.ram().span_pages();
        if !TableFrame::fit(&answer.frames, span) {
            self.history.counters.malformed_answers += 1;
            return;
        }
        let ranks = &mut self.observer.tables;
        ranks.hear(&answer.frames, TableFrame::most(span));
    }

    /// Before a round's counts are taken into averages.
    pub fn lift_tables(&mut self) {
        self.observer.tables.lift(&mut self.pages);
    }

    /// After it: page tables are ranked with all other pages. `ends`: the round's findings count.
    pub fn lay_tables(&mut self, seen: Seen, ends: bool) {
        let most = TableFrame::most(self.pages.ram().span_pages());
        let ranks = &mut self.observer.tables;
        if ends {
            ranks.end_round(&self.pages, seen, most);
        } else {
            ranks.named.clear();
        }
        ranks.lay(&mut self.pages);
    }

    /// Whether a unit is the upper table of this round, which no plan takes along with others.
    pub fn is_alone(&self, unit: u32) -> bool {
        self.observer.tables.alone == Some(unit)
    }

    /// The upper table of this round as a plan of its own, if it is the next that waits, and may go now.
    pub fn take_upper(&mut self, shared: &mut Shared) -> Option<Vec<Flight>> {
        let alone = self.observer.tables.alone?;
        let queue = self.moving.queue_with(alone)?;
        let bytes = self.moved_pages(alone) * PAGE_SIZE;
        let (flights, _) = self.drain(queue, 1, bytes, shared);
        (!flights.is_empty()).then_some(flights)
    }
}
