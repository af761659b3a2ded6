//! The frames of `terrace demo`.

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect, Size};
use ratatui::style::{Color, Stylize as _};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};
use terrace_api::types::HeatMap;
use terrace_core::{PhaseView, VmView};
use terrace_proto::VmId;
use terrace_sim::{Scenario, Simulation, Timeline, VmTimeline};

use super::Controls;
use crate::commands::map::{COLOURS, live};
use crate::render;

/// Lines of a VM's panel above its map: in a low panel, in a high one.
const TEXT_LINES: (u16, u16) = (6, 7);
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The state of the simulation at one time, as a frame shows it.
pub struct SimulationView<'a> {
    /// Time since the start, s.
    pub now_s: f64,
    /// The share of the longest load that is done, 0 to 1.
    pub progress: f64,
    /// Whether no load runs any more.
    pub is_over: bool,
    /// The run so far.
    pub timeline: &'a Timeline,
    /// The engine's words about each VM, in the timeline's order.
    pub info: Vec<VmInfo>,
}

/// The engine's words about a VM.
#[derive(Default)]
pub struct VmInfo {
    /// The policy's name.
    pub policy: String,
    /// The state of the VM's round; `None` if no engine manages it.
    pub round: Option<String>,
    /// The latest reason: its time (s) and its words.
    pub reason: Option<(f64, String)>,
    /// The VM's memory by place and heat.
    pub map: Option<HeatMap>,
}

impl<'a> SimulationView<'a> {
    /// The view for a frame of that size.
    pub fn of(simulation: &'a Simulation, scenario: &Scenario, size: Size) -> Self {
        let timeline = simulation.timeline();
        let area = Rect::new(0, 0, size.width, size.height);
        let panels = panels(parts(area).panels, scenario.vms.len());
        let vms = (1..).map(VmId).zip(&scenario.vms).zip(&panels);
        let info = vms.map(|((id, vm), panel)| {
            let [_, map] = inside(*panel);
            let cells = u64::from(map.width) * u64::from(map.height);
            let mut info = info(simulation, id, scenario.machine.scale, cells);
            info.policy = vm.policy.name();
            info
        });
        Self {
            now_s: simulation.now().0 as f64 / 1e9,
            progress: simulation.progress(),
            is_over: simulation.progress() >= 1.0,
            timeline,
            info: info.collect(),
        }
    }
}

/// The engine's words about a VM. The engine sees the simulated pages: each stands for `scale` of the full-size
/// machine.
fn info(simulation: &Simulation, id: VmId, scale: u64, cells: u64) -> VmInfo {
    let engine = simulation.engine();
    let Some(vm) = engine.vm(id) else {
        return VmInfo::default();
    };
    // As many pages of the full-size machine as simulated ones, times the scale.
    let map = engine.heat_map(id, cells.max(1)).map(|map| HeatMap {
        pages_per_cell: map.pages_per_cell * scale,
        ..map
    });
    let reason = engine.vm_reasons(id, 0).last();
    VmInfo {
        round: Some(round(&vm, scale)),
        reason: reason.map(|r| (r.at.0 as f64 / 1e9, r.text.clone())),
        map,
        ..VmInfo::default()
    }
}

fn round(vm: &VmView, scale: u64) -> String {
    let phase = match &vm.phase {
        PhaseView::Unmanaged => "its policy does nothing".into(),
        PhaseView::Waiting => "waits for the next".into(),
        PhaseView::Placing => "asks where pages are".into(),
        PhaseView::Clearing => "clears accessed bits".into(),
        PhaseView::Window { window, of, .. } => format!("in window {window} of {of}"),
        PhaseView::Scanning { window, of, .. } => format!("scans after window {window} of {of}"),
        PhaseView::Moving { waiting_pages, .. } => {
            format!("moves, {} to go", render::pages(waiting_pages * scale))
        }
        PhaseView::Unscannable { reason } => format!("cannot be scanned: {reason}"),
    };
    format!("round {}: {phase}", vm.round)
}

/// Parts of a frame, from top to bottom.
struct Parts {
    head: Rect,
    panels: Rect,
    legend: Rect,
    foot: Rect,
}

