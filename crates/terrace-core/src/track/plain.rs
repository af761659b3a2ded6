//! No filter: every page is re-armed and judged in every window (vTMM's "raw PT scanning").
//!
//! Responsible for: adding one window's bits to the counts. It leaves to others: everything else.

use terrace_proto::ScanAnswer;

use super::unit_bits;
use crate::pages::Pages;

pub(super) fn record(pages: &mut Pages, answer: &ScanAnswer, written: &[u64]) {
    let unit = pages.ram().unit();
    let accessed = answer.accessed.words();
    let counts = pages.reads.chunks_mut(64).zip(pages.writes.chunks_mut(64));
    for (index, (reads, writes)) in counts.enumerate() {
        let a = unit_bits(unit, accessed, index);
        if a == 0 {
            continue;
        }
        let w = unit_bits(unit, written, index);
        for (i, (read, write)) in reads.iter_mut().zip(writes).enumerate() {
            let visit = u8::from(a >> i & 1 == 1);
            let wrote = u8::from(w >> i & 1 == 1) & visit;
            *read = read.saturating_add(visit & !wrote);
            *write = write.saturating_add(wrote);
        }
    }
}
