//! Frames and keys, without a terminal and without a daemon.

use std::path::PathBuf;

use terrace_api::provision::{ProvisioningStatus, SizeChange};
use terrace_api::types::{Cell, Limit, Reason, Round, Share, Tier};

use super::*;

fn vm(name: &str, mode: Mode) -> Vm {
    Vm {
        name: name.into(),
        pid: Some(7),
        hypervisor: "QEMU with KVM".into(),
        mode,
        reason: "policy vtmm".into(),
        memory_bytes: 64 << 20,
        tier_bytes: vec![16 << 20, 48 << 20],
        share: Some(Share {
            pooled: true,
            weight: 1000,
            nominal_bytes: 16 << 20,
            lower_bytes: 12 << 20,
            upper_bytes: 20 << 20,
            held_bytes: 16 << 20,
            hot_bytes: Some(24 << 20),
            unseen_bytes: Some(0),
            want_bytes: Some(24 << 20),
            target_bytes: Some(20 << 20),
            pool_free_bytes: 4 << 20,
            why: "wants more than it may have".into(),
        }),
        rounds: 3,
        moves: mode == Mode::Managed,
        hot_pages: Some(4000),
        hot_on_fast_pages: Some(3000),
        worth: None,
        promoted_pages: 512,
        demoted_pages: 256,
        agent: None,
    }
}

fn detail(vm: &Vm) -> VmDetail {
    let round = Round {
        number: 3,
        known_pages: 16_000,
        hot_pages: 4000,
        hot_on_fast_before: 1000,
        hot_on_fast_after: 3000,
        threshold_degree: 2,
        ..Round::default()
    };
    let limit = Limit {
        floor_bytes: 0,
        ceiling_bytes: None,
    };
    VmDetail {
        vm: vm.clone(),
        unit_bytes: 4096,
        unit_reason: "as configured".into(),
        limits: vec![limit; 2],
        stages: Vec::new(),
        phase: "in window 3 of 8".into(),
        round_under_way: Some(4),
        next_round_in_s: None,
        history: vec![round],
        reasons: vec![Reason {
            at_s: 90.0,
            text: "limits are now 0 MiB or more".into(),
        }],
        provisioning: None,
        neighbours: None,
    }
}

fn snapshot(vms: Vec<Vm>) -> Snapshot {
    let tier = |name: &str, free| Tier {
        name: name.into(),
        nodes: vec![0],
        total_bytes: 2 << 30,
        free_bytes: free,
    };
    let cell = |tier_pages: [u64; 2], warm_pages: [u64; 2]| Cell {
        known_pages: tier_pages.iter().sum(),
        tier_pages: tier_pages.to_vec(),
        warm_pages: warm_pages.to_vec(),
        degree_sum: 0,
    };
    Snapshot {
        status: Status {
            version: "0".into(),
            uptime_s: 100.0,
            policy: "vtmm".into(),
            moves: true,
            paused: false,
            tiers: vec![tier("fast", 1 << 30), tier("slow", 2 << 30)],
            log_ended: None,
            vms: vms.len(),
        },
        detail: vms.first().map(detail),
        map: Some(HeatMap {
            pages_per_cell: 256,
            tiers: vec!["fast".into(), "slow".into()],
            max_degree: 8,
            cells: vec![
                cell([256, 0], [200, 0]),
                cell([256, 0], [0, 0]),
                cell([0, 256], [0, 255]),
                cell([0, 256], [0, 1]),
                cell([0, 0], [0, 0]),
            ],
        }),
        vms,
    }
}

fn screen(vms: Vec<Vm>) -> Screen {
    let mut screen = Screen::new(&PathBuf::from("/run/x.sock"), None);
    screen.take(Ok(snapshot(vms)));
    screen
}

fn text(screen: &Screen) -> String {
    text_of(screen, 120, 30)
}

fn text_of(screen: &Screen, width: u16, height: u16) -> String {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|f| frame::draw(screen, f)).unwrap();
    picture::text(terminal.backend().buffer())
}

fn gone() -> ClientError {
    ClientError::Refused("cannot reach terraced".into())
}

fn press(screen: &mut Screen, code: KeyCode) -> Pressed {
    screen.press(KeyEvent::new(code, KeyModifiers::NONE))
}

#[test]
fn a_frame_shows_tiers_vms_heat_and_reasons() {
    let text = text(&screen(vec![
        vm("web1", Mode::Managed),
        vm("db", Mode::Paused),
    ]));
    let has = |what: &str| assert!(text.contains(what), "no {what:?} in\n{text}");
    has("vtmm, up 100 s");
    has("fast ████░░░░ 1 GiB of 2 GiB free");
    let row = text.lines().find(|l| l.contains("web1  ")).unwrap();
    let row: Vec<&str> = row.split_whitespace().collect();
    let want = "│web1 managed on 64 MiB 16 MiB 48 MiB 24 MiB 20 MiB 15.6 MiB 75 % 2 MiB 1 MiB 3 │";
    assert_eq!(row.join(" "), want);
    has("│FfSs ");
    has("1 MiB a cell f fast cold F fast hot s slow cold S slow hot");
    has("in window 3 of 8");
    has("round 3: 15.6 MiB hot (degree 2 and up) of 62.5 MiB known");
    has("10 s ago  limits are now 0 MiB or more");
}

