//! The map in a frame of a live view: a letter and a colour per cell.

use ratatui::style::{Color, Stylize as _};
use ratatui::text::{Line, Span};
use terrace_api::types::{Cell, HeatMap};

use super::{COLOURS, colour};
use crate::render;

/// The legend of the map: the size of a cell, and the colours and letters of [`rows`].
pub fn legend(map: &HeatMap) -> Line<'static> {
    let size = format!("{} a cell ", render::pages(map.pages_per_cell));
    let mut spans = vec![Span::from(size)];
    spans.extend(colours(map));
    Line::from(spans)
}

/// The legend of the colours and letters of [`rows`].
pub fn colours(map: &HeatMap) -> Vec<Span<'static>> {
    let mut spans = Vec::new();
    for (i, (name, (cold, hot))) in map.tiers.iter().zip(COLOURS).enumerate() {
        for ((r, g, b), heat, is_warm) in [(cold, "cold", false), (hot, "hot", true)] {
            let mark = letter(map, i, is_warm);
            let ink = ink((r, g, b));
            spans.push(Span::from(mark.to_string()).fg(ink).bg(Color::Rgb(r, g, b)));
            spans.push(format!(" {name} {heat} ").into());
        }
    }
    spans
}

/// The rows of the map for a frame of a live view, so many cells each.
pub fn rows(map: &HeatMap, width: u16) -> impl Iterator<Item = Line<'static>> {
    let rows = map.cells.chunks(usize::from(width.max(1)));
    rows.map(|row| row.iter().map(|cell| letter_square(map, cell)).collect())
}

/// A cell of the map. The colour is as on the other maps; the letter shows the same without colours.
fn letter_square(map: &HeatMap, cell: &Cell) -> Span<'static> {
    let Some(mark) = mark(map, cell) else {
        return Span::from(" ");
    };
    let rgb = colour(cell);
    Span::from(mark.to_string())
        .fg(ink(rgb))
        .bg(Color::Rgb(rgb.0, rgb.1, rgb.2))
}

/// A cell's letter: the first one of the tier that holds most of it, a capital if at least half of the cell's pages
/// that are known were accessed; `None` if no host memory backs the cell.
pub fn mark(map: &HeatMap, cell: &Cell) -> Option<char> {
    let pages = cell.tier_pages.iter().enumerate();
    let most = pages
        .filter(|(_, n)| **n > 0)
        .max_by_key(|(i, n)| (**n, usize::MAX - i));
    let (tier, _) = most?;
    let warm: u64 = cell.warm_pages.iter().sum();
    let is_warm = warm > 0 && warm.saturating_mul(2) >= cell.known_pages;
    Some(letter(map, tier, is_warm))
}

/// The letter of a tier's cold or warm cells.
pub fn letter(map: &HeatMap, tier: usize, is_warm: bool) -> char {
    let first = map.tiers.get(tier).and_then(|name| name.chars().next());
    let first = first.unwrap_or('?');
    if is_warm {
        first.to_ascii_uppercase()
    } else {
        first.to_ascii_lowercase()
    }
}

/// A colour that can be read on that ground, but is not louder than it.
fn ink((r, g, b): (u8, u8, u8)) -> Color {
    let channel = |c: u8| if c > 127 { c - 50 } else { c + 50 };
    Color::Rgb(channel(r), channel(g), channel(b))
}
