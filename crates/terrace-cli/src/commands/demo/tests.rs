//! Frames and keys, without a terminal and without a simulation.

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use terrace_api::types::{Cell, HeatMap};
use terrace_sim::{Sample, Timeline, VmTimeline};

use super::frame::VmInfo;
use super::*;
use crate::commands::top::picture;

const GIB: u64 = 1 << 30;

fn timeline(vms: &[&str]) -> Timeline {
    let sample = |i: u32| Sample {
        at_s: f64::from(i + 1),
        ops_per_s: 1e7,
        fast_hit_ratio: f64::from(i) / 39.0,
        promoted_pages: 1 << 12,
        demoted_pages: 1 << 11,
        tier_bytes: vec![8 * GIB, 24 * GIB],
        heat: Vec::new(),
    };
    let vm = |name: &&str| VmTimeline {
        name: (*name).into(),
        memory_bytes: 32 * GIB,
        samples: (0..40).map(sample).collect(),
    };
    Timeline {
        tiers: vec!["dram".into(), "pmem".into()],
        vms: vms.iter().map(vm).collect(),
    }
}

fn info() -> VmInfo {
    let cell = |tier_pages: [u64; 2], warm_pages: [u64; 2]| Cell {
        known_pages: tier_pages.iter().sum(),
        tier_pages: tier_pages.to_vec(),
        warm_pages: warm_pages.to_vec(),
        degree_sum: 0,
    };
    VmInfo {
        policy: "vtmm".into(),
        round: Some("round 4: in window 3 of 8".into()),
        reason: Some((41.7, "wants 9 GiB of fast memory".into())),
        map: Some(HeatMap {
            pages_per_cell: 1 << 15,
            tiers: vec!["dram".into(), "pmem".into()],
            max_degree: 8,
            cells: vec![
                cell([256, 0], [200, 0]),
                cell([256, 0], [0, 0]),
                cell([0, 256], [0, 255]),
                cell([0, 256], [0, 1]),
            ],
        }),
    }
}

fn view(timeline: &Timeline) -> SimulationView<'_> {
    SimulationView {
        now_s: 42.4,
        progress: 0.25,
        is_over: false,
        timeline,
        info: timeline.vms.iter().map(|_| info()).collect(),
    }
}

fn text(view: &SimulationView, controls: &Controls, (width, height): (u16, u16)) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|f| frame::draw(view, controls, f)).unwrap();
    picture::text(terminal.backend().buffer())
}

#[test]
fn a_panel_shows_tiers_hits_moves_reason_and_map() {
    let timeline = timeline(&["web", "kv", "scan", "batch"]);
    let text = text(&view(&timeline), &Controls::new(10.0), (100, 36));
    let has = |what: &str| assert!(text.contains(what), "no {what:?} in\n{text}");
    has(" terrace demo 42 s █████░░░░░░░░░░░░░░░  10x");
    has("┌ web vtmm ─");
    has("│D dram 8 GiB  P pmem 24 GiB");
    has(&format!("│{}{}│", "D".repeat(12), "P".repeat(36)));
    has("fast hits 100.0 % ▃▃▃▃▃▄▄▄▄▄▅▅▅▅▅▆▆▆▆▆▇▇▇▇▇█████│");
    has("│up 640 MiB  down 320 MiB ");
    has("│round 4: in window 3 of 8 ");
    has("42 s: wants 9 GiB of fast memory");
    has("│DdPp ");
    has("└ 128 MiB a cell ─");
    has(" d dram cold D dram hot p pmem cold P pmem hot");
    assert_eq!(text.matches("│DdPp ").count(), 4, "{text}");
}

#[test]
fn unmanaged_vms_and_those_without_samples_are_drawn_too() {
    let mut timeline = timeline(&["a", "b"]);
    timeline.vms[0].samples.clear();
    timeline.vms[1].samples[39].fast_hit_ratio = f64::NAN;
    let mut view = view(&timeline);
    view.info[0] = VmInfo {
        policy: "first-touch".into(),
        ..VmInfo::default()
    };
    view.is_over = true;
    let text = text(&view, &Controls::new(0.125), (100, 20));
    assert!(
        text.contains("0.125x  over: q shows what came of it"),
        "{text}"
    );
    assert!(text.contains("fast hits: nothing yet"), "{text}");
    assert!(text.contains("no map: its pages are not placed"), "{text}");
}

#[test]
fn tiny_and_huge_terminals_are_drawn_too() {
    let names: Vec<String> = (0..9).map(|i| i.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    for vms in [0, 1, 4, 9] {
        let timeline = timeline(&names[..vms]);
        let mut controls = Controls::new(1.0);
        controls.help = true;
        for size in [(1, 1), (10, 3), (40, 10), (80, 24), (500, 200)] {
            text(&view(&timeline), &controls, size);
        }
    }
}

#[test]
fn keys_pause_and_change_the_speed_within_bounds() {
    let mut controls = Controls::new(10.0);
    let mut press = |code| controls.press(KeyEvent::new(code, KeyModifiers::NONE));
    assert!(!press(KeyCode::Char(' ')));
    assert!(!press(KeyCode::Char('+')));
    assert!(!press(KeyCode::Char('?')));
    assert!(!press(KeyCode::Esc), "closes the help");
    assert!(press(KeyCode::Esc));
    assert!(press(KeyCode::Char('q')));
    assert!(controls.is_paused && !controls.help);
    assert_eq!(controls.step_ns(), 2_000_000_000);
    for _ in 0..20 {
        controls.press(KeyEvent::new(KeyCode::Char('-'), KeyModifiers::NONE));
    }
    assert_eq!(controls.speed, 0.125);
    for _ in 0..20 {
        controls.press(KeyEvent::new(KeyCode::Char('+'), KeyModifiers::NONE));
    }
    assert_eq!(controls.speed, 1024.0);
    let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
    assert!(controls.press(interrupt));
}

#[test]
fn the_built_in_scenario_is_valid_and_takes_any_policy() {
    let plain = scenario(None).unwrap();
    assert_eq!(plain.vms.len(), 4);
    let still = scenario(Some("first-touch")).unwrap();
    assert!(still.vms.iter().all(|vm| vm.policy.name() == "first-touch"));
    let error = scenario(Some("fastest")).unwrap_err().to_string();
    assert!(
        error.contains("fastest") && error.contains("vtmm"),
        "{error}"
    );
}
