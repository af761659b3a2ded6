//! The misses in slow memory as a picture: a bar for each way to place pages.

use anyhow::Result;
use plotters::prelude::*;

use super::row::Row;
use super::way::Way;
use crate::measure::median::median;

/// Pixels of the picture's width, and of a bar with the room below it.
const WIDTH: u32 = 760;
const STEP: u32 = 26;
/// Pixels above the first bar.
const TOP: u32 = 34;
/// Pixels to the left of bars, and to the right of the longest one.
const LEFT: i32 = 230;
const RIGHT: i32 = 70;
const BAR: i32 = 18;
/// Colours of bars: Terrace, and others.
const OURS: RGBColor = RGBColor(8, 81, 156);
const OTHERS: RGBColor = RGBColor(150, 150, 150);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The picture as SVG.
///
/// # Errors
/// If it cannot be drawn.
pub fn svg(rows: &[Row]) -> Result<String> {
    let bars: Vec<(Way, f64)> = Way::ALL
        .into_iter()
        .filter_map(|way| bar(way, rows))
        .collect();
    let height = TOP + STEP * u32::try_from(bars.len())?;
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        draw(&area, &bars).map_err(|why| anyhow::anyhow!("cannot draw the misses: {why}"))?;
    }
    Ok(text)
}

/// A way and its misses in slow memory for each pass; none if it has no run.
fn bar(way: Way, rows: &[Row]) -> Option<(Way, f64)> {
    let runs = rows.iter().filter(|row| row.name == way.name());
    let misses: Vec<f64> = runs.map(|row| row.misses()[1]).collect();
    (!misses.is_empty()).then(|| (way, median(misses)))
}

fn draw(area: &Area, bars: &[(Way, f64)]) -> Result<(), String> {
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    label(
        area,
        "misses in slow memory, for each pass over the hot pages",
        (10, 8),
    )?;
    let most = bars.iter().map(|(_, misses)| *misses).fold(1.0, f64::max);
    for (number, (way, misses)) in (0..).zip(bars) {
        let top = i32::try_from(TOP + STEP * number).unwrap_or(0);
        let length = f64::from(i32::try_from(WIDTH).unwrap_or(0) - LEFT - RIGHT) * misses / most;
        let right = LEFT + pixel(length).max(1);
        let colour = if way.is_ours() { OURS } else { OTHERS };
        let bar = Rectangle::new([(LEFT, top), (right, top + BAR)], colour.filled());
        area.draw(&bar).map_err(|e| e.to_string())?;
        label(area, way.name(), (10, top + 2))?;
        label(area, &format!("{misses:.0}"), (right + 6, top + 2))?;
    }
    area.present().map_err(|e| e.to_string())
}

fn label(area: &Area, text: &str, at: (i32, i32)) -> Result<(), String> {
    let style = ("sans-serif", 14).into_font().color(&BLACK);
    area.draw_text(text, &style, at).map_err(|e| e.to_string())
}

/// The nearest pixel; pictures are small, and the cast saturates.
#[allow(clippy::cast_possible_truncation)]
fn pixel(at: f64) -> i32 {
    at.round() as i32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::slow_node::Counts;

    #[test]
    fn bars_are_as_long_as_misses_are_many() {
        let row = |way: Way, load_misses| Row {
            name: way.name().into(),
            passes: 1,
            slow: Counts {
                load_misses,
                ..Counts::default()
            },
            ..Row::default()
        };
        let svg = svg(&[row(Way::AllSlow, 1_000), row(Way::Terrace, 500)]).unwrap();
        assert!(
            svg.contains("width=\"460\"") && svg.contains("width=\"230\""),
            "{svg}"
        );
        assert!(
            svg.contains("terrace, policy terrace") && svg.contains("1000"),
            "{svg}"
        );
        assert!(!svg.contains("DAMOS"));
    }
}
