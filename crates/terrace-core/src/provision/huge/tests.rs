use super::*;

const SECOND: u64 = 1_000_000_000;
const GIB: u64 = 1 << 30;
const ID: ProviderId = ProviderId(1);

fn at(seconds: u64) -> Tick {
    Tick(seconds * SECOND)
}

/// A VM that grew at second 10 and has the same size at second 14.
fn grown() -> Huge {
    let mut huge = Huge::default();
    huge.seen(at(0), GIB, true);
    huge.seen(at(10), 2 * GIB, true);
    assert_eq!(huge.due(), None);
    huge.seen(at(12), 2 * GIB, true);
    assert_eq!(huge.due(), None);
    huge.seen(at(14), 2 * GIB, true);
    assert_eq!(huge.due(), Some(at(14)));
    huge
}

fn backing(huge_mib: u64) -> HugeBacking {
    HugeBacking {
        present_bytes: GIB,
        huge_bytes: huge_mib << 20,
    }
}

/// The report of a step that tried blocks with these outcomes.
fn report(huge: &Huge, blocks: &[(u64, BlockStatus)], next: Option<u64>) -> CollapseReport {
    let outcome = |(block, status): &(u64, BlockStatus)| BlockOutcome {
        block: *block,
        status: *status,
    };
    let done = Collapsed {
        before: Some(backing(256)),
        after: Some(backing(512)),
        blocks: blocks.iter().map(outcome).collect(),
        next,
    };
    answer(huge, Ok(done))
}

fn answer(huge: &Huge, result: Result<Collapsed, NotCollapsed>) -> CollapseReport {
    CollapseReport {
        provider: ID,
        number: huge.next.number,
        result,
        elapsed_ns: 1_000_000,
    }
}

#[test]
fn a_vm_that_grew_is_searched_in_steps_of_a_seconds_budget() {
    let mut huge = grown();
    let request = huge.step(ID, 64 << 20, 5);
    assert_eq!((request.from, request.blocks), (0, 32));
    assert_eq!((request.number, request.host_reserve_percent), (1, 5));
    // One step at a time, however often the VM is seen.
    huge.seen(at(20), 2 * GIB, true);
    assert_eq!(huge.due(), None);
    let answer = report(&huge, &[(3, BlockStatus::Collapsed)], Some(40));
    assert_eq!(huge.report(at(20), &answer), None);
    assert_eq!(huge.due(), Some(at(21)));
    let second = huge.step(ID, 64 << 20, 5);
    // The memory is measured once a pass.
    assert_eq!((request.is_first, second.is_first), (true, false));
    assert_eq!(second.from, 40);
}

#[test]
fn no_step_is_smaller_than_a_block() {
    assert_eq!(grown().step(ID, 1, 5).blocks, 1);
}

#[test]
fn a_pass_says_the_share_before_and_after_and_comes_again() {
    let mut huge = grown();
    huge.step(ID, 64 << 20, 5);
    let made = [3, 4, 5, 6].map(|block| (block, BlockStatus::Collapsed));
    let answer = report(&huge, &made, None);
    let said = huge.report(at(20), &answer).unwrap();
    let has =
        "huge pages were made of 8 MiB: 25 % of its memory had them before, 50 % has them now";
    assert_eq!(said, has);
    assert_eq!(huge.due(), Some(at(30)));
    let view = huge.view().unwrap();
    assert_eq!(
        (view.before_percent, view.after_percent),
        (Some(25.0), Some(50.0))
    );
    assert_eq!((view.collapsed_bytes, view.is_under_way), (8 << 20, true));
}

#[test]
fn passes_that_find_nothing_come_less_often_and_end() {
    let mut huge = grown();
    let mut pauses = Vec::new();
    let mut now = 20;
    while huge.due().is_some() {
        huge.step(ID, 64 << 20, 5);
        let answer = report(&huge, &[], None);
        let said = huge.report(at(now), &answer);
        // The first one alone is news.
        assert_eq!(said.is_some(), pauses.is_empty());
        if let Some(due) = huge.due() {
            pauses.push(due.0 / SECOND - now);
            now = due.0 / SECOND;
        }
    }
    assert_eq!(pauses, [20, 40, 80, 160, 320, 640]);
    assert!(!huge.view().unwrap().is_under_way);
    huge.seen(at(now + 50), 2 * GIB, true);
    assert_eq!(huge.due(), None);
    // Until it grows again.
    huge.seen(at(now + 60), 3 * GIB, true);
    huge.seen(at(now + 64), 3 * GIB, true);
    assert_eq!(huge.due(), Some(at(now + 64)));
    assert_eq!(huge.view().unwrap().before_percent, None);
}

#[test]
fn a_vm_that_shrinks_is_left_as_it_is_also_in_the_middle() {
    let mut huge = grown();
    huge.step(ID, 64 << 20, 5);
    huge.seen(at(15), GIB, true);
    let answer = report(&huge, &[(3, BlockStatus::Collapsed)], Some(4));
    assert_eq!(huge.report(at(16), &answer), None);
    huge.seen(at(30), GIB, true);
    assert_eq!(huge.due(), None);
}

