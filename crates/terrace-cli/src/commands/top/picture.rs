//! A frame outside of a terminal: as plain text, and as an SVG for documents.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

/// Size of a character, pixels; the usual fonts advance by 0.602 of their size.
const CELL: (u32, u32) = (8, 17);
const BACKGROUND: &str = "#16181d";
const INK: &str = "#d7dae0";

/// The frame as plain text.
pub fn text(buffer: &Buffer) -> String {
    let mut out = String::new();
    for row in rows(buffer) {
        let line: String = row.iter().map(Cell::symbol).collect();
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// The frame as an SVG, with its colours.
pub fn svg(buffer: &Buffer) -> String {
    let (w, h) = CELL;
    let width = u32::from(buffer.area.width) * w;
    let height = u32::from(buffer.area.height) * h;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" font-size=\"13.29\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"{BACKGROUND}\"/>\n"
    );
    for (row, y) in rows(buffer).zip((0..).step_by(h as usize)) {
        let mut x = 0;
        for run in row.chunk_by(same_style) {
            let length = u32::try_from(run.len()).unwrap_or(0) * w;
            let (ink, background) = colours(&run[0]);
            if background != BACKGROUND {
                // Writing to a string cannot fail.
                let _ = writeln!(
                    out,
                    "<rect x=\"{x}\" y=\"{y}\" width=\"{length}\" height=\"{h}\" fill=\"{background}\"/>"
                );
            }
            let text: String = run.iter().map(Cell::symbol).collect();
            if !text.trim().is_empty() {
                let weight = if run[0].modifier.contains(Modifier::BOLD) {
                    " font-weight=\"bold\""
                } else {
                    ""
                };
                let _ = writeln!(
                    out,
                    "<text x=\"{x}\" y=\"{}\" textLength=\"{length}\" xml:space=\"preserve\" \
                     fill=\"{ink}\"{weight}>{}</text>",
                    y + 13,
                    escaped(&text)
                );
            }
            x += length;
        }
    }
    out + "</svg>\n"
}

fn rows(buffer: &Buffer) -> impl Iterator<Item = &[Cell]> {
    buffer.content.chunks(usize::from(buffer.area.width.max(1)))
}

fn same_style(a: &Cell, b: &Cell) -> bool {
    (a.fg, a.bg, a.modifier) == (b.fg, b.bg, b.modifier)
}

fn colours(cell: &Cell) -> (String, String) {
    let pair = (hex(cell.fg, INK), hex(cell.bg, BACKGROUND));
    if cell.modifier.contains(Modifier::REVERSED) {
        (pair.1, pair.0)
    } else {
        pair
    }
}

/// A colour as SVG has it. These are the colours that frames use; a terminal has its own idea of the named ones.
fn hex(colour: Color, default: &str) -> String {
    match colour {
        Color::Rgb(r, g, b) => format!("#{r:02x}{g:02x}{b:02x}"),
        Color::Red => "#e06c75".into(),
        Color::Yellow => "#e5c07b".into(),
        Color::Cyan => "#56b6c2".into(),
        Color::DarkGray => "#7f848e".into(),
        _ => default.into(),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use ratatui::layout::Rect;
    use ratatui::style::Style;

    use super::*;

    #[test]
    fn a_frame_becomes_text_and_a_picture() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 6, 2));
        buffer.set_string(0, 0, "a<b", Style::new().fg(Color::Red));
        buffer.set_string(1, 1, "xy", Style::new().bg(Color::Rgb(1, 2, 255)));
        assert_eq!(text(&buffer), "a<b\n xy\n");
        let svg = svg(&buffer);
        assert!(svg.contains("fill=\"#e06c75\">a&lt;b</text>"), "{svg}");
        let rect = "<rect x=\"8\" y=\"17\" width=\"16\" height=\"17\" fill=\"#0102ff\"/>";
        assert!(svg.contains(rect), "{svg}");
    }
}
