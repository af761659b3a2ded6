//! The frames of `terrace top`.

use std::path::{Path, PathBuf};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Style, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Table, TableState, Wrap};
use terrace_api::client::ClientError;
use terrace_api::types::{Mode, Status, Tier, Vm, VmDetail};

use super::Snapshot;
use crate::commands::map::live;
use crate::commands::provisioning;
use crate::render;

/// The contents of the screen, and the operator's choices.
pub struct Screen {
    socket: PathBuf,
    /// Name of the selected VM; `None`: the first.
    pub selected: Option<String>,
    /// Whether the keys are explained.
    pub help: bool,
    /// The answer to the last order.
    pub said: Option<String>,
    /// The reason why there is nothing new.
    problem: Option<String>,
    snapshot: Option<Snapshot>,
}

impl Screen {
    pub fn new(socket: &Path, selected: Option<String>) -> Self {
        Self {
            socket: socket.to_owned(),
            selected,
            help: false,
            said: None,
            problem: None,
            snapshot: None,
        }
    }

    /// Takes in an answer. If it is an error, the last snapshot stays.
    pub fn take(&mut self, answer: Result<Snapshot, ClientError>) {
        match answer {
            Ok(snapshot) => {
                self.problem = None;
                self.snapshot = Some(snapshot);
            }
            Err(error) => self.problem = Some(error.to_string()),
        }
    }

    pub fn vms(&self) -> &[Vm] {
        self.snapshot.as_ref().map_or(&[], |s| &s.vms)
    }
}

/// The position of the VM of this name; that of the first one if there is no such VM.
pub fn select(vms: &[Vm], name: Option<&str>) -> Option<usize> {
    let named = vms.iter().position(|vm| Some(vm.name.as_str()) == name);
    named.or((!vms.is_empty()).then_some(0))
}

/// Parts of a frame, from top to bottom: the host, the list, the map beside the VM's details, the keys.
struct Areas {
    host: Rect,
    list: Rect,
    map: Rect,
    details: Rect,
    foot: Rect,
}

fn areas(area: Rect, vms: usize) -> Areas {
    // A header and two lines of border; the list takes 40 % at most and scrolls.
    let rows = u16::try_from(vms.max(1))
        .unwrap_or(u16::MAX)
        .saturating_add(3);
    let list = rows.min(area.height * 2 / 5).max(4);
    let [host, list, body, foot] = area.layout(&Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(list),
        Constraint::Fill(1),
        Constraint::Length(1),
    ]));
    let [map, details] = body.layout(&Layout::horizontal([
        Constraint::Fill(1),
        Constraint::Fill(1),
    ]));
    Areas {
        host,
        list,
        map,
        details,
        foot,
    }
}

/// Cells of the map in a frame of this size.
pub fn map_cells(area: Rect, vms: usize) -> u64 {
    let map = inside(areas(area, vms).map);
    u64::from(map.width.max(1)) * u64::from(map.height.saturating_sub(1).max(1))
}

fn inside(area: Rect) -> Rect {
    Block::bordered().inner(area)
}

pub fn draw(screen: &Screen, frame: &mut Frame) {
    let area = frame.area();
    let parts = areas(area, screen.vms().len());
    match &screen.snapshot {
        None => frame.render_widget(Line::from(" terrace top").bold(), parts.host),
        Some(snapshot) => {
            frame.render_widget(host(&snapshot.status), parts.host);
            list(screen, snapshot, frame, parts.list);
            map(snapshot, frame, parts.map);
            details(snapshot, frame, parts.details);
        }
    }
    if let Some(problem) = &screen.problem {
        trouble(screen, problem, frame, area);
    }
    frame.render_widget(foot(screen), parts.foot);
    if screen.help {
        help(frame, area);
    }
}

