//! The figures as a Markdown table.

use super::row::Row;

const HEAD: &str = "\
| who places | hot pages on fast | slow misses a pass | fast misses a pass | their time by the nodes' latencies | passes a second | pages moved |
|---|--:|--:|--:|--:|--:|--:|
";

/// One line for each row.
pub fn markdown(rows: &[Row]) -> String {
    let lines = rows.iter().map(|row| line(row) + "\n");
    HEAD.to_owned() + &lines.collect::<String>()
}

/// A row's line.
pub fn line(row: &Row) -> String {
    let [fast, slow] = row.misses();
    format!(
        "| {} | {} of {} | {slow:.0} | {fast:.0} | {:.0} µs | {:.1} | {} |",
        row.name,
        row.hot_on_fast,
        row.hot,
        row.modelled_us(),
        row.rate(),
        row.moved
    )
}
