//! Where a VM's memory is and how hot it is, as a picture: guest-physical addresses in rows from left
//! to right; colour is the tier that holds most of a cell, brightness its mean degree.

use std::path::Path;

use anyhow::{Context as _, Result};
use plotters::prelude::*;
use terrace_api::client::{Client, segment};
use terrace_api::types::{Cell, HeatMap};

/// Cells of the terminal's map: 8 rows of 64.
pub const TERMINAL_CELLS: u64 = 512;
/// Cells of the picture: 32 rows of 64.
pub const SVG_CELLS: u64 = 2048;
const COLUMNS: usize = 64;

type Rgb = (u8, u8, u8);

/// Colours of the tiers, fastest first: cold, hot.
const COLOURS: [(Rgb, Rgb); 4] = [
    ((209, 228, 247), (8, 81, 156)),
    ((236, 226, 214), (200, 70, 20)),
    ((228, 220, 240), (106, 61, 154)),
    ((222, 235, 222), (27, 120, 55)),
];
const EMPTY: Rgb = (245, 245, 245);

pub async fn fetch(client: &Client, name: &str, cells: u64) -> Result<HeatMap> {
    Ok(client
        .get(&format!("/v1/vms/{}/map?cells={cells}", segment(name)))
        .await?)
}

/// A map for a terminal that shows 24-bit colours.
pub fn terminal(map: &HeatMap) -> String {
    let mut out = legend(map);
    for row in map.cells.chunks(COLUMNS) {
        for cell in row {
            let (r, g, b) = colour(cell, map.max_degree);
            out += &format!("\x1b[48;2;{r};{g};{b}m ");
        }
        out += "\x1b[0m\n";
    }
    out
}

fn legend(map: &HeatMap) -> String {
    let mut out = format!("one cell is {}: ", crate::render::pages(map.pages_per_cell));
    for (name, (cold, hot)) in map.tiers.iter().zip(COLOURS) {
        for ((r, g, b), heat) in [(cold, "cold"), (hot, "hot")] {
            out += &format!("\x1b[48;2;{r};{g};{b}m  \x1b[0m {name} {heat}  ");
        }
    }
    out + "\n"
}

/// Mean degree of a cell's known pages decides the brightness; the tier with most pages the colour.
fn colour(cell: &Cell, max_degree: u32) -> Rgb {
    let most = cell
        .tier_pages
        .iter()
        .enumerate()
        .max_by_key(|(i, n)| (**n, usize::MAX - i));
    let Some((tier, _)) = most.filter(|(_, n)| **n > 0) else {
        return EMPTY;
    };
    let (cold, hot) = COLOURS[tier.min(COLOURS.len() - 1)];
    let full = cell
        .known_pages
        .saturating_mul(u64::from(max_degree))
        .max(1);
    let share = crate::render::percent(cell.degree_sum, full).min(100);
    let mix = |a: u8, b: u8| {
        let sum = u64::from(a) * (100 - share) + u64::from(b) * share;
        u8::try_from(sum / 100).unwrap_or(u8::MAX)
    };
    (mix(cold.0, hot.0), mix(cold.1, hot.1), mix(cold.2, hot.2))
}

/// Writes the map as an SVG.
pub fn write_svg(map: &HeatMap, name: &str, file: &Path) -> Result<()> {
    let (cell, top) = (10_i32, 54_i32);
    let columns = i32::try_from(COLUMNS)?;
    let rows = i32::try_from(map.cells.len().div_ceil(COLUMNS))?;
    let size = (
        u32::try_from(columns * cell + 20)?,
        u32::try_from(rows * cell + top + 10)?,
    );
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
        let drawn = draw(&area, map, name, (cell, top));
        drawn.map_err(|e| anyhow::anyhow!("drawing the map: {e}"))?;
    }
    std::fs::write(file, text).with_context(|| format!("writing {}", file.display()))
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn draw(area: &Area, map: &HeatMap, name: &str, (size, top): (i32, i32)) -> Result<(), String> {
    let font = ("sans-serif", 14).into_font();
    area.fill(&WHITE).map_err(|e| e.to_string())?;
    let title = format!(
        "{name}: guest-physical memory, one cell is {}",
        crate::render::pages(map.pages_per_cell)
    );
    area.draw(&Text::new(title, (10, 8), font.clone()))
        .map_err(|e| e.to_string())?;
    let mut x = 10;
    for (tier, (cold, hot)) in map.tiers.iter().zip(COLOURS) {
        for (rgb, heat) in [(cold, "cold"), (hot, "hot")] {
            square(area, (x, 32), 12, rgb)?;
            area.draw(&Text::new(
                format!("{tier} {heat}"),
                (x + 18, 31),
                font.clone(),
            ))
            .map_err(|e| e.to_string())?;
            x += 110;
        }
    }
    for (i, cell) in map.cells.iter().enumerate() {
        let column = i32::try_from(i % COLUMNS).map_err(|e| e.to_string())?;
        let row = i32::try_from(i / COLUMNS).map_err(|e| e.to_string())?;
        square(
            area,
            (10 + column * size, top + row * size),
            size - 1,
            colour(cell, map.max_degree),
        )?;
    }
    area.present().map_err(|e| e.to_string())
}

fn square(area: &Area, at: (i32, i32), side: i32, (r, g, b): Rgb) -> Result<(), String> {
    let style = RGBColor(r, g, b).filled();
    area.draw(&Rectangle::new([at, (at.0 + side, at.1 + side)], style))
        .map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(fast: u64, slow: u64, degree_sum: u64) -> Cell {
        Cell {
            tier_pages: vec![fast, slow],
            known_pages: fast + slow,
            warm_pages: 0,
            degree_sum,
        }
    }

    #[test]
    fn colour_says_tier_and_heat() {
        assert_eq!(colour(&cell(0, 0, 0), 8), EMPTY);
        assert_eq!(colour(&cell(10, 0, 0), 8), COLOURS[0].0);
        assert_eq!(colour(&cell(10, 0, 80), 8), COLOURS[0].1);
        assert_eq!(colour(&cell(1, 9, 80), 8), COLOURS[1].1);
    }

    #[test]
    fn the_picture_has_one_square_a_cell() {
        let map = HeatMap {
            pages_per_cell: 16,
            tiers: vec!["fast".into(), "slow".into()],
            max_degree: 8,
            cells: vec![cell(1, 0, 8); 100],
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("map.svg");
        write_svg(&map, "vm1", &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        assert!(svg.matches("<rect").count() >= 104, "{svg}");
        assert!(svg.contains("vm1: guest-physical memory, one cell is 64 KiB"));
        assert_eq!(terminal(&map).lines().count(), 3);
    }
}