fn host(status: &Status) -> Line<'static> {
    let mut spans = vec![Span::from(" terrace ").bold()];
    spans.push(format!("{}, up {}", status.policy, time(status.uptime_s)).into());
    if status.paused {
        spans.push("  paused".yellow());
    }
    for tier in &status.tiers {
        let used = tier.total_bytes.saturating_sub(tier.free_bytes);
        spans.push(format!("   {} ", tier.name).cyan());
        let text = format!(
            "{} {} of {} free",
            render::bar(used, tier.total_bytes, 8),
            render::bytes(tier.free_bytes),
            render::bytes(tier.total_bytes)
        );
        spans.push(text.into());
    }
    Line::from(spans)
}

/// `42 s`, `3 min`, `5 h`, `12 d`.
fn time(seconds: f64) -> String {
    let units = [("d", 86_400.0), ("h", 3_600.0), ("min", 60.0)];
    let unit = units.iter().find(|(_, size)| seconds >= 2.0 * size);
    match unit {
        Some((name, size)) => format!("{:.0} {name}", (seconds / size).floor()),
        None => format!("{seconds:.0} s"),
    }
}

fn list(screen: &Screen, snapshot: &Snapshot, frame: &mut Frame, area: Rect) {
    let tiers = &snapshot.status.tiers;
    let longest = snapshot.vms.iter().map(|vm| vm.name.chars().count()).max();
    let columns = columns(tiers, longest.unwrap_or(0), inside(area).width);
    let header = columns.iter().map(|column| column.title.clone());
    let header: Vec<String> = header.collect();
    let widths = columns.iter().map(|column| match column.place {
        0 => Constraint::Min(column.width.min(8)),
        _ => Constraint::Length(column.width),
    });
    let widths: Vec<Constraint> = widths.collect();
    let rows = snapshot.vms.iter().map(|vm| {
        let cells = cells(vm, tiers.len());
        let shown = columns.iter().filter_map(|column| cells.get(column.place));
        let row = Row::new(shown.cloned().collect::<Vec<String>>());
        match vm.mode {
            Mode::Unscannable => row.red(),
            Mode::Paused => row.yellow(),
            Mode::Ignored => row.dark_gray(),
            Mode::Managed | Mode::Observed | Mode::Guest => row,
        }
    });
    let table = Table::new(rows, widths)
        .header(Row::new(header).bold())
        .row_highlight_style(Style::new().reversed())
        .block(Block::bordered().title(format!(" {} VMs ", snapshot.vms.len())));
    let selected = select(&snapshot.vms, screen.selected.as_deref());
    let mut state = TableState::new().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut state);
}

/// A column of the list: its title, its width, and which of a VM's cells it shows.
struct Column {
    title: String,
    width: u16,
    place: usize,
}

/// Least and greatest width of the names, if their column has to share.
const NAME_WIDTH: (u16, u16) = (4, 24);
/// Columns that a narrow terminal does without, the first one first.
const DISPENSABLE: [&str; 9] = [
    "DEMOTED",
    "PROMOTED",
    "WANTS",
    "SIZE",
    "ROUNDS",
    "MOVES",
    "HOT",
    "RAM",
    "HOT ON FAST",
];

/// The columns for which there is room beside the VMs' names.
fn columns(tiers: &[Tier], longest: usize, room: u16) -> Vec<Column> {
    let name = u16::try_from(longest).unwrap_or(u16::MAX);
    let name = name.clamp(NAME_WIDTH.0, NAME_WIDTH.1);
    let titles = [("VM", name), ("STATE", 11), ("MOVES", 5), ("RAM", 8)];
    let titles = titles.map(|(title, width)| (title.to_owned(), width));
    let of_tiers = tiers.iter().map(|t| (t.name.to_uppercase(), 9));
    let rest = [
        ("WANTS", 8),
        ("SIZE", 8),
        ("HOT", 8),
        ("HOT ON FAST", 11),
        ("PROMOTED", 8),
        ("DEMOTED", 8),
        ("ROUNDS", 6),
    ];
    let rest = rest.map(|(title, width)| (title.to_owned(), width));
    let all = titles.into_iter().chain(of_tiers).chain(rest);
    let all = all.enumerate().map(|(place, (title, width))| Column {
        title,
        width,
        place,
    });
    let mut columns: Vec<Column> = all.collect();
    for title in DISPENSABLE {
        let wanted = columns.iter().map(|column| column.width + 1).sum::<u16>();
        // No column is behind the last space.
        if wanted <= room + 1 {
            break;
        }
        // A tier may have the name of a column.
        let one = columns.iter().rposition(|column| {
            column.title == title && !(4..4 + tiers.len()).contains(&column.place)
        });
        if let Some(at) = one {
            columns.remove(at);
        }
    }
    columns
}