#[test]
fn a_size_that_moves_on_in_the_middle_has_to_stand_still_again() {
    let mut huge = grown();
    huge.step(ID, 64 << 20, 5);
    huge.seen(at(15), 3 * GIB, true);
    let answer = report(&huge, &[], Some(4));
    huge.report(at(16), &answer);
    assert_eq!(huge.due(), None);
    huge.seen(at(18), 3 * GIB, true);
    assert_eq!(huge.due(), Some(at(18)));
}

#[test]
fn a_vm_that_was_never_resized_or_is_not_seen_is_left_as_it_is() {
    let mut huge = Huge::default();
    for (second, size) in [(0, GIB), (10, 2 * GIB), (20, 2 * GIB)] {
        huge.seen(at(second), size, false);
    }
    assert_eq!((huge.due(), huge.view()), (None, None));
    let mut huge = grown();
    huge.lost_sight();
    assert_eq!(huge.due(), None);
    huge.seen(at(20), 2 * GIB, true);
    assert_eq!(huge.due(), None);
    huge.seen(at(23), 2 * GIB, true);
    assert_eq!(huge.due(), Some(at(23)));
}

#[test]
fn a_block_is_tried_three_times() {
    let mut huge = grown();
    for (now, status) in [
        (20, BlockStatus::Busy),
        (60, BlockStatus::Failed(22)),
        (120, BlockStatus::Busy),
    ] {
        assert!(huge.step(ID, 64 << 20, 5).leave.is_empty());
        let answer = report(&huge, &[(7, status)], None);
        huge.report(at(now), &answer);
    }
    assert_eq!(huge.step(ID, 64 << 20, 5).leave, [7]);
}

#[test]
fn too_many_blocks_that_fail_end_it() {
    let mut huge = grown();
    huge.step(ID, 64 << 20, 5);
    let all: Vec<_> = (0..2000).map(|block| (block, BlockStatus::Busy)).collect();
    let answer = report(&huge, &all, Some(5000));
    huge.report(at(20), &answer);
    assert_eq!(huge.due(), None);
    let view = huge.view().unwrap();
    assert!(!view.is_under_way && view.why_not.is_some());
}

/// A step that something is in the way of, for now.
fn is_in_the_way(huge: &mut Huge, now: Tick) {
    huge.step(ID, 64 << 20, 5);
    let not_now = answer(huge, Err(NotCollapsed::NotNow("it migrates".into())));
    assert_eq!(huge.report(now, &not_now), None);
}

#[test]
fn what_passes_is_waited_for_less_often_and_for_an_hour() {
    let mut huge = grown();
    let mut pauses = Vec::new();
    let mut now = 20;
    while huge.due().is_some() {
        is_in_the_way(&mut huge, at(now));
        if let Some(due) = huge.due() {
            assert_eq!(huge.view().unwrap().why_not.as_deref(), Some("it migrates"));
            pauses.push(due.0 / SECOND - now);
            now = due.0 / SECOND;
        }
    }
    assert_eq!(pauses[..8], [5, 10, 20, 40, 80, 160, 300, 300]);
    assert!((3600..3900).contains(&(now - 20)), "{now}");
    let view = huge.view().unwrap();
    assert!(!view.is_under_way);
    let why = view.why_not.unwrap();
    assert!(why.starts_with("it migrates, for an hour by now"), "{why}");
    assert_eq!(view.steps.not_now, pauses.len() as u64 + 1);
    huge.seen(at(now + 10), 2 * GIB, true);
    assert_eq!(huge.due(), None);
    // It is tried at once if it grows again.
    huge.seen(at(now + 20), 3 * GIB, true);
    huge.seen(at(now + 24), 3 * GIB, true);
    assert_eq!(huge.due(), Some(at(now + 24)));
    is_in_the_way(&mut huge, at(now + 24));
    assert_eq!(huge.due(), Some(at(now + 29)));
}

#[test]
fn a_step_that_goes_well_ends_the_waiting() {
    let mut huge = grown();
    for now in [20, 25, 35] {
        is_in_the_way(&mut huge, at(now));
    }
    assert_eq!(huge.due(), Some(at(55)));
    huge.step(ID, 64 << 20, 5);
    let fine = report(&huge, &[], Some(9));
    huge.report(at(55), &fine);
    is_in_the_way(&mut huge, at(60));
    assert_eq!(huge.due(), Some(at(65)));
}

#[test]
fn another_vms_turn_is_no_obstacle() {
    let mut huge = grown();
    for now in (20..8000).step_by(5) {
        huge.wait_for_turn(at(now));
        assert_eq!(huge.due(), Some(at(now + 5)));
    }
    assert!(huge.view().unwrap().is_under_way);
}

