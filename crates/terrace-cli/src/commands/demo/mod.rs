//! `terrace demo`: four simulated VMs live, without any set-up.
//!
//! Responsible for: the built-in scenario, keeping its time beside the clock on the wall, keys and the terminal. It
//! leaves to others: the simulation, the drawing of frames ([`frame`]), and the table of results.

mod frame;
#[cfg(test)]
mod tests;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Size;
use terrace_sim::{Options, Scenario, Simulation};

use crate::args::Demo;
use crate::output::{self, files::check_apart, files::put};
use frame::SimulationView;

const SCENARIO: &str = include_str!("../../../../../scenarios/demo.toml");
/// Full-size time that is simulated between two checks of the keys, ns.
const SLICE_NS: u64 = 50_000_000;
/// Time between two frames.
const FRAME: Duration = Duration::from_millis(100);
/// Time between two samples of the timeline, ns of the full-size machine.
const SAMPLE_NS: u64 = 1_000_000_000;

/// Size of a frame as a picture.
const PICTURE: Size = Size::new(120, 40);

pub fn run(args: &Demo) -> Result<()> {
    let outputs = args.json.iter().chain(&args.svg);
    check_apart([], outputs.map(PathBuf::as_path))?;
    let scenario = scenario(args.policy.as_deref())?;
    let options = Options {
        sample_every_ns: SAMPLE_NS,
        ..Options::default()
    };
    let mut simulation = Simulation::new(&scenario, options)?;
    // Longer than any load of the scenario: they end by themselves.
    let end_ns = args
        .seconds
        .map_or(u64::MAX, |s| s.saturating_mul(1_000_000_000));
    let is_live = !args.once && args.json.is_none() && std::io::stdout().is_terminal();
    let started = Instant::now();
    if is_live {
        // Restores the terminal at a panic, too.
        let mut terminal = ratatui::try_init().context("cannot set up the terminal")?;
        let watched = watch(&mut simulation, &scenario, args, end_ns, &mut terminal);
        ratatui::try_restore().context("cannot restore the terminal")?;
        watched?;
    } else {
        simulation.advance(end_ns);
    }
    if let Some(file) = &args.svg {
        write_svg(&simulation, &scenario, &Controls::new(args.speed), file)?;
    }
    let mut result = simulation.result();
    result.wall_s = started.elapsed().as_secs_f64();
    result.accesses_per_wall_s = result.accesses as f64 / result.wall_s;
    match args.json.as_deref() {
        None => output::print(super::sim::table::text(&[&result])),
        Some(file) if output::is_standard(file) => output::print_json(&result),
        Some(file) => put(file, &(serde_json::to_string_pretty(&result)? + "\n")),
    }
}

/// The built-in scenario; every VM has the given policy if one is named.
fn scenario(policy: Option<&str>) -> Result<Scenario> {
    let scenario = Scenario::parse(SCENARIO, "demo", Path::new(""))?;
    match policy {
        None => Ok(scenario),
        Some(policy) => Ok(scenario.with_policy(policy)?),
    }
}

/// Writes the last frame as a picture.
fn write_svg(
    simulation: &Simulation,
    scenario: &Scenario,
    controls: &Controls,
    file: &Path,
) -> Result<()> {
    let mut terminal = Terminal::new(TestBackend::new(PICTURE.width, PICTURE.height))?;
    let view = SimulationView::of(simulation, scenario, PICTURE);
    terminal.draw(|f| frame::draw(&view, controls, f))?;
    let svg = super::top::picture::svg(terminal.backend().buffer());
    put(file, &svg)
}

/// A span of time as ns; one that does not fit is as good as endless.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn watch(
    simulation: &mut Simulation,
    scenario: &Scenario,
    args: &Demo,
    end_ns: u64,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<()> {
    let mut controls = Controls::new(args.speed);
    loop {
        let drawn = Instant::now();
        let area = terminal.size()?;
        let mut view = SimulationView::of(simulation, scenario, (area.width, area.height).into());
        view.is_over |= simulation.now().0 >= end_ns;
        terminal.draw(|f| frame::draw(&view, &controls, f))?;
        if !controls.is_paused && !view.is_over {
            controls.is_late = !advance(simulation, controls.step_ns(), end_ns, drawn);
        }
        let rest = FRAME.saturating_sub(drawn.elapsed());
        if pressed(&mut controls, rest)? {
            return Ok(());
        }
    }
}

/// Simulates the time of one frame, or as much as the clock allows. Returns whether that was all of it.
fn advance(simulation: &mut Simulation, step_ns: u64, end_ns: u64, since: Instant) -> bool {
    let until = simulation.now().0.saturating_add(step_ns).min(end_ns);
    loop {
        let now = simulation.now().0;
        if now >= until {
            return true;
        }
        let goes_on = simulation.advance(now.saturating_add(SLICE_NS).min(until));
        if !goes_on {
            return true;
        }
        if since.elapsed() >= FRAME {
            return simulation.now().0 >= until;
        }
    }
}

/// Takes keys until the frame's time is over. Returns whether to end.
fn pressed(controls: &mut Controls, rest: Duration) -> Result<bool> {
    let end = Instant::now() + rest;
    while event::poll(end.saturating_duration_since(Instant::now()))? {
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => {
                return Ok(controls.press(key));
            }
            Event::Resize(..) => return Ok(false),
            _ => {}
        }
    }
    Ok(false)
}

/// The operator's choices, and whether the machine keeps up.
#[derive(Debug, Clone, PartialEq)]
pub struct Controls {
    /// Seconds of the full-size machine per second.
    speed: f64,
    /// Whether time stands still.
    is_paused: bool,
    /// Whether the machine here is too slow for that speed.
    is_late: bool,
    /// Whether the keys are explained.
    help: bool,
}

impl Controls {
    /// The lowest and the highest speed that keys lead to.
    const SPEEDS: (f64, f64) = (0.125, 1024.0);

    fn new(speed: f64) -> Self {
        Self {
            speed,
            is_paused: false,
            is_late: false,
            help: false,
        }
    }

    /// Time of the full-size machine in one frame, ns.
    fn step_ns(&self) -> u64 {
        nanoseconds(FRAME.mul_f64(self.speed))
    }

    /// Takes a key. Returns whether to end.
    fn press(&mut self, key: KeyEvent) -> bool {
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if control => return true,
            KeyCode::Char('q') => return true,
            KeyCode::Esc if !self.help => return true,
            KeyCode::Char('?') | KeyCode::Esc => self.help = !self.help,
            KeyCode::Char(' ') => self.is_paused = !self.is_paused,
            KeyCode::Char('+' | '=') => self.speed = (self.speed * 2.0).min(Self::SPEEDS.1),
            KeyCode::Char('-') => self.speed = (self.speed / 2.0).max(Self::SPEEDS.0),
            _ => {}
        }
        false
    }
}
