//! Hot base pages by processes, and lists of them from another tool.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context as _, Result, bail, ensure};
use terrace_core::gather::LargePage;
use terrace_proto::PAGE_SIZE;

use super::by_host::NamedByHost;

/// Most pages of a list: 256 GiB of memory.
const MAX_PAGES: usize = 1 << 26;

/// Numbers of hot virtual pages of each process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HotPages {
    /// Ascending, each once.
    pub pages: BTreeMap<u32, Vec<u64>>,
    /// Hot pages of 2 MiB, in order: which of their parts are hot is not known.
    pub large: Vec<LargePage>,
    /// The frames that they came from, if the host named them.
    pub by_host: Option<NamedByHost>,
}

impl HotPages {
    /// Number of the base pages.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.pages.values().map(|pages| pages.len() as u64).sum()
    }
}

/// Reads a list of hot pages: a process and an address in each line, `1234 0x7f0000001000`.
///
/// # Errors
/// If the file cannot be read or a line is none; the message has the line's number.
pub fn read_list(file: &Path) -> Result<HotPages> {
    let open = || -> Result<HotPages> {
        // A pipe would be waited for.
        ensure!(
            file.metadata()?.is_file(),
            "not a file with a list of pages"
        );
        parse_list(BufReader::new(File::open(file)?))
    };
    open().with_context(|| format!("reading {}", file.display()))
}

fn parse_list(text: impl BufRead) -> Result<HotPages> {
    let mut found: BTreeMap<u32, BTreeSet<u64>> = BTreeMap::new();
    let mut count = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line?;
        let line = line.split('#').next().unwrap_or("").trim();
        if line.is_empty() {
            continue;
        }
        let Some((pid, page)) = entry(line) else {
            bail!("line {number}: {line:?} is not PID ADDRESS, as in 1234 0x7f0000001000");
        };
        count += usize::from(found.entry(pid).or_default().insert(page));
        ensure!(count <= MAX_PAGES, "more than {MAX_PAGES} pages");
    }
    let pages = found.into_iter();
    Ok(HotPages {
        pages: pages
            .map(|(pid, pages)| (pid, pages.into_iter().collect()))
            .collect(),
        ..HotPages::default()
    })
}

fn entry(line: &str) -> Option<(u32, u64)> {
    let (pid, address) = line.split_once(char::is_whitespace)?;
    let address = address.trim_start().strip_prefix("0x")?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let pid = pid.parse().ok().filter(|pid| *pid > 0)?;
    // The other half of the addresses is the kernel's.
    (address < 1 << 56).then_some((pid, address / PAGE_SIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_names_each_page_once_and_may_have_comments() {
        let list = parse_list(
            "# hot\n7 0x3000\n\n  7 0x1fff # part of a page\n9\t0x3000\n7 0x3001\n".as_bytes(),
        );
        let list = list.unwrap();
        assert_eq!(list.pages, [(7, vec![1, 3]), (9, vec![3])].into());
    }

    #[test]
    fn a_wrong_line_is_named() {
        for wrong in [
            "7",
            "7 4096",
            "0 0x1000",
            "-1 0x1000",
            "7 0xg",
            "7 0x1000 8",
            "7 0xffffffffffffffff",
        ] {
            let error = parse_list(format!("7 0x1000\n{wrong}\n").as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with("line 2: "), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_list_makes_it_panic(text in "[0-9a-fx #\\n-]{0,80}") {
            let _ = parse_list(text.as_bytes());
        }
    }
}
