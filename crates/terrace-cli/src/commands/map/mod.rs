//! The map of a VM's memory by place and heat, as a picture: guest-physical addresses in rows from left to right;
//! colours are tiers, and pages that were accessed stand out.

pub mod live;

use std::path::Path;

use anyhow::Result;
use plotters::prelude::*;
use terrace_api::client::{Client, segment};
use terrace_api::types::{Cell, HeatMap};

use crate::output::files::put;

/// Cells of the terminal's map: 8 rows of 64.
pub const TERMINAL_CELLS: u64 = 512;
/// Cells of the picture: 16 rows of 64.
pub const SVG_CELLS: u64 = 1024;
const COLUMNS: usize = 64;

pub type Rgb = (u8, u8, u8);

/// Colours of the tiers, fastest first: cold, hot.
pub const COLOURS: [(Rgb, Rgb); 4] = [
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

/// A map as text: in colours for a terminal that shows 24-bit ones, else in the letters of a live view, which say the
/// same.
pub fn text(map: &HeatMap, in_colours: bool) -> String {
    if in_colours {
        coloured(map)
    } else {
        lettered(map)
    }
}

fn lettered(map: &HeatMap) -> String {
    let mut out = format!("one cell is {}:", crate::render::pages(map.pages_per_cell));
    for (i, name) in map.tiers.iter().enumerate() {
        let [cold, hot] = [false, true].map(|is_warm| live::letter(map, i, is_warm));
        out += &format!("  {cold} {name} cold  {hot} {name} hot");
    }
    out += "  . no host memory\n";
    for row in map.cells.chunks(COLUMNS) {
        out.extend(row.iter().map(|cell| live::mark(map, cell).unwrap_or('.')));
        out.push('\n');
    }
    out
}

fn coloured(map: &HeatMap) -> String {
    let mut out = legend(map);
    for row in map.cells.chunks(COLUMNS) {
        for cell in row {
            let (r, g, b) = colour(cell);
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

/// The colour of a cell. The ground is the tier that holds most of the cell; over it lie the cell's warm pages in the
/// colours of the tiers that hold them, as strong as their share (its root, so that few are seen too).
pub fn colour(cell: &Cell) -> Rgb {
    let most = cell
        .tier_pages
        .iter()
        .enumerate()
        .max_by_key(|(i, n)| (**n, usize::MAX - i));
    let Some((tier, _)) = most.filter(|(_, n)| **n > 0) else {
        return EMPTY;
    };
    let background = colours(tier).0;
    let warm: u64 = cell.warm_pages.iter().sum();
    let share = warm as f64 / cell.known_pages.max(1) as f64;
    let strength = share.min(1.0).sqrt();
    let channel = |of: fn(Rgb) -> u8| {
        let hot: f64 = cell
            .warm_pages
            .iter()
            .enumerate()
            .map(|(tier, n)| *n as f64 / warm.max(1) as f64 * f64::from(of(colours(tier).1)))
            .sum();
        let mixed = f64::from(of(background)) * (1.0 - strength) + hot * strength;
        // Between 0 and 255 by construction; the cast saturates.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let value = mixed.round() as u8;
        value
    };
    (channel(|c| c.0), channel(|c| c.1), channel(|c| c.2))
}

fn colours(tier: usize) -> (Rgb, Rgb) {
    COLOURS[tier.min(COLOURS.len() - 1)]
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
        drawn.map_err(|e| anyhow::anyhow!("cannot draw the map: {e}"))?;
    }
    put(file, &text)
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
            colour(cell),
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

    /// A cell of so many pages in fast and slow memory, and how many of them are warm.
    fn cell(pages: [u64; 2], warm: [u64; 2]) -> Cell {
        Cell {
            tier_pages: pages.to_vec(),
            known_pages: pages.iter().sum(),
            warm_pages: warm.to_vec(),
            degree_sum: 0,
        }
    }

    #[test]
    fn colour_says_tier_and_heat() {
        assert_eq!(colour(&cell([0, 0], [0, 0])), EMPTY);
        assert_eq!(colour(&cell([10, 0], [0, 0])), COLOURS[0].0);
        assert_eq!(colour(&cell([10, 0], [10, 0])), COLOURS[0].1);
        assert_eq!(colour(&cell([0, 10], [0, 10])), COLOURS[1].1);
        let (red, _, blue) = colour(&cell([1, 9], [1, 0]));
        assert!(
            blue > red,
            "one warm fast page among cold slow ones is seen"
        );
    }

    #[test]
    fn without_colours_letters_say_the_same() {
        let cells = [
            ([4, 0], [0, 0]),
            ([4, 0], [4, 0]),
            ([0, 4], [0, 0]),
            ([0, 4], [0, 4]),
            ([0, 0], [0, 0]),
        ];
        let map = HeatMap {
            pages_per_cell: 16,
            tiers: vec!["fast".into(), "slow".into()],
            max_degree: 8,
            cells: cells.map(|(pages, warm)| cell(pages, warm)).to_vec(),
        };
        let plain = text(&map, false);
        assert!(!plain.contains('\x1b'), "{plain:?}");
        assert!(
            plain.contains("one cell is 64 KiB:  f fast cold  F fast hot"),
            "{plain}"
        );
        assert_eq!(plain.lines().nth(1), Some("fFsS."));
        assert!(text(&map, true).contains('\x1b'));
    }

    #[test]
    fn the_picture_has_one_square_a_cell() {
        let map = HeatMap {
            pages_per_cell: 16,
            tiers: vec!["fast".into(), "slow".into()],
            max_degree: 8,
            cells: vec![cell([1, 0], [1, 0]); 100],
        };
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("map.svg");
        write_svg(&map, "vm1", &file).unwrap();
        let svg = std::fs::read_to_string(&file).unwrap();
        assert!(svg.matches("<rect").count() >= 104, "{svg}");
        assert!(svg.contains("vm1: guest-physical memory, one cell is 64 KiB"));
        assert_eq!(coloured(&map).lines().count(), 3);
    }
}