fn cells(vm: &Vm, tiers: usize) -> Vec<String> {
    let unknown = || "-".to_owned();
    let on_fast = vm.hot_pages.zip(vm.hot_on_fast_pages);
    let tier = |t| {
        vm.tier_bytes
            .get(t)
            .map_or_else(unknown, |b| render::bytes(*b))
    };
    let mut cells = vec![
        vm.name.clone(),
        vm.mode.to_string(),
        if vm.moves { "on" } else { "off" }.into(),
        render::bytes(vm.memory_bytes),
    ];
    cells.extend((0..tiers).map(tier));
    let share = vm.share.as_ref();
    cells.extend([
        share
            .and_then(|s| s.want_bytes)
            .map_or_else(unknown, render::bytes),
        share
            .and_then(|s| s.target_bytes)
            .map_or_else(unknown, render::bytes),
        vm.hot_pages.map_or_else(unknown, render::pages),
        on_fast.map_or_else(unknown, |(hot, here)| {
            format!("{} %", render::percent(here, hot))
        }),
        render::pages(vm.promoted_pages),
        render::pages(vm.demoted_pages),
        vm.rounds.to_string(),
    ]);
    cells
}

fn map(snapshot: &Snapshot, frame: &mut Frame, area: Rect) {
    let block = Block::bordered().title(" guest-physical memory ");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let Some(map) = &snapshot.map else {
        let why = "no map: the VM is not under management";
        frame.render_widget(Paragraph::new(why).dark_gray(), inner);
        return;
    };
    let mut lines = vec![live::legend(map)];
    lines.extend(live::rows(map, inner.width));
    frame.render_widget(Paragraph::new(lines), inner);
}

fn details(snapshot: &Snapshot, frame: &mut Frame, area: Rect) {
    let block = Block::new().borders(Borders::ALL);
    let Some(detail) = &snapshot.detail else {
        frame.render_widget(block, area);
        return;
    };
    let block = block.title(format!(" {} ", detail.vm.name));
    let inner = block.inner(area);
    let mut lines = now(detail);
    lines.push(Line::default());
    let room = usize::from(inner.height).saturating_sub(lines.len());
    // Newest first: what does not fit is the oldest.
    let news = news(detail, snapshot.status.uptime_s)
        .into_iter()
        .take(room);
    lines.extend(news.map(|(ago, text)| {
        let ago = format!("{:>6} ago  ", time(ago));
        Line::from(vec![Span::from(ago).dark_gray(), text.into()])
    }));
    let text = Paragraph::new(lines).wrap(Wrap { trim: true }).block(block);
    frame.render_widget(text, area);
}

/// The reasons of a VM and the changes of its memory, the newest first, with the seconds since.
fn news(detail: &VmDetail, uptime_s: f64) -> Vec<(f64, String)> {
    let reasons = detail.reasons.iter().rev();
    let reasons = reasons.map(|reason| ((uptime_s - reason.at_s).max(0.0), reason.text.clone()));
    let changes = detail.provisioning.iter().flat_map(|seen| &seen.changes);
    let changes = changes.map(|change| (change.ago_s.unwrap_or(0.0), provisioning::change(change)));
    let mut news: Vec<(f64, String)> = reasons.chain(changes).collect();
    news.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    news
}

