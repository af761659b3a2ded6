//! The figures as a Markdown table, and its place in the docs.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use super::report::{Comparison, HOT_SETS};
use super::watch::Measured;
use crate::measure::marked::replaced;

const HEAD: &str = "\
| hot set | who places | hot pages on fast | other pages of the VM on fast | pages moved | came to fast, not hot | hot, left fast | CPU: kernel threads | CPU: terraced | CPU: QEMU in the kernel | passes of the guest |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
";

/// One line for each hot set and method.
pub fn markdown(report: &Comparison) -> String {
    let mut text = HEAD.to_owned();
    for (index, _) in HOT_SETS.iter().enumerate() {
        for method in &report.methods {
            text += &line(method.name, &method.windows[index]);
        }
    }
    let Comparison {
        kernel, window_s, ..
    } = report;
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "\nLinux {kernel}; each hot set was watched for {window_s} s.\n"
    );
    text
}

fn line(name: &str, window: &Measured) -> String {
    let Measured {
        hot_set,
        hot,
        hot_on_fast,
        others_on_fast,
        migrated,
        useless,
        demoted_hot,
        cpu,
        passes,
        ..
    } = window;
    format!(
        "| {hot_set} | {name} | {hot_on_fast} of {hot} | {others_on_fast} | {migrated} | {useless} | \
         {demoted_hot} | {} | {} | {} | {passes} |\n",
        seconds(cpu.kernel_threads_cs),
        seconds(cpu.daemon_cs),
        seconds(cpu.qemu_system_cs),
    )
}

fn seconds(hundredths: u64) -> String {
    format!("{}.{:02} s", hundredths / 100, hundredths % 100)
}

/// Replaces the text between the markers.
pub fn put_into(path: &Path, table: &str) -> Result<()> {
    let what = || path.display().to_string();
    let text = fs::read_to_string(path).with_context(what)?;
    let text = replaced(&text, "compare", table).with_context(what)?;
    fs::write(path, text).with_context(what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hundredths_keep_their_zero() {
        assert_eq!(seconds(105), "1.05 s");
    }
}