#[test]
fn what_lasts_is_tried_again_after_ten_minutes_and_said_once() {
    let mut huge = grown();
    let never = |huge: &mut Huge, now: u64| {
        huge.step(ID, 64 << 20, 5);
        let never = answer(huge, Err(NotCollapsed::Never("no such call".into())));
        let said = huge.report(at(now), &never);
        let view = huge.view().unwrap();
        assert_eq!(view.why_not.as_deref(), Some("no such call"));
        assert!(!view.is_under_way);
        assert_eq!(huge.due(), Some(at(now + 600)));
        said
    };
    let said = never(&mut huge, 25).unwrap();
    assert_eq!(said, "its memory gets no huge pages back: no such call");
    // Not sooner because it grows.
    huge.seen(at(30), 3 * GIB, true);
    huge.seen(at(40), 3 * GIB, true);
    assert_eq!(huge.due(), Some(at(625)));
    let view = huge.view().unwrap();
    assert_eq!(view.why_not.as_deref(), Some("no such call"));
    assert_eq!(never(&mut huge, 625), None);
    // The operator changed a setting.
    huge.step(ID, 64 << 20, 5);
    let fine = report(&huge, &[(1, BlockStatus::Collapsed)], Some(2));
    huge.report(at(1225), &fine);
    let view = huge.view().unwrap();
    assert_eq!((view.is_under_way, view.why_not), (true, None));
    assert_eq!(view.steps.never, 2);
}

#[test]
fn a_host_without_a_free_huge_page_is_no_blocks_fault() {
    let mut huge = grown();
    for (now, due) in [(20, 25), (25, 35), (35, 55), (55, 95)] {
        assert!(huge.step(ID, 64 << 20, 5).leave.is_empty());
        let none = report(&huge, &[(7, BlockStatus::NoHugePage)], Some(7));
        assert_eq!(huge.report(at(now), &none), None);
        assert_eq!(huge.due(), Some(at(due)));
    }
    assert!(huge.view().unwrap().why_not.unwrap().contains("huge page"));
    assert_eq!(huge.view().unwrap().steps.no_huge_page, 4);
    // It goes on where it ended, and a step that made some is not in vain.
    assert_eq!(huge.step(ID, 64 << 20, 5).from, 7);
    let some = [(7, BlockStatus::Collapsed), (8, BlockStatus::NoHugePage)];
    let some = report(&huge, &some, Some(8));
    huge.report(at(95), &some);
    assert_eq!(huge.due(), Some(at(100)));
    assert_eq!(huge.view().unwrap().steps.collapsed, 1);
}

#[test]
fn a_guest_that_touches_few_blocks_is_not_searched_for_ever() {
    let passes = |blocks: u64| {
        let mut huge = grown();
        let mut now = 20;
        let mut passes = 0;
        while let Some(due) = huge.due() {
            now = now.max(due.0 / SECOND);
            huge.step(ID, 64 << 20, 5);
            let made: Vec<_> = (0..blocks).map(|b| (b, BlockStatus::Collapsed)).collect();
            let answer = report(&huge, &made, None);
            huge.report(at(now), &answer);
            passes += 1;
        }
        (passes, huge.view().unwrap())
    };
    // 1/256 of 2 GiB are four blocks.
    assert_eq!(passes(3).0, 7);
    let (most, view) = passes(4);
    assert_eq!(most, 32);
    assert!(!view.is_under_way && view.why_not.unwrap().contains("32 times"));
    assert_eq!(view.total_bytes, 32 * 4 * BLOCK);
}

#[test]
fn plans_that_do_not_end_are_not_held_back_time_and_again() {
    let mut huge = grown();
    assert!(huge.wait_for_plans(at(14)));
    assert_eq!(huge.due(), Some(at(15)));
    assert!(!huge.wait_for_plans(at(15)));
    assert_eq!(huge.due(), Some(at(20)));
    assert!(huge.wait_for_plans(at(20)));
    assert!(!huge.wait_for_plans(at(21)));
    assert_eq!(huge.due(), Some(at(31)));
}

#[test]
fn an_answer_to_nothing_is_ignored() {
    let mut huge = grown();
    let early = report(&huge, &[(1, BlockStatus::Collapsed)], None);
    assert_eq!(huge.report(at(15), &early), None);
    assert_eq!(huge.view().unwrap().collapsed_bytes, 0);
    huge.step(ID, 64 << 20, 5);
    let mut other = report(&huge, &[(1, BlockStatus::Collapsed)], None);
    other.number += 1;
    assert_eq!(huge.report(at(15), &other), None);
    assert_eq!(huge.view().unwrap().collapsed_bytes, 0);
}

#[test]
fn a_step_that_takes_long_comes_less_often() {
    let mut huge = grown();
    huge.step(ID, 64 << 20, 5);
    let mut slow = report(&huge, &[], Some(9));
    slow.elapsed_ns = SECOND / 2;
    huge.report(at(20), &slow);
    assert_eq!(huge.due(), Some(at(30)));
    huge.step(ID, 64 << 20, 5);
    let mut hostile = report(&huge, &[], Some(9));
    hostile.elapsed_ns = u64::MAX;
    huge.report(at(30), &hostile);
    assert_eq!(huge.due(), Some(at(90)));
}
