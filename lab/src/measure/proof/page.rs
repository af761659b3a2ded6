//! The published runs: `docs/proof.json`, and the table and the picture that are made of them.

use std::fs;

use anyhow::{Context, Result};

use super::picture;
use super::runs::Runs;
use super::table;
use crate::measure::marked::replaced;
use crate::places;

/// Places of the page, the picture and the runs, from the repository's root.
const PAGE: &str = "docs/proof.md";
const PICTURE: &str = "docs/pictures/proof.svg";
const RUNS: &str = "docs/proof.json";

/// Publishes runs.
///
/// # Errors
/// If a file cannot be written, or the page has no place for the table.
pub fn write(runs: &Runs) -> Result<()> {
    let at = |file: &str| places::repository().join(file);
    let page = fs::read_to_string(at(PAGE)).context(PAGE)?;
    fs::write(at(PAGE), with_table(&page, runs)?).context(PAGE)?;
    fs::write(at(PICTURE), picture::svg(&runs.rows)?).context(PICTURE)?;
    runs.write(&at(RUNS))
}

/// The page with these runs' table.
fn with_table(page: &str, runs: &Runs) -> Result<String> {
    replaced(page, "proof", &table::markdown(&runs.rows)).context(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_the_picture_are_those_of_the_published_runs() {
        let read = |file: &str| fs::read_to_string(places::repository().join(file)).unwrap();
        let runs: Runs = serde_json::from_str(&read(RUNS)).unwrap();
        let page = read(PAGE);
        assert_eq!(page, with_table(&page, &runs).unwrap());
        assert_eq!(read(PICTURE), picture::svg(&runs.rows).unwrap());
    }
}
