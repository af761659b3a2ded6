//! Text for people: sizes, tables, bars.

use std::io::IsTerminal as _;

use terrace_proto::printable::excerpt;

/// Whether standard output shows colours: it is a terminal or `CLICOLOR_FORCE` is set, and `NO_COLOR`
/// (<https://no-color.org>) is not.
pub fn in_colours() -> bool {
    let is_set =
        |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty() && value != "0");
    !is_set("NO_COLOR") && (is_set("CLICOLOR_FORCE") || std::io::stdout().is_terminal())
}

/// A size for people: `1.5 GiB`, `48 MiB`, `4 KiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [(&str, u64); 4] = [
        ("TiB", 1 << 40),
        ("GiB", 1 << 30),
        ("MiB", 1 << 20),
        ("KiB", 1 << 10),
    ];
    for (unit, size) in UNITS {
        if n >= size {
            let tenths = u128::from(n) * 10 / u128::from(size);
            return if tenths % 10 == 0 || tenths >= 1000 {
                format!("{} {unit}", tenths / 10)
            } else {
                format!("{}.{} {unit}", tenths / 10, tenths % 10)
            };
        }
    }
    format!("{n} B")
}

/// `n` pages of 4 KiB as bytes.
pub fn pages(n: u64) -> String {
    bytes(n.saturating_mul(4096))
}

/// A process id, if it is known.
pub fn process(pid: Option<u32>) -> String {
    pid.map_or_else(|| "?".into(), |pid| pid.to_string())
}

/// `part` of `whole` in per cent, rounded down; 0 of nothing.
pub fn percent(part: u64, whole: u64) -> u64 {
    (u128::from(part) * 100)
        .checked_div(u128::from(whole))
        .map_or(0, |p| u64::try_from(p).unwrap_or(u64::MAX))
}

/// Most characters of a cell: a table is for people, and the formatter has its own limit on widths.
const MAX_CELL: usize = 400;

/// A table with a header line; all columns but those named in `right` are left-aligned. Cells go to the terminal
/// as they are, so they are made printable; long ones are cut.
pub fn table(header: &[&str], right: &[usize], rows: &[Vec<String>]) -> String {
    let header: Vec<String> = header.iter().map(|h| excerpt(h, MAX_CELL)).collect();
    let cut = |row: &Vec<String>| row.iter().map(|cell| excerpt(cell, MAX_CELL)).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(cut).collect();
    let width = |column: usize| {
        rows.iter()
            .filter_map(|r| r.get(column))
            .map(|c| c.chars().count())
            .chain([header[column].chars().count()])
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &mut dyn Iterator<Item = &str>| {
        let text: Vec<String> = cells
            .zip(&widths)
            .enumerate()
            .map(|(i, (cell, w))| {
                if right.contains(&i) {
                    format!("{cell:>w$}")
                } else {
                    format!("{cell:<w$}")
                }
            })
            .collect();
        format!("{}\n", text.join("  ").trim_end())
    };
    let mut out = line(&mut header.iter().map(String::as_str));
    for row in &rows {
        out += &line(&mut row.iter().map(String::as_str));
    }
    out
}

/// A bar of `width` characters that shows `part` of `whole`.
pub fn bar(part: u64, whole: u64, width: u64) -> String {
    let filled = percent(part, whole).min(100) * width / 100;
    (0..width)
        .map(|i| if i < filled { '█' } else { '░' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_well() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(4096), "4 KiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(bytes(u64::MAX), "16777215 TiB");
    }

    #[test]
    fn tables_align_their_columns() {
        let rows = vec![
            vec!["vm1".into(), "7".into()],
            vec!["b".into(), "1234".into()],
        ];
        assert_eq!(
            table(&["NAME", "N"], &[1], &rows),
            "NAME     N\nvm1      7\nb     1234\n"
        );
    }

    #[test]
    fn a_cell_of_15_mb_or_with_escapes_breaks_no_table() {
        let long = "猫".repeat(5 << 20);
        let rows = vec![vec![long, "1".into()], vec!["\x1b[2J".into(), "2".into()]];
        for right in [[0], [1]] {
            let text = table(&["NAME", "N"], &right, &rows);
            assert!(text.chars().count() < 4 * MAX_CELL, "it is cut");
            assert!(text.contains("\\u{1b}[2J") && !text.contains('\x1b'));
            assert_eq!(text.lines().count(), 3);
        }
    }

    #[test]
    fn nothing_of_nothing_is_no_division_by_zero() {
        assert_eq!(percent(3, 0), 0);
        assert_eq!(bar(1, 2, 4), "██░░");
    }
}