fn parts(area: Rect) -> Parts {
    let [head, panels, legend, foot] = area.layout(&Layout::vertical([
        Constraint::Length(1),
        Constraint::Fill(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ]));
    Parts {
        head,
        panels,
        legend,
        foot,
    }
}

/// The panels of the VMs: two beside each other if they fit.
fn panels(area: Rect, vms: usize) -> Vec<Rect> {
    let columns = if area.width >= 76 && vms > 1 { 2 } else { 1 };
    let rows = vms.div_ceil(columns);
    let lines = Layout::vertical(vec![Constraint::Fill(1); rows]).split(area);
    let line = |row: &Rect| {
        let across = Layout::horizontal(vec![Constraint::Fill(1); columns]);
        across.split(*row).to_vec()
    };
    lines.iter().flat_map(line).take(vms).collect()
}

/// A panel's inside: words above, the map below.
fn inside(panel: Rect) -> [Rect; 2] {
    let inner = Block::bordered().inner(panel);
    let lines = if inner.height < 12 {
        TEXT_LINES.0
    } else {
        TEXT_LINES.1
    };
    let [above, below] = [Constraint::Length(lines), Constraint::Fill(1)];
    inner.layout(&Layout::vertical([above, below]))
}

pub fn draw(view: &SimulationView, controls: &Controls, frame: &mut Frame) {
    let area = frame.area();
    let parts = parts(area);
    frame.render_widget(head(view, controls), parts.head);
    let places = panels(parts.panels, view.timeline.vms.len());
    let vms = view.timeline.vms.iter().zip(&view.info);
    for ((vm, info), place) in vms.zip(places) {
        panel(view, vm, info, frame, place);
    }
    if let Some(map) = view.info.iter().find_map(|info| info.map.as_ref()) {
        let mut legend = vec![Span::from(" ")];
        legend.extend(live::colours(map));
        frame.render_widget(Line::from(legend), parts.legend);
    }
    let keys = " space pause  + faster  - slower  ? help  q quit";
    frame.render_widget(Line::from(keys).dark_gray(), parts.foot);
    if controls.help {
        help(frame, area);
    }
}

fn head(view: &SimulationView, controls: &Controls) -> Line<'static> {
    let done = (view.progress.clamp(0.0, 1.0) * 1000.0).round();
    // Between 0 and 1000 by construction; the cast saturates.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let done = done as u64;
    let mut spans = vec![
        Span::from(" terrace demo ").bold(),
        format!("{:.0} s ", view.now_s).into(),
        render::bar(done, 1000, 20).cyan(),
        format!("  {}x", controls.speed).into(),
    ];
    if view.is_over {
        spans.push("  over: q shows what came of it".yellow());
    } else if controls.is_paused {
        spans.push("  paused".yellow());
    } else if controls.is_late {
        spans.push("  as fast as it can".dark_gray());
    }
    Line::from(spans)
}

fn panel(view: &SimulationView, vm: &VmTimeline, info: &VmInfo, frame: &mut Frame, area: Rect) {
    let title = Line::from(vec![
        " ".into(),
        Span::from(vm.name.clone()).bold(),
        format!(" {} ", info.policy).into(),
    ]);
    let cell = info.map.as_ref().map(|map| map.pages_per_cell);
    let cell = cell.map(|pages| format!(" {} a cell ", render::pages(pages)));
    let block = Block::bordered().title(title);
    let block = block.title_bottom(cell.unwrap_or_default());
    frame.render_widget(block, area);
    let [text, place] = inside(area);
    let held = vm.samples.last().map_or(&[][..], |s| &s.tier_bytes);
    let mut lines = vec![
        tier_line(&view.timeline.tiers, held),
        tier_bar(&view.timeline.tiers, held, text.width),
        hits(vm, text.width),
        moves(vm),
    ];
    lines.extend(info.round.clone().map(Line::from));
    lines.extend(reason(info));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), text);
    match &info.map {
        Some(map) => {
            let rows: Vec<Line> = live::rows(map, place.width).collect();
            frame.render_widget(Paragraph::new(rows), place);
        }
        None => {
            let why = "no map: its pages are not placed";
            frame.render_widget(Line::from(why).dark_gray(), place);
        }
    }
}

