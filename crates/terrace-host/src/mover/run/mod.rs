//! One plan's execution.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use terrace_proto::{
    MovePlan, MoveReport, MoveStatus, PageCode, PageMove, PageResult, PageSize, TierId,
};
use terrace_sys::{MoveScope, MoveTo, NOT_ANSWERED, SysError};

use super::items::{Backing, HUGE, Item, Items, addresses};
use super::{Budget, Clock, Kernel, MoveOutcome, MoverConfig};
use crate::Finding;
use crate::memory_map::GuestMemory;
use crate::topology::{NodeId, Topology};

/// The weight of a huge page in a batch, in pages: 2 MiB copy much faster than 512 pages are unmapped.
const HUGE_WEIGHT: usize = 64;

/// Least weight of a batch if more threads could share the work: below, system calls cost more.
const MIN_BATCH: usize = 64;

pub(super) struct Run<'a, K, C> {
    pub kernel: &'a K,
    pub topology: &'a Topology,
    pub memory: &'a GuestMemory,
    pub others_map: bool,
    pub unit: PageSize,
    pub config: MoverConfig,
    pub budget: &'a Budget<C>,
    pub stop: &'a AtomicBool,
}

impl<K: Kernel, C: Clock> Run<'_, K, C> {
    /// Moves to the same tier that follow each other go together; the next ones only begin when they
    /// are done, so that demotions make room first.
    pub(super) fn execute(&self, plan: &MovePlan) -> MoveOutcome {
        let start = self.budget.clock().now();
        let mut results = Vec::with_capacity(plan.moves.len());
        let mut findings = Vec::new();
        for group in plan.moves.chunk_by(|a, b| a.to == b.to) {
            results.extend(self.group(group, &mut findings));
        }
        let elapsed = self.budget.clock().now().since(start);
        MoveOutcome {
            report: MoveReport {
                id: plan.id,
                vm: plan.vm,
                results,
                elapsed_ns: u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX),
            },
            findings,
        }
    }

    fn group(&self, group: &[PageMove], findings: &mut Vec<Finding>) -> Vec<PageResult> {
        let units: Vec<Vec<u64>> = group
            .iter()
            .map(|page| addresses(self.memory, page.gfn, self.unit))
            .collect();
        let mut sorted: Vec<u64> = units.iter().flatten().copied().collect();
        sorted.sort_unstable();
        sorted.dedup();
        let before = self.backing(&sorted, findings);
        let items = Items::new(&units, &before, |address, bytes| {
            let is_shared = self
                .memory
                .is_shared(address, address.saturating_add(bytes));
            scope(is_shared, self.others_map)
        });
        let to = group[0].to;
        let statuses = self.move_items(&items.list, to);
        let after = if items.list.iter().any(|item| item.bytes == HUGE) {
            self.backing(&sorted, findings)
        } else {
            before
        };
        let code = self.codes(&sorted, &after);
        let results = group.iter().zip(&units).zip(&items.of_unit);
        results
            .map(|((page, addresses), of_unit)| {
                let status = joined(of_unit.iter().map(|i| statuses[*i]));
                let codes = addresses.iter().map(&code);
                result(page, status, codes)
            })
            .collect()
    }

    fn backing(&self, sorted: &[u64], findings: &mut Vec<Finding>) -> Backing {
        Backing::around(self.kernel, sorted).unwrap_or_else(|error| {
            findings.push(Finding::degraded(
                "pagemap",
                format!("{error}: huge pages were not recognised"),
                "nothing, if the VM has ended",
            ));
            Backing::default()
        })
    }

    /// The current location of pages; one question for each huge page.
    fn codes(&self, sorted: &[u64], backing: &Backing) -> impl Fn(&u64) -> PageCode {
        let asked = |address: &u64| backing.huge_page(*address).unwrap_or(*address);
        let mut questions: Vec<u64> = sorted.iter().map(asked).collect();
        questions.dedup();
        let nodes = self.nodes(&questions);
        move |address| {
            let huge = backing.huge_page(*address);
            let node = questions.binary_search(&huge.unwrap_or(*address));
            let node = node.map_or(NOT_ANSWERED, |i| nodes[i]);
            self.tier(node)
                .map_or(PageCode::ABSENT, |tier| PageCode::new(tier, huge.is_some()))
        }
    }

    /// The node of each address now, or a negative number.
    fn nodes(&self, addresses: &[u64]) -> Vec<i32> {
        let mut nodes = vec![NOT_ANSWERED; addresses.len()];
        for (addresses, nodes) in addresses.chunks(1 << 14).zip(nodes.chunks_mut(1 << 14)) {
            if !self.kernel.is_alive() || self.query(addresses, nodes).is_err() {
                nodes.fill(NOT_ANSWERED);
            }
        }
        nodes
    }

    fn query(&self, addresses: &[u64], nodes: &mut [i32]) -> Result<(), SysError> {
        self.kernel.query(self.kernel.pid(), addresses, nodes)
    }

    fn tier(&self, node: i32) -> Option<TierId> {
        let node = u32::try_from(node).ok()?;
        self.topology.tier_of(NodeId(node))
    }

    /// The target's nodes in their order, those without free memory last.
    fn targets(&self, to: TierId) -> Vec<NodeId> {
        let mut nodes = self.topology.nodes_of(to).to_vec();
        nodes.sort_by_key(|node| self.kernel.free_bytes(*node) == 0);
        nodes
    }

    /// Moves items in batches on several threads; one status for each.
    fn move_items(&self, items: &[Item], to: TierId) -> Vec<MoveStatus> {
        let targets = self.targets(to);
        let batches = self.batches(items);
        let next = AtomicUsize::new(0);
        let done: Mutex<Vec<(usize, Vec<MoveStatus>)>> = Mutex::new(Vec::new());
        let work = || {
            while let Some(batch) = batches.get(next.fetch_add(1, Ordering::Relaxed)) {
                let statuses = self.batch(&items[batch.clone()], to, &targets);
                let mut done = done.lock().unwrap_or_else(|e| e.into_inner());
                done.push((batch.start, statuses));
            }
        };
        let others = self.config.threads.min(batches.len()).saturating_sub(1);
        on_threads(others, thread::Builder::new, &work);
        let mut done = done.into_inner().unwrap_or_else(|e| e.into_inner());
        done.sort_unstable_by_key(|(start, _)| *start);
        done.into_iter()
            .flat_map(|(_, statuses)| statuses)
            .collect()
    }

    /// Every thread gets a share, unless shares become too small or are too large for one call.
    fn batches(&self, items: &[Item]) -> Vec<std::ops::Range<usize>> {
        let weight: usize = items.iter().map(weight).sum();
        let share = weight.div_ceil(self.config.threads).max(MIN_BATCH);
        batches(items, share.min(self.config.batch_pages))
    }

    fn may_go_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed) && self.kernel.is_alive()
    }

    fn batch(&self, items: &[Item], to: TierId, targets: &[NodeId]) -> Vec<MoveStatus> {
        let mut batch = Batch::new(items);
        if !self.may_go_on() {
            return batch.statuses;
        }
        self.settle(&mut batch, to, MoveStatus::AlreadyThere);
        if targets.is_empty() {
            batch.close(MoveStatus::Failed(libc::EINVAL));
        }
        for _ in 0..self.config.attempts {
            for node in targets {
                if batch.open.is_empty() {
                    return batch.statuses;
                }
                let bytes = batch.open.iter().map(|i| items[*i].bytes).sum();
                if !self.budget.take(bytes, self.stop) || !self.may_go_on() {
                    return batch.statuses;
                }
                self.attempt(&mut batch, *node);
                self.settle(&mut batch, to, MoveStatus::Moved);
            }
            batch.keep_busy();
        }
        batch.statuses
    }

    /// One call to the kernel, for items of one scope; notes why pages did not move.
    fn attempt(&self, batch: &mut Batch<'_>, node: NodeId) {
        let addresses = batch.open_addresses();
        let mut answers = vec![NOT_ANSWERED; addresses.len()];
        let first = batch.items.first();
        let scope = first.map_or(MoveScope::Exclusive, |item| item.scope);
        let node = i32::try_from(node.0).unwrap_or(-1);
        let to = Some(MoveTo { node, scope });
        let pid = self.kernel.pid();
        let error = match self.kernel.call(pid, &addresses, to, &mut answers) {
            Ok(_) => None,
            Err(error) => Some(match error.errno() {
                libc::ENOMEM => MoveStatus::NoMemory,
                libc::ESRCH => MoveStatus::NotTried,
                errno => MoveStatus::Failed(errno),
            }),
        };
        for (i, answer) in batch.open.iter().zip(answers) {
            batch.statuses[*i] = error.unwrap_or_else(|| refusal(answer));
        }
    }

    /// Queries where the open pages are: those in the target tier are done, those that are nowhere too.
    fn settle(&self, batch: &mut Batch<'_>, to: TierId, there: MoveStatus) {
        let addresses = batch.open_addresses();
        let mut nodes = vec![NOT_ANSWERED; addresses.len()];
        if self.query(&addresses, &mut nodes).is_err() {
            return;
        }
        let open = std::mem::take(&mut batch.open);
        for (i, node) in open.into_iter().zip(nodes) {
            if self.tier(node) == Some(to) {
                batch.statuses[i] = there;
            } else if matches!(-node, libc::ENOENT | libc::EFAULT) {
                batch.statuses[i] = MoveStatus::Absent;
            } else {
                batch.open.push(i);
            }
        }
    }
}

