//! The sizes of VMs over time as a picture: a panel for each run, a line for each VM.

use anyhow::{Result, ensure};
use plotters::prelude::*;
use terrace_sim::{RunResult, VmResult, number::float};

/// Pixels of a panel.
const PANEL: (u32, u32) = (760, 240);
/// Pixels from a panel's edges to those of the plot: left, top, right, bottom.
const MARGINS: (i32, i32, i32, i32) = (60, 46, 20, 30);
/// Pixels between the names of two VMs.
const NAME: i32 = 150;
/// Most steps of an axis.
const STEPS: f64 = 8.0;
/// Round numbers from which an axis takes its step; times powers of ten.
const ROUND: [f64; 3] = [1.0, 2.0, 5.0];
/// The VMs' colours in turn: told apart by people who do not tell red from green, too.
const COLOURS: [RGBColor; 4] = [
    RGBColor(40, 40, 40),
    RGBColor(200, 70, 20),
    RGBColor(8, 81, 156),
    RGBColor(150, 150, 60),
];
const GREY: RGBColor = RGBColor(215, 215, 215);
const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The ends of both axes, which all panels share.
struct Frame {
    end_s: f64,
    most_gib: f64,
}

impl Frame {
    fn new(runs: &[&RunResult]) -> Self {
        let vms = || runs.iter().flat_map(|run| &run.vms);
        let sizes = vms().flat_map(|vm| steps_of(vm).map(|(_, gib)| gib));
        Self {
            end_s: vms().map(|vm| vm.runtime_s).fold(1.0, f64::max),
            most_gib: sizes.fold(1.0, f64::max),
        }
    }

    fn x(&self, at_s: f64) -> i32 {
        let width = f64::from(PANEL.0) - f64::from(MARGINS.0 + MARGINS.2);
        MARGINS.0 + pixel((at_s / self.end_s).min(1.0) * width)
    }

    fn y(&self, gib: f64) -> i32 {
        let height = f64::from(PANEL.1) - f64::from(MARGINS.1 + MARGINS.3);
        MARGINS.1 + pixel((1.0 - gib / self.most_gib) * height)
    }
}

/// The nearest pixel; pictures are small, and the cast saturates.
#[allow(clippy::cast_possible_truncation)]
fn pixel(at: f64) -> i32 {
    at.round() as i32
}

/// The VM's size of all tiers together from each time on, s and GiB. None if no device sizes it.
fn steps_of(vm: &VmResult) -> impl Iterator<Item = (f64, f64)> {
    let sizes = vm.provision.iter().flat_map(|device| &device.sizes);
    sizes.map(|size| (size.at_s, float(size.bytes.iter().sum()) / GIB))
}

/// The picture as SVG.
///
/// # Errors
/// If no VM is sized by a device.
pub fn svg(runs: &[&RunResult]) -> Result<String> {
    let sized = |run: &&&RunResult| run.vms.iter().any(|vm| vm.provision.is_some());
    let runs: Vec<&RunResult> = runs.iter().filter(sized).copied().collect();
    ensure!(
        !runs.is_empty(),
        "--svg: no VM of this scenario is sized by a device, so there is nothing to draw: set provision of a VM, or leave --svg out"
    );
    let panels = u32::try_from(runs.len()).unwrap_or(u32::MAX);
    let mut text = String::new();
    {
        let size = (PANEL.0, PANEL.1.saturating_mul(panels));
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        draw(&area, &runs).map_err(|why| anyhow::anyhow!("cannot draw the sizes: {why}"))?;
    }
    Ok(text)
}

fn draw(area: &Area, runs: &[&RunResult]) -> Result<(), String> {
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    let frame = Frame::new(runs);
    for (panel, run) in area.split_evenly((runs.len(), 1)).iter().zip(runs) {
        panel_of(panel, run, &frame)?;
    }
    area.present().map_err(|e| e.to_string())
}

fn panel_of(area: &Area, run: &RunResult, frame: &Frame) -> Result<(), String> {
    let share = run.share.as_deref().unwrap_or("alone");
    let title = format!("{}, {share}: memory of each VM, GiB, over s", run.scenario);
    label(area, &title, (10, 6))?;
    grid(area, frame)?;
    let colours = COLOURS.iter().cycle();
    let mut x = MARGINS.0;
    for (vm, colour) in run.vms.iter().zip(colours) {
        line(area, vec![(x, 33), (x + 20, 33)], *colour)?;
        label(area, &vm.name, (x + 26, 26))?;
        x += NAME;
        line(area, points(vm, frame), *colour)?;
    }
    Ok(())
}

