//! The picture of `skew`: blocks by their number of hot pages.

use anyhow::{Result, anyhow};
use plotters::prelude::*;

use super::report::{Class, SkewReport};

/// Width and height, pixels.
const SIZE: (u32, u32) = (720, 400);
const LEFT: i32 = 60;
const TOP: i32 = 60;
const BOTTOM: i32 = 350;
/// Width of a class, and of its bar.
const STEP: i32 = 64;
const BAR: i32 = 48;
/// Blocks that would be emptied, and the others.
const EMPTIED: RGBColor = RGBColor(213, 94, 0);
const STAYS: RGBColor = RGBColor(0, 114, 178);
const GREY: RGBColor = RGBColor(110, 110, 110);

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

/// The picture as SVG.
///
/// # Errors
/// If it cannot be drawn.
pub fn svg(report: &SkewReport) -> Result<String> {
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        draw(&area, report).map_err(|why| anyhow!("cannot draw the picture: {why}"))?;
    }
    Ok(text)
}

fn draw(area: &Area, report: &SkewReport) -> Result<(), String> {
    area.fill(&WHITE).map_err(|error| error.to_string())?;
    let spread = &report.spread;
    let title = format!(
        "{} hot base pages in {} blocks of 2 MiB; {} would hold them",
        spread.hot_pages, spread.hot_blocks, spread.fewest_blocks
    );
    label(area, &title, (LEFT, 12), 16)?;
    let legend = match report.cl {
        0 => "gathering empties none".to_owned(),
        cl => format!("orange: blocks with fewer than {cl} hot pages, which gathering empties"),
    };
    label(area, &legend, (LEFT, 34), 13)?;
    let classes = report.classes();
    let most = classes.iter().map(|class| class.blocks).max().unwrap_or(0);
    let mut x = LEFT;
    for class in &classes {
        bar(area, class, report.emptied(class), x, most.max(1))?;
        x += STEP;
    }
    label(area, "hot pages of a block", (LEFT, BOTTOM + 26), 13)?;
    area.present().map_err(|error| error.to_string())
}

/// A class's bar; the blocks that would be emptied are its lower part.
fn bar(area: &Area, class: &Class, emptied: u64, x: i32, most: u64) -> Result<(), String> {
    let pixels = u64::try_from(BOTTOM - TOP - 16).unwrap_or(0);
    let above = |blocks: u64| {
        let height = blocks.saturating_mul(pixels).div_ceil(most);
        BOTTOM - i32::try_from(height).unwrap_or(0)
    };
    let top = above(class.blocks);
    for (from, to, colour) in [
        (top, above(emptied), STAYS),
        (above(emptied), BOTTOM, EMPTIED),
    ] {
        if from < to {
            let corners = [(x, from), (x + BAR, to)];
            area.draw(&Rectangle::new(corners, colour.filled()))
                .map_err(|error| error.to_string())?;
        }
    }
    label(area, &class.name(), (x, BOTTOM + 6), 13)?;
    label(area, &class.blocks.to_string(), (x, top - 16), 12)
}

fn label(area: &Area, text: &str, at: (i32, i32), size: i32) -> Result<(), String> {
    let style = ("sans-serif", size).into_font().color(&GREY);
    area.draw(&Text::new(text.to_owned(), at, style))
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use terrace_core::gather::{Cl, Limits, Plan, Skew};

    use super::*;
    use crate::gather::location::Staying;

    #[test]
    fn what_would_be_emptied_has_a_colour_of_its_own() {
        let mut skew = Skew::new(8 * 512);
        for block in 0..4 {
            skew.count(block * 512, true);
        }
        (0..400).for_each(|page| skew.count(5 * 512 + page, true));
        let limits = Limits {
            cl: Cl::Auto { gain: 1 },
            pages: u64::MAX,
            room: u64::MAX,
        };
        let plan = Plan::new(&skew, &BTreeSet::new(), limits);
        let picture = svg(&SkewReport::new(&skew, &plan, Staying::default(), 0)).unwrap();
        let has = |text: &str| picture.contains(text);
        assert!(
            has("404 hot base pages in 5 blocks of 2 MiB; 1 would hold them"),
            "{picture}"
        );
        assert!(has("fewer than 2 hot pages") && has("256-511"));
        assert!(has("#D55E00") && has("#0072B2"));
    }

    #[test]
    fn a_class_that_the_limit_divides_has_both_colours() {
        let mut skew = Skew::new(8 * 512);
        for block in 0..4 {
            skew.count(block * 512, true);
            skew.count(block * 512 + 1, true);
        }
        (0..3).for_each(|page| skew.count(5 * 512 + page, true));
        let limits = Limits {
            cl: Cl::Below(3),
            pages: u64::MAX,
            room: u64::MAX,
        };
        let plan = Plan::new(&skew, &BTreeSet::new(), limits);
        let report = SkewReport::new(&skew, &plan, Staying::default(), 0);
        let class = report.classes()[1];
        assert_eq!((class.from, class.to, class.blocks), (2, 3, 5));
        assert_eq!(report.emptied(&class), 4);
        let picture = svg(&report).unwrap();
        assert!(picture.contains("#D55E00") && picture.contains("#0072B2"));
    }
}