struct Batch<'a> {
    items: &'a [Item],
    statuses: Vec<MoveStatus>,
    /// Positions of those that are not done.
    open: Vec<usize>,
}

impl<'a> Batch<'a> {
    fn new(items: &'a [Item]) -> Self {
        Self {
            items,
            statuses: vec![MoveStatus::NotTried; items.len()],
            open: (0..items.len()).collect(),
        }
    }

    fn close(&mut self, status: MoveStatus) {
        for i in self.open.drain(..) {
            self.statuses[i] = status;
        }
    }

    /// Only what is busy may become free.
    fn keep_busy(&mut self) {
        let statuses = &self.statuses;
        self.open.retain(|i| statuses[*i] == MoveStatus::Busy);
    }

    fn open_addresses(&self) -> Vec<u64> {
        self.open.iter().map(|i| self.items[*i].address).collect()
    }
}

/// The scope of a move: the pages that may be moved. Of RAM that the hypervisor maps shared the second one to map a
/// page is our worker, by right: without those pages nothing that was scanned would move. If it maps the RAM private,
/// or if others are known to map the shared file too, a page that has a second mapper belongs to another process as
/// well, and it stays.
fn scope(is_shared: bool, others_map: bool) -> MoveScope {
    if is_shared && !others_map {
        MoveScope::Shared
    } else {
        MoveScope::Exclusive
    }
}

