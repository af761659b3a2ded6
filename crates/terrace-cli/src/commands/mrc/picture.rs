//! The curves as a picture: miss ratio, by powers of ten, over the size of memory.

use anyhow::Result;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use terrace_core::demand::{Curve, CurveSource, REDUCED_POINTS};

use super::{Found, ratio};
use crate::render;

/// Pixels of the picture.
const SIZE: (u32, u32) = (760, 420);
/// Pixels from the picture's edges to those of the plot: left, top, right, bottom.
const MARGINS: (i32, i32, i32, i32) = (70, 60, 30, 50);
/// Ratios below this are drawn as this: 1e-8 is the least that counts for huge pages (HPMBS §2.5).
const LEAST_RATIO: f64 = 1e-8;
/// Most steps of the size axis.
const STEPS: u64 = 8;
/// Round numbers of a unit (KiB, MiB, GiB) from which the size axis takes its step.
const ROUND: [u64; 9] = [1, 2, 5, 10, 20, 50, 100, 200, 500];
/// Parts of a decade that have a line of their own, and a label if there are few decades.
const PARTS: [f64; 2] = [0.5, 0.2];
/// Decades up to which parts of them are labelled.
const FEW_DECADES: u32 = 3;
/// Pixels of a dash, and of the gap after it, by which a curve shows another one that it lies on.
const DASH: (i32, i32) = (7, 5);
/// Exact, restored, sampled: told apart by people who do not tell red from green, too.
const COLOURS: [RGBColor; 3] = [
    RGBColor(40, 40, 40),
    RGBColor(200, 70, 20),
    RGBColor(8, 81, 156),
];
const GREY: RGBColor = RGBColor(215, 215, 215);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The place of sizes and ratios in the picture.
struct Frame {
    footprint: u32,
    /// Powers of ten below 1 that are shown.
    decades: u32,
}

impl Frame {
    fn new(found: &Found) -> Self {
        let least = found
            .curves
            .iter()
            .map(|curve| ratio(curve, found.footprint));
        let least = least.fold(1.0, f64::min).max(LEAST_RATIO);
        let shown = (1..9).find(|decades| 10_f64.powi(-*decades) <= least);
        Self {
            footprint: found.footprint.max(1),
            decades: shown.map_or(9, i32::unsigned_abs),
        }
    }

    fn x(&self, pages: u32) -> i32 {
        let width = f64::from(SIZE.0) - f64::from(MARGINS.0 + MARGINS.2);
        let share = f64::from(pages.min(self.footprint)) / f64::from(self.footprint);
        MARGINS.0 + pixel(share * width)
    }

    fn y(&self, ratio: f64) -> i32 {
        let height = f64::from(SIZE.1) - f64::from(MARGINS.1 + MARGINS.3);
        let share = -ratio.max(LEAST_RATIO).log10() / f64::from(self.decades);
        MARGINS.1 + pixel(share.clamp(0.0, 1.0) * height)
    }
}

/// The nearest pixel; pictures are small, and the cast saturates.
#[allow(clippy::cast_possible_truncation)]
fn pixel(at: f64) -> i32 {
    at.round() as i32
}

/// The picture as SVG.
pub fn svg(found: &Found) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area, found).map_err(|why| anyhow::anyhow!("cannot draw the curve: {why}"))?;
    }
    Ok(text)
}

fn draw(area: &Area, found: &Found) -> Result<(), String> {
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    let frame = Frame::new(found);
    grid(area, found, &frame)?;
    let page = render::bytes(found.page_bytes);
    let title = format!(
        "{}: accesses that miss (logarithmic), pages of {page}",
        found.file
    );
    label(area, &title, (10, 8))?;
    let mut x = MARGINS.0;
    for (curve, colour) in found.curves.iter().zip(COLOURS) {
        let name = curve.source.name();
        let stroke = Stroke::of(curve, colour);
        stroke.width(2).draw(area, vec![(x, 40), (x + 24, 40)])?;
        label(area, name, (x + 30, 33))?;
        x += 130;
        drawn(area, curve, &frame, stroke)?;
    }
    if found.curves.iter().any(|curve| curve.guess_below_pages > 1) {
        label(area, "thin: a guess", (x, 33))?;
    }
    area.present().map_err(|e| e.to_string())
}

