//! `cargo xtask prose`: how comments are written, as counts with limits.
//!
//! A doc comment's first sentence defines: a noun phrase, or a verb for a function. One that begins with "What" or
//! "It" describes before it names. In five places, where a branch can cost a guest its data or a run its meaning,
//! comments inside the code give the reasons.

mod comments;

use std::path::Path;

use anyhow::{Result, bail};
use terrace_lab::places;

use crate::sources::{read, rust_files};
use comments::Source;

/// First words that describe before they name.
const POOR_FIRST_WORDS: [&str; 4] = ["What", "It", "Its", "Where"];
/// Most doc comments that may begin so, in thousandths.
const MAX_POOR: usize = 2;

/// Places in which comments give reasons, with the least share of comment lines per thousand lines of code.
const REASONED: [(&str, &[&str], usize); 5] = [
    (
        "scanner's pass",
        &["crates/terrace-pagetable/src/pass.rs"],
        40,
    ),
    (
        "engine's moves",
        &[
            "crates/terrace-core/src/engine/check.rs",
            "crates/terrace-core/src/engine/landing.rs",
            "crates/terrace-core/src/engine/moves.rs",
        ],
        40,
    ),
    ("provisioning", &["crates/terrace-core/src/provision"], 40),
    (
        "device queues",
        &[
            "crates/terrace-hyperflex/src/chain.rs",
            "crates/terrace-hyperflex/src/device",
            "crates/terrace-hyperflex/src/ring.rs",
        ],
        40,
    ),
    (
        "simulator's walk",
        &["crates/terrace-sim/src/machine/walk.rs"],
        40,
    ),
];

/// Options of the task.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct Arguments {
    /// Also print each comment that counts against a limit, as FILE:LINE
    #[arg(long)]
    list: bool,
}

/// Prints the counts.
///
/// # Errors
/// If a limit is exceeded, or a source cannot be read.
pub fn run(arguments: &Arguments) -> Result<()> {
    let counts = Counts::of(places::repository())?;
    print!("{}", counts.table());
    if arguments.list {
        for place in counts.poor.iter().chain(&counts.errors_where) {
            println!("{place}");
        }
    }
    let exceeded = counts.exceeded();
    if !exceeded.is_empty() {
        bail!(
            "{}; `cargo xtask prose --list` names the comments",
            exceeded.join("; ")
        );
    }
    Ok(())
}

/// The counts of a tree.
#[derive(Debug, Default)]
struct Counts {
    doc_comments: usize,
    /// Doc comments with a poor first word, as `FILE:LINE: text`.
    poor: Vec<String>,
    errors_sections: usize,
    /// `# Errors` sections that begin with "Where".
    errors_where: Vec<String>,
    /// Lines of comments and of code of each place of [`REASONED`].
    reasoned: [(usize, usize); REASONED.len()],
}

impl Counts {
    fn of(root: &Path) -> Result<Self> {
        let mut counts = Self::default();
        for folder in ["crates", "fuzz", "lab", "xtask"] {
            for file in rust_files(&root.join(folder))? {
                let text = read(&file)?;
                let path = file.strip_prefix(root).unwrap_or(&file);
                counts.add(&path.display().to_string(), &Source::parse(&text));
            }
        }
        Ok(counts)
    }

    fn add(&mut self, path: &str, source: &Source) {
        self.doc_comments += source.doc_comments.len();
        for (line, text) in &source.doc_comments {
            let first = text
                .split(|c: char| !c.is_alphanumeric())
                .find(|w| !w.is_empty());
            if first.is_some_and(|word| POOR_FIRST_WORDS.contains(&word)) {
                self.poor.push(format!("{path}:{line}: {text}"));
            }
        }
        self.errors_sections += source.errors_sections.len();
        let wheres = source.errors_sections.iter();
        let wheres = wheres.filter(|(_, text)| text.starts_with("Where "));
        self.errors_where
            .extend(wheres.map(|(line, text)| format!("{path}:{line}: {text}")));
        for ((_, places, _), sum) in REASONED.iter().zip(&mut self.reasoned) {
            if places.iter().any(|place| path.starts_with(place)) && !path.contains("/tests") {
                sum.0 += source.comment_lines;
                sum.1 += source.code_lines;
            }
        }
    }

    fn table(&self) -> String {
        let per_thousand = |(comments, code): (usize, usize)| comments * 1000 / code.max(1);
        let mut rows = vec![
            (
                "doc comments that begin with What, It, Its or Where",
                self.poor.len(),
                self.doc_comments,
                format!("at most {MAX_POOR}"),
            ),
            (
                "`# Errors` sections that begin with Where",
                self.errors_where.len(),
                self.errors_sections,
                "none".into(),
            ),
        ];
        for ((name, _, least), sum) in REASONED.iter().zip(self.reasoned) {
            rows.push((name, sum.0, sum.1, format!("at least {least}")));
        }
        let mut text = format!(
            "{:<52} {:>6} {:>7} {:>6}  limit, ‰\n",
            "", "count", "of", "‰"
        );
        for (name, count, of, limit) in rows {
            let share = per_thousand((count, of));
            text += &format!("{name:<52} {count:>6} {of:>7} {share:>6}  {limit}\n");
        }
        text
    }

    /// A sentence for each limit that is exceeded.
    fn exceeded(&self) -> Vec<String> {
        let mut exceeded = Vec::new();
        if self.poor.len() * 1000 > self.doc_comments * MAX_POOR {
            exceeded.push(format!(
                "{} doc comments describe before they name",
                self.poor.len()
            ));
        }
        if !self.errors_where.is_empty() {
            let sections = self.errors_where.len();
            exceeded.push(format!("{sections} `# Errors` sections begin with Where"));
        }
        for ((name, _, least), (comments, code)) in REASONED.iter().zip(self.reasoned) {
            if comments * 1000 < code * least {
                exceeded.push(format!(
                    "{name}: {comments} comments on {code} lines of code"
                ));
            }
        }
        exceeded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_keep_their_limits() {
        let counts = Counts::of(places::repository()).unwrap();
        assert!(counts.doc_comments > 5_000, "{} found", counts.doc_comments);
        assert!(
            counts.reasoned.iter().all(|(_, code)| *code > 100),
            "{counts:?}"
        );
        let exceeded = counts.exceeded();
        assert!(exceeded.is_empty(), "{exceeded:?}\n{}", counts.table());
    }

    #[test]
    fn each_limit_is_seen_to_be_exceeded() {
        let mut counts = Counts::default();
        let text = "/// What it is.\n///\n/// # Errors\n/// Where it fails.\nfn f() {}\n";
        counts.add(
            "crates/terrace-sim/src/machine/walk.rs",
            &Source::parse(text),
        );
        assert_eq!(counts.exceeded().len(), 3, "{counts:?}");
    }
}
