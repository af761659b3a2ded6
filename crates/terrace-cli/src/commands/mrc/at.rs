//! The misses with given sizes of memory: rows of the text, and the JSON's `at`.

use serde::Serialize;
use terrace_core::demand::Curve;

use super::text::{percent, size};
use super::{Found, ratio};
use crate::render;

/// The misses of a curve with one size of memory.
#[derive(Serialize)]
pub(super) struct At {
    /// The size as asked for, in whole pages.
    pages: u32,
    bytes: u64,
    miss_ratio: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    misses_per_s: Option<u64>,
    is_guess: bool,
}

/// The misses of a curve with each size that was asked for.
pub(super) fn of(curve: &Curve, found: &Found) -> Vec<At> {
    let at = |pages| At {
        pages,
        bytes: u64::from(pages) * curve.page_bytes,
        miss_ratio: ratio(curve, pages),
        misses_per_s: curve.misses_per_s(pages),
        is_guess: curve.is_guess(pages),
    };
    pages(found).map(at).collect()
}

/// A row per size that was asked for, a column per curve; empty if none was.
pub(super) fn text(found: &Found) -> String {
    if found.at.is_empty() {
        return String::new();
    }
    let cell = |curve: &Curve, pages| {
        let misses = percent(curve.misses(pages), curve.accesses);
        let rate = curve.misses_per_s(pages);
        let rate = rate.map_or(String::new(), |rate| format!(", {rate}/s"));
        let guess = if curve.is_guess(pages) { " ?" } else { "" };
        format!("{misses}{rate}{guess}")
    };
    let row = |pages| {
        let cells = found.curves.iter().map(|curve| cell(curve, pages));
        std::iter::once(size(pages, found)).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = pages(found).map(row).collect();
    let names = found.curves.iter().map(|c| c.source.name().to_uppercase());
    let header: Vec<String> = std::iter::once("MISSES WITH".to_owned())
        .chain(names)
        .collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    format!("\n{}", render::table(&header, &[], &rows))
}

/// The sizes that were asked for, whole pages.
fn pages(found: &Found) -> impl Iterator<Item = u32> {
    let whole = |bytes: &u64| u32::try_from(bytes / found.page_bytes).unwrap_or(u32::MAX);
    found.at.iter().map(whole)
}