fn now(detail: &VmDetail) -> Vec<Line<'static>> {
    let vm = &detail.vm;
    let mut lines = vec![Line::from(format!("{}: {}", vm.mode, vm.reason)).bold()];
    let next = detail
        .next_round_in_s
        .map(|s| format!("; next round in {}", time(s)));
    lines.push(Line::from(format!(
        "{}{}",
        detail.phase,
        next.unwrap_or_default()
    )));
    if let Some(round) = detail.history.iter().rev().find(|r| r.abandoned.is_none()) {
        lines.push(Line::from(format!(
            "round {}: {} hot (degree {} and up) of {} known",
            round.number,
            render::pages(round.hot_pages),
            round.threshold_degree,
            render::pages(round.known_pages),
        )));
        lines.push(Line::from(format!(
            "on fast {} -> {}; up {}, down {}, failed {}",
            render::pages(round.hot_on_fast_before),
            render::pages(round.hot_on_fast_after),
            render::pages(round.promoted_pages),
            render::pages(round.demoted_pages),
            render::pages(round.failed_pages),
        )));
    }
    if let Some(provisioning) = &detail.provisioning {
        let state = Line::from(format!(
            "resizable memory: {}",
            provisioning::state(provisioning)
        ));
        lines.push(match &provisioning.problem {
            Some(problem) => Line::from(format!("resizable memory: {problem}")).yellow(),
            None => state,
        });
    }
    lines
}

fn foot(screen: &Screen) -> Line<'_> {
    match &screen.said {
        Some(said) => Line::from(format!(" {said}")).yellow(),
        None => {
            Line::from(" ↑↓ select  p pause/resume  m moves on/off  r round now  ? help  q quit")
                .dark_gray()
        }
    }
}

/// Draws the details that the daemon is not there. The frame below shows its last answer.
fn trouble(screen: &Screen, problem: &str, frame: &mut Frame, area: Rect) {
    let width = area.width.saturating_sub(4).min(90);
    let stale = if screen.snapshot.is_some() {
        "Shown is what it said last. "
    } else {
        ""
    };
    let text = format!(
        "{problem}\n\n{stale}Trying again ({}).",
        screen.socket.display()
    );
    // Words wrap: a line more than their letters need, and the lines between.
    let height = problem.len() / usize::from(width.max(3) - 2) + 6;
    let height = u16::try_from(height)
        .unwrap_or(area.height)
        .min(area.height);
    let text = Paragraph::new(text).wrap(Wrap { trim: true });
    let block = Block::bordered().title(" no answer ").red();
    over(frame, area, (width, height), text.block(block));
}

fn help(frame: &mut Frame, area: Rect) {
    const TEXT: &str = "\
up/down, k/j   select a VM
p              pause it (neither scanned nor moved), or go on
m              moves on or off
r              start a round now
?              this; q quits

WANTS, SIZE: fast memory that its hot set asks of the pool, and what the
pool gives it; for VMs with a nominal size.
HOT: pages in the hot set of the last round: the hottest that fit into the
fastest tier. HOT ON FAST: how much of it was there at the round's end.
The map: one cell is so much guest memory, in address order. The letter is
the tier that holds most of it, a capital where at least half was accessed
in the last round; the colour says tier and heat more finely.";
    let block = Block::bordered().title(" keys ").cyan();
    let text = Paragraph::new(TEXT).block(block);
    over(frame, area, (78, 15), text);
}

/// Draws a widget over the middle of the frame.
fn over(frame: &mut Frame, area: Rect, (width, height): (u16, u16), widget: Paragraph<'_>) {
    let place = area.centered(Constraint::Length(width), Constraint::Length(height));
    frame.render_widget(Clear, place);
    frame.render_widget(widget, place);
}