/// A curve, thin where it is a guess.
fn drawn(area: &Area, curve: &Curve, frame: &Frame, stroke: Stroke) -> Result<(), String> {
    let reduced = curve.reduced(REDUCED_POINTS);
    let border = curve.guess_below_pages.min(frame.footprint);
    let sizes = reduced.points().iter().map(|point| point.pages);
    let mut sizes: Vec<u32> = sizes.chain([1, border.max(1), frame.footprint]).collect();
    sizes.retain(|pages| *pages <= frame.footprint);
    sizes.sort_unstable();
    sizes.dedup();
    let at = |pages: &u32| (frame.x(*pages), frame.y(ratio(curve, *pages)));
    let thin = sizes.iter().filter(|pages| **pages <= border).map(at);
    let thick = sizes.iter().filter(|pages| **pages >= border).map(at);
    stroke.width(1).draw(area, thin.collect())?;
    stroke.width(2).draw(area, thick.collect())
}

/// The look of a curve's line.
#[derive(Clone, Copy)]
struct Stroke {
    colour: RGBColor,
    width: u32,
    is_dashed: bool,
}

impl Stroke {
    /// The look of a curve: the sampled one is dashed, because it lies on the exact one.
    fn of(curve: &Curve, colour: RGBColor) -> Self {
        Self {
            colour,
            width: 2,
            is_dashed: curve.source == CurveSource::Sampled,
        }
    }

    fn width(self, width: u32) -> Self {
        Self { width, ..self }
    }

    fn draw(self, area: &Area, points: Vec<(i32, i32)>) -> Result<(), String> {
        if !self.is_dashed {
            return line(area, points, self.colour, self.width);
        }
        let style = self.colour.stroke_width(self.width);
        let path = DashedPathElement::new(points, DASH.0, DASH.1, style);
        area.draw(&path).map_err(|e| e.to_string())
    }
}

/// The axes' lines, and what stands at them.
fn grid(area: &Area, found: &Found, frame: &Frame) -> Result<(), String> {
    let (left, right) = (frame.x(0), frame.x(frame.footprint));
    let across = |ratio: f64, is_named: bool| {
        let y = frame.y(ratio);
        line(area, vec![(left, y), (right, y)], GREY, 1)?;
        if is_named {
            label(area, &percent(ratio), (6, y - 7))?;
        }
        Ok::<(), String>(())
    };
    for decade in 0..=frame.decades {
        let ratio = 10_f64.powi(-i32::try_from(decade).unwrap_or(0));
        across(ratio, true)?;
        for part in PARTS.iter().filter(|_| decade < frame.decades) {
            across(ratio * part, frame.decades <= FEW_DECADES)?;
        }
    }
    let (top, bottom) = (frame.y(1.0), frame.y(LEAST_RATIO));
    let all = u64::from(frame.footprint) * found.page_bytes;
    let step = step(all);
    for bytes in (0..=all / step).map(|number| number * step) {
        let x = frame.x(u32::try_from(bytes / found.page_bytes).unwrap_or(u32::MAX));
        line(area, vec![(x, top), (x, bottom)], GREY, 1)?;
        label(area, &render::bytes(bytes), (x - 24, bottom + 8))?;
    }
    label(area, "size of memory", (left, bottom + 28))
}

/// The round step of an axis of so many bytes.
fn step(all: u64) -> u64 {
    let units = [1 << 10, 1 << 20, 1 << 30, 1 << 40];
    let mut steps = units
        .iter()
        .flat_map(|unit| ROUND.map(|number| number * unit));
    steps.find(|step| all / step <= STEPS).unwrap_or(all.max(1))
}

/// A power of ten in per cent.
fn percent(ratio: f64) -> String {
    if ratio >= 1e-3 {
        format!("{} %", (ratio * 1000.0).round() / 10.0)
    } else {
        format!("{:.0e} %", ratio * 100.0)
    }
}

fn line(area: &Area, points: Vec<(i32, i32)>, colour: RGBColor, width: u32) -> Result<(), String> {
    let path = PathElement::new(points, colour.stroke_width(width));
    area.draw(&path).map_err(|e| e.to_string())
}

fn label(area: &Area, text: &str, at: (i32, i32)) -> Result<(), String> {
    let font = ("sans-serif", 13).into_font();
    let text = Text::new(text.to_owned(), at, font);
    area.draw(&text).map_err(|e| e.to_string())
}