/// A VM's line: it keeps each size until the next one, and ends with the program.
fn points(vm: &VmResult, frame: &Frame) -> Vec<(i32, i32)> {
    let mut points: Vec<(i32, i32)> = Vec::new();
    for (at_s, gib) in steps_of(vm).take_while(|(at_s, _)| *at_s <= vm.runtime_s) {
        let (x, y) = (frame.x(at_s), frame.y(gib));
        points.extend(points.last().map(|(_, before)| (x, *before)));
        points.push((x, y));
    }
    let end = points.last().map(|(_, y)| (frame.x(vm.runtime_s), *y));
    points.extend(end);
    points
}

/// The axes' lines, and what stands at them.
fn grid(area: &Area, frame: &Frame) -> Result<(), String> {
    let (left, right) = (frame.x(0.0), frame.x(frame.end_s));
    for gib in ticks(frame.most_gib) {
        let y = frame.y(gib);
        line(area, vec![(left, y), (right, y)], GREY)?;
        label(area, &format!("{gib}"), (left - 30, y - 7))?;
    }
    let (top, bottom) = (frame.y(frame.most_gib), frame.y(0.0));
    for at_s in ticks(frame.end_s) {
        let x = frame.x(at_s);
        line(area, vec![(x, top), (x, bottom)], GREY)?;
        label(area, &format!("{at_s}"), (x - 8, bottom + 8))?;
    }
    Ok(())
}

/// Round values from 0 to an axis's end.
fn ticks(end: f64) -> Vec<f64> {
    let powers = (0..).map(|power| 10_f64.powi(power));
    let mut steps = powers.flat_map(|power| ROUND.map(|round| round * power));
    let step = steps.find(|step| end / step <= STEPS).unwrap_or(end);
    let mut at = 0.0;
    let mut ticks = Vec::new();
    while at <= end {
        ticks.push(at);
        at += step;
    }
    ticks
}

fn line(area: &Area, points: Vec<(i32, i32)>, colour: RGBColor) -> Result<(), String> {
    let path = PathElement::new(points, colour.stroke_width(2));
    area.draw(&path).map_err(|e| e.to_string())
}

fn label(area: &Area, text: &str, at: (i32, i32)) -> Result<(), String> {
    let font = ("sans-serif", 13).into_font();
    let text = Text::new(text.to_owned(), at, font);
    area.draw(&text).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use terrace_sim::{Provisioned, SizeAt};

    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(6.6), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(ticks(80.0).last(), Some(&80.0));
        assert!(ticks(12_345.0).len() <= 9);
    }

    /// The line begins and ends with the program, also of a VM that keeps its size.
    #[test]
    fn each_vm_has_a_line_from_the_first_second_to_its_last() {
        let sizes = [(0.0, 2_u64), (5.0, 3)].map(|(at_s, gib)| SizeAt {
            at_s,
            bytes: vec![gib << 30, 0],
        });
        let vm = |sizes: &[SizeAt]| VmResult {
            runtime_s: 10.0,
            provision: Some(Provisioned {
                sizes: sizes.to_vec(),
                ..Provisioned::default()
            }),
            ..VmResult::default()
        };
        let run = RunResult {
            vms: vec![vm(&sizes), vm(&sizes[..1])],
            ..RunResult::default()
        };
        let frame = Frame::new(&[&run]);
        let (most, less) = (frame.y(3.0), frame.y(2.0));
        let [first, middle, last] = [0.0, 5.0, 10.0].map(|at_s| frame.x(at_s));
        assert_eq!(
            points(&run.vms[0], &frame),
            [(first, less), (middle, less), (middle, most), (last, most)]
        );
        assert_eq!(points(&run.vms[1], &frame), [(first, less), (last, less)]);
        let text = svg(&[&run]).unwrap();
        assert!(text.starts_with("<svg"), "{text}");
    }

    #[test]
    fn without_a_device_there_is_nothing_to_draw() {
        let error = svg(&[]).unwrap_err().to_string();
        assert!(error.contains("--svg"), "{error}");
    }
}