/// The bytes in each tier, as `dram 7.2 GiB  pmem 16.8 GiB`, each after its letter and colour in the bar.
fn tier_line(tiers: &[String], held: &[u64]) -> Line<'static> {
    let tiers = tiers.iter().zip(held).enumerate();
    let spans = tiers.flat_map(|(tier, (name, bytes))| {
        let text = format!(" {name} {}  ", render::bytes(*bytes));
        [tier_mark(name, tier, 1), text.into()]
    });
    spans.collect()
}

/// The VM's memory as a bar: each tier as wide as its part and with its first letter.
fn tier_bar(tiers: &[String], held: &[u64], width: u16) -> Line<'static> {
    let all: u64 = held.iter().sum();
    let width = u64::from(width);
    let (mut sum, mut drawn) = (0_u64, 0);
    let mut spans = Vec::new();
    for (tier, bytes) in held.iter().enumerate() {
        sum += bytes;
        // Each ends where its sum does, so that the bar is always of the same width.
        let end = (u128::from(sum) * u128::from(width)).checked_div(all.into());
        let end = end.map_or(0, |end| u64::try_from(end).unwrap_or(width));
        let name = tiers.get(tier).map_or("?", String::as_str);
        spans.push(tier_mark(name, tier, end.saturating_sub(drawn)));
        drawn = end;
    }
    Line::from(spans)
}

/// A part of the bar: a tier's first letter, so many times, on its colour.
fn tier_mark(name: &str, tier: usize, times: u64) -> Span<'static> {
    let letter = name.chars().next().unwrap_or('?').to_ascii_uppercase();
    let text: String = (0..times).map(|_| letter).collect();
    let (cold, hot) = COLOURS[tier.min(COLOURS.len() - 1)];
    let colour = |(r, g, b)| Color::Rgb(r, g, b);
    Span::from(text).fg(colour(cold)).bg(colour(hot))
}

/// The share of fast hits: now, and as a line over the newest samples.
fn hits(vm: &VmTimeline, width: u16) -> Line<'static> {
    let Some(last) = vm.samples.last() else {
        return Line::from("fast hits: nothing yet").dark_gray();
    };
    let text = format!("fast hits {:5.1} % ", last.fast_hit_ratio * 100.0);
    let room = usize::from(width).saturating_sub(text.chars().count());
    let newest = vm.samples.len().saturating_sub(room);
    let line: String = vm.samples[newest..]
        .iter()
        .map(|s| level(s.fast_hit_ratio))
        .collect();
    Line::from(vec![text.into(), line.cyan()])
}

/// A share as the height of a block; a space if it is no number.
fn level(share: f64) -> char {
    if share.is_nan() {
        return ' ';
    }
    let steps = [0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875];
    LEVELS[steps.iter().filter(|step| share >= **step).count()]
}

fn moves(vm: &VmTimeline) -> Line<'static> {
    let samples = || vm.samples.iter();
    let up = samples().map(|s| s.promoted_pages).sum();
    let down = samples().map(|s| s.demoted_pages).sum();
    let text = format!("up {}  down {}", render::pages(up), render::pages(down));
    Line::from(text)
}

fn reason(info: &VmInfo) -> Option<Line<'static>> {
    let (at_s, text) = info.reason.as_ref()?;
    let at = Span::from(format!("{at_s:.0} s: ")).dark_gray();
    Some(Line::from(vec![at, text.clone().into()]))
}

fn help(frame: &mut Frame, area: Rect) {
    const TEXT: &str = "\
space          time stands still, or goes on
+, -           twice or half as many seconds of the machine per second
?              this; q quits and prints what came of it

The VMs are simulated; the engine that moves their pages is the real one.
The bar: what the VM holds of each tier. Fast hits: share of its accesses
that the first tier serves, a block per second of the machine.
Last line: what the engine did, and why (sizes there are a 256th: that is
the scale of what is simulated).
The map: one cell is so much guest memory, in address order. The letter is
the tier that holds most of it, a capital where at least half was accessed
in the last round; the colour says tier and heat more finely.";
    let block = Block::bordered().title(" keys ").cyan();
    let place = area.centered(Constraint::Length(78), Constraint::Length(14));
    frame.render_widget(Clear, place);
    frame.render_widget(Paragraph::new(TEXT).block(block), place);
}