#[test]
fn memory_that_moved_stands_between_the_reasons_by_its_time() {
    let mut snapshot = snapshot(vec![vm("web1", Mode::Managed)]);
    let change = |ago_s: f64, is_ordered| SizeChange {
        ago_s: Some(ago_s),
        from_bytes: 512 << 20,
        to_bytes: 438 << 20,
        why: "its guest calls 90 MiB free".into(),
        is_ordered,
    };
    let detail = snapshot.detail.as_mut().unwrap();
    detail.provisioning = Some(ProvisioningStatus {
        changes: vec![change(33.0, false), change(4.0, true)],
        ..ProvisioningStatus::default()
    });
    let mut screen = Screen::new(&PathBuf::from("/run/x.sock"), None);
    screen.take(Ok(snapshot));
    let text = text_of(&screen, 200, 40);
    let at = |what: &str| {
        text.find(what)
            .unwrap_or_else(|| panic!("no {what:?} in\n{text}"))
    };
    let moved = at("4 s ago  512 MiB -> 438 MiB: its guest calls 90 MiB free");
    let said = at("33 s ago  512 MiB -> 438 MiB (not ordered)");
    assert!(moved < at("10 s ago  limits are now") && at("10 s ago  limits are now") < said);
}

#[test]
fn a_narrow_terminal_shows_names_and_whole_columns() {
    let screen = screen(vec![vm("web-frontend-1", Mode::Managed)]);
    for (width, there, gone) in [
        (140, "DEMOTED", "nothing"),
        (100, "HOT ON FAST", "DEMOTED"),
        (80, "SLOW", "WANTS"),
        (60, "SLOW", "PROMOTED"),
    ] {
        let text = text_of(&screen, width, 30);
        let head = text.lines().find(|line| line.contains("VM  ")).unwrap();
        assert!(
            head.contains(there) && !head.contains(gone),
            "{width}: {head}"
        );
        let row = text.lines().find(|line| line.contains("managed ")).unwrap();
        assert!(row.contains("web-frontend-1 "), "{width}: {row}");
        assert!(row.contains("48 MiB "), "{width}: {row}");
    }
}

#[test]
fn a_daemon_that_went_away_is_said_and_what_it_said_stays() {
    let mut screen = screen(vec![vm("web1", Mode::Managed)]);
    screen.take(Err(gone()));
    let shown = text(&screen);
    assert!(shown.contains("cannot reach terraced"), "{shown}");
    assert!(shown.contains("Shown is what it said last."), "{shown}");
    assert!(shown.contains("web1"), "{shown}");
    screen.take(Ok(snapshot(vec![vm("web1", Mode::Managed)])));
    assert!(!text(&screen).contains("no answer"), "it came back");
    let mut never = Screen::new(&PathBuf::from("/run/x.sock"), None);
    never.take(Err(gone()));
    assert!(text(&never).contains("Trying again (/run/x.sock)"));
}

#[test]
fn arrows_select_and_stop_at_the_ends() {
    let mut screen = screen(vec![vm("a", Mode::Managed), vm("b", Mode::Managed)]);
    for (key, want) in [
        (KeyCode::Down, "b"),
        (KeyCode::Down, "b"),
        (KeyCode::Up, "a"),
        (KeyCode::Up, "a"),
    ] {
        assert_eq!(press(&mut screen, key), Pressed::Moved);
        assert_eq!(screen.selected.as_deref(), Some(want));
    }
    screen.take(Ok(snapshot(vec![vm("c", Mode::Managed)])));
    text(&screen);
    assert_eq!(
        press(&mut screen, KeyCode::Down),
        Pressed::Moved,
        "a VM that went is no trap"
    );
    assert_eq!(screen.selected.as_deref(), Some("c"));
    let mut none = self::screen(Vec::new());
    assert_eq!(press(&mut none, KeyCode::Down), Pressed::Nothing);
    text(&none);
}

#[test]
fn keys_pause_resume_move_and_start_rounds() {
    let mut screen = screen(vec![vm("a b", Mode::Managed), vm("p", Mode::Paused)]);
    let path = |pressed: Pressed| match pressed {
        Pressed::VmCommand(VmCommand { path, setting }) => (path, setting.map(|s| s.value)),
        other => panic!("{other:?}"),
    };
    let p = press(&mut screen, KeyCode::Char('p'));
    assert_eq!(path(p), ("/v1/vms/a%20b/pause".into(), None));
    let m = press(&mut screen, KeyCode::Char('m'));
    assert_eq!(path(m), ("/v1/vms/a%20b/set".into(), Some("off".into())));
    let r = press(&mut screen, KeyCode::Char('r'));
    assert_eq!(path(r), ("/v1/vms/a%20b/round".into(), None));
    press(&mut screen, KeyCode::Down);
    let p = press(&mut screen, KeyCode::Char('p'));
    assert_eq!(path(p), ("/v1/vms/p/resume".into(), None));
    press(&mut screen, KeyCode::Char('?'));
    assert!(text(&screen).contains("start a round now"));
    assert_eq!(
        press(&mut screen, KeyCode::Esc),
        Pressed::Nothing,
        "closes the help"
    );
    assert_eq!(press(&mut screen, KeyCode::Char('q')), Pressed::Quit);
}

#[test]
fn tiny_and_huge_terminals_are_drawn_too() {
    let screen = screen(vec![vm("a", Mode::Managed); 300]);
    for (width, height) in [(1, 1), (10, 3), (40, 10), (500, 200)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|f| frame::draw(&screen, f)).unwrap();
        let cells = frame::map_cells(Rect::new(0, 0, width, height), 300);
        assert!((1..=65_536).contains(&cells));
    }
}
