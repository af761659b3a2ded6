//! The curves as a short table: the sizes at which few enough accesses miss.

use terrace_core::demand::{Curve, CurveSource, Difference, SHORT_DISTANCES};
use terrace_sim::trace::Format;

use super::{Found, at};
use crate::render;

/// Miss ratios that the table has a size for, parts of a billion.
const RATIOS: [(u64, &str); 4] = [
    (500_000_000, "50 %"),
    (100_000_000, "10 %"),
    (10_000_000, "1 %"),
    (1_000_000, "0.1 %"),
];

/// Part of a size within which a sampled curve counts as right, percent: a cliff of the curve moves.
const SAMPLED_LEEWAY: u32 = 5;

pub fn text(found: &Found) -> String {
    let mut lines = vec![
        format!(
            "{}: {}, pages of {}",
            found.file,
            found.format.name(),
            render::bytes(found.page_bytes)
        ),
        format!(
            "accesses     {}; {} broken records left out",
            found.accesses, found.skipped
        ),
        format!(
            "footprint    {}; their first accesses, {} of all, miss at each size",
            size(found.footprint, found),
            percent(u64::from(found.footprint), found.accesses)
        ),
    ];
    if let (Some(pages), Some(tracked)) = (found.hot_set, found.tracked) {
        lines.push(format!(
            "hot set      {}; {} of the accesses were outside of it (tracked)",
            size(pages, found),
            percent(tracked, found.accesses)
        ));
    }
    if found.format == Format::PerfScript {
        lines.push(
            "caution      perf's records are samples in time: the footprint is too small, first accesses are too many, \
             and the curve is not the program's"
                .to_owned(),
        );
    }
    lines.extend(
        found
            .curves
            .iter()
            .filter_map(|curve| caution(curve, found)),
    );
    lines.push(String::new());
    let mut text = lines.join("\n") + "\n" + &sizes(found);
    text += &at::text(found);
    if let [exact, others @ ..] = &found.curves[..]
        && !others.is_empty()
    {
        text += "\n";
        for curve in others {
            text += &(difference(exact, curve, found) + "\n");
        }
    }
    text
}

/// The sizes at which a curve is a guess, or another thing that it does not say itself.
fn caution(curve: &Curve, found: &Found) -> Option<String> {
    let below = curve.guess_below_pages;
    Some(match curve.source {
        CurveSource::Tracked => format!(
            "caution      a hot set of {SHORT_DISTANCES} pages or fewer is not restored: the curve is of the tracked \
             accesses alone"
        ),
        CurveSource::Restored if below >= found.footprint => format!(
            "caution      below {}, twice the hot set, the restored curve is a guess: at all sizes here; give a smaller \
             --hot-set",
            size(below, found)
        ),
        CurveSource::Restored => format!(
            "caution      below {}, twice the hot set, the restored curve is a guess",
            size(below, found)
        ),
        CurveSource::Sampled if curve.resolution_pages == 0 => {
            "sample       all pages: the sampled curve is exact".to_owned()
        }
        CurveSource::Sampled => format!(
            "sample       at least one in {} pages; below {} its curve is a guess",
            curve.resolution_pages,
            size(below, found)
        ),
        CurveSource::Exact | CurveSource::Ages => return None,
    })
}

/// The sizes for some miss ratios, a column per curve; a guess has a question mark.
fn sizes(found: &Found) -> String {
    let cell = |curve: &Curve, ratio| match curve.pages_for_ppb(ratio) {
        // A comparison has the reason above, once.
        None if found.curves.len() > 1 => "no size".to_owned(),
        None => format!(
            "no size ({} are first accesses)",
            percent(u64::from(found.footprint), found.accesses)
        ),
        Some(pages) if curve.is_guess(pages) => format!("{} ?", size(pages, found)),
        Some(pages) => size(pages, found),
    };
    let row = |(ratio, name): &(u64, &str)| {
        let cells = found.curves.iter().map(|curve| cell(curve, *ratio));
        std::iter::once((*name).to_owned()).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = RATIOS.iter().map(row).collect();
    let names = found
        .curves
        .iter()
        .map(|curve| curve.source.name().to_uppercase());
    let header: Vec<String> = std::iter::once("MISSES UP TO".to_owned())
        .chain(names)
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    render::table(&header, &[0], &rows)
}

/// How far a curve is off, from where it is no guess.
fn difference(exact: &Curve, curve: &Curve, found: &Found) -> String {
    let name = curve.source.name();
    let from = curve.guess_below_pages.max(1);
    if from > found.footprint {
        return format!("{name}: nothing to compare, all sizes up to the footprint are a guess");
    }
    let sizes = || from..=found.footprint;
    let off = Difference::between(exact, curve, sizes(), 0);
    let (worst, beyond) = match curve.source {
        CurveSource::Sampled => (
            Difference::between(exact, curve, sizes(), SAMPLED_LEEWAY),
            format!(" beyond ± {SAMPLED_LEEWAY} % of the size"),
        ),
        _ => (off, String::new()),
    };
    if off.worst_ppb == 0 {
        return format!("{name}: from {} on, no difference", size(from, found));
    }
    let points = |ppb: u64| format!("{:.2}", ppb as f64 / 1e7);
    let place = match worst.worst_ppb {
        0 => String::new(),
        _ => format!(" (at {})", size(worst.worst_pages, found)),
    };
    format!(
        "{name}: from {} on, off by {} points in the mean and {} at most{beyond}{place}",
        size(from, found),
        points(off.mean_ppb),
        points(worst.worst_ppb),
    )
}

pub(super) fn size(pages: u32, found: &Found) -> String {
    let bytes = u64::from(pages).saturating_mul(found.page_bytes);
    let s = if pages == 1 { "" } else { "s" };
    format!("{pages} page{s} ({})", render::bytes(bytes))
}

pub(super) fn percent(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}