/// The status that a page's own answer means if the page is not in the target tier afterwards.
fn refusal(answer: i32) -> MoveStatus {
    match answer.checked_neg() {
        Some(libc::ENOMEM) => MoveStatus::NoMemory,
        Some(libc::EACCES) => MoveStatus::MappedByOthers,
        Some(errno) if errno > 0 && !matches!(errno, libc::EBUSY | libc::EAGAIN) => {
            MoveStatus::Failed(errno)
        }
        // Also if the kernel stopped before it, or reports a node that is no longer true.
        _ => MoveStatus::Busy,
    }
}

fn weight(item: &Item) -> usize {
    if item.bytes == HUGE { HUGE_WEIGHT } else { 1 }
}

/// Does the work on this thread and, as far as the system has them to give, on `others` more.
fn on_threads(others: usize, builder: fn() -> thread::Builder, work: &(impl Fn() + Sync)) {
    thread::scope(|scope| {
        for _ in 0..others {
            if let Err(error) = builder().spawn_scoped(scope, work) {
                tracing::debug!(%error, "pages are moved by fewer threads");
                break;
            }
        }
        work();
    });
}

fn batches(items: &[Item], limit: usize) -> Vec<std::ops::Range<usize>> {
    let mut batches = Vec::new();
    let (mut start, mut sum) = (0, 0);
    for (i, item) in items.iter().enumerate() {
        let own = weight(item);
        let is_alike = items[start].scope == item.scope;
        if i > start && (sum + own > limit || !is_alike) {
            batches.push(start..i);
            (start, sum) = (i, 0);
        }
        sum += own;
    }
    if start < items.len() {
        batches.push(start..items.len());
    }
    batches
}

/// A unit's status from those of its items; the worst decides, but absent parts do not count.
fn joined(statuses: impl Iterator<Item = MoveStatus>) -> MoveStatus {
    let rank = |status: &MoveStatus| match status {
        MoveStatus::Absent => 0,
        MoveStatus::AlreadyThere => 1,
        MoveStatus::Moved => 2,
        MoveStatus::NotTried => 3,
        MoveStatus::Busy => 4,
        MoveStatus::MappedByOthers => 5,
        MoveStatus::NoMemory => 6,
        MoveStatus::Failed(_) => 7,
    };
    statuses.max_by_key(rank).unwrap_or(MoveStatus::Absent)
}

/// The kernel's last word corrects the status. `now` of a unit that is only partly in the target tier
/// is that of its first page elsewhere.
fn result(
    page: &PageMove,
    status: MoveStatus,
    codes: impl Iterator<Item = PageCode>,
) -> PageResult {
    let mut there = None;
    let mut elsewhere = None;
    for code in codes {
        match code.tier() {
            None => {}
            Some(tier) if tier == page.to => there = there.or(Some(code)),
            Some(_) => elsewhere = elsewhere.or(Some(code)),
        }
    }
    let arrived = matches!(status, MoveStatus::Moved | MoveStatus::AlreadyThere);
    let status = match (elsewhere, there) {
        (Some(_), _) if arrived => MoveStatus::Busy,
        (None, Some(_)) if !arrived => MoveStatus::Moved,
        (None, None) if arrived => MoveStatus::Absent,
        _ => status,
    };
    PageResult {
        gfn: page.gfn,
        status,
        now: elsewhere.or(there).unwrap_or(PageCode::ABSENT),
    }
}

#[cfg(test)]
mod tests;
