//! Rule 1: clear A, never D.

use serde_json::Value;
use terrace_proto::PageBitmap;

use crate::guest::{CLEAR, Frames, Guest, SEARCH_AND_CLEAR, ranges};
use crate::picture::clear_dirty_bits;

/// Pages that are written again; as many are not, and as many lose their dirty bits by this test's hand.
const PAGES: u64 = 1024;
const SCANS: usize = 10;

/// The kernel knows by the dirty bit alone that a page freed with `MADV_FREE` was written since. So pages
/// of three kinds are put under pressure: the first were written again and scanned, the last were written
/// again and had their dirty bits cleared (by this test: that is the fault), those between were not
/// written (they show that the pressure was enough).
pub fn madv_free_pages_rewritten_after_a_scan_survive(guest: &mut Guest) {
    rewritten_pages_survive(guest);
}

/// The same for a source of writes: the guest's kernel takes bit 58 for D, and the pages that are reported as written
/// are those that were written again.
pub fn madv_free_pages_survive_with_their_dirty_bits_moved_aside(guest: &mut Guest) {
    guest.tell_writes(true);
    rewritten_pages_survive(guest);
    let (hot, written) = (guest.frames("truth"), guest.frames("written"));
    guest.scan(CLEAR);
    guest.wait_for_passes(3);
    let reported = guest.scan(CLEAR).written.expect("writes are reported");
    let is_wrong = |page: &&u64| reported.get(**page) != written.contains(page);
    let wrong = hot.iter().filter(is_wrong).count();
    println!(
        "{} of {} hot pages are written, {wrong} of them told wrongly",
        written.len(),
        hot.len()
    );
    assert!(wrong == 0 && !written.is_empty());
    guest.tell_writes(false);
}

fn rewritten_pages_survive(guest: &mut Guest) {
    guest.ask("idle");
    let frames: Vec<u64> = {
        let answer = guest.ask(&format!("lazyfree {}", 3 * PAGES));
        let frames = answer["frames"].as_array().unwrap();
        frames.iter().map(|frame| frame.as_u64().unwrap()).collect()
    };
    let (survivors, rest) = frames.split_at(PAGES as usize);
    scan_often(guest, survivors);
    guest.ask(&format!("rewrite {}", 2 * PAGES));
    if let [Some(first), .., Some(last)] = &scan_often(guest, survivors)[..] {
        let reported = |map: &PageBitmap, frames: &[u64]| {
            let reported = frames.iter().filter(|frame| map.get(**frame));
            reported.count() as u64
        };
        let (rewritten, others) = frames.split_at(2 * PAGES as usize);
        println!(
            "told as written: {} of {} after writing, {} later; {} of {PAGES} others",
            reported(first, rewritten),
            2 * PAGES,
            reported(last, rewritten),
            reported(first, others)
        );
        assert_eq!(
            reported(first, rewritten),
            2 * PAGES,
            "writes were not reported"
        );
        assert_eq!(reported(last, rewritten) + reported(first, others), 0);
    }
    guest.stop();
    let cleared = clear_dirty_bits(guest, &rest[..PAGES as usize]);
    guest.go_on();
    assert_eq!(guest.ask("pressure")["killed"], true);
    let contents = guest.ask("contents");
    let [intact, dropped, damaged] =
        ["intact", "dropped", "damaged"].map(|k| frames_of(&contents, k));
    let in_range = |set: &Frames, from: u64| set.range(from..from + PAGES).count() as u64;
    println!(
        "written again and scanned: {} of {PAGES} intact; dirty bit cleared by hand: {} dropped; \
         not written: {} dropped",
        in_range(&intact, 0),
        in_range(&dropped, PAGES),
        in_range(&dropped, 2 * PAGES)
    );
    assert_eq!(in_range(&intact, 0), PAGES, "rewritten pages were lost");
    assert!(damaged.is_empty());
    assert_eq!(cleared.len() as u64, PAGES, "entries with a dirty bit");
    assert!(
        in_range(&dropped, 2 * PAGES) > PAGES / 2,
        "no pressure: {contents}"
    );
    assert!(
        in_range(&dropped, PAGES) > PAGES / 2,
        "pages without a dirty bit were kept, so this test cannot fail: {contents}"
    );
    guest.ask("run");
    guest.expect_intact();
}

/// Scans often; gives the pages that each scan reported as written, if it reports writes.
fn scan_often(guest: &mut Guest, frames: &[u64]) -> Vec<Option<PageBitmap>> {
    let answer = guest.scan(SEARCH_AND_CLEAR);
    assert!(frames.iter().all(|frame| answer.known.get(*frame)));
    let rest = (1..SCANS).map(|_| guest.scan(CLEAR).written);
    std::iter::once(answer.written).chain(rest).collect()
}

fn frames_of(contents: &Value, kind: &str) -> Frames {
    ranges(&contents[kind])
}
