//! The comments of a source file.

/// A source file's comments. Lines are numbered from 1.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The first line of each doc comment.
    pub doc_comments: Vec<(usize, String)>,
    /// The first line of each `# Errors` section.
    pub errors_sections: Vec<(usize, String)>,
    /// Lines that are a comment inside the code, inline tests excluded.
    pub comment_lines: usize,
    /// Lines of code, inline tests excluded.
    pub code_lines: usize,
}

impl Source {
    /// Reads a file's comments. A text in a raw string that looks like a comment counts as one.
    pub fn parse(text: &str) -> Self {
        let mut source = Self::default();
        // The marker of the doc comment that the line before belongs to.
        let mut open = None;
        let mut awaits_errors = false;
        let mut is_tested = false;
        for (number, line) in text
            .lines()
            .map(str::trim)
            .enumerate()
            .map(|(i, l)| (i + 1, l))
        {
            let Some((marker, comment)) = doc_comment(line) else {
                (open, awaits_errors) = (None, false);
                // Inline tests stand at the end of a file.
                is_tested |= line == "mod tests {";
                if is_tested || line.is_empty() {
                    continue;
                }
                if line.starts_with("//") {
                    source.comment_lines += 1;
                } else {
                    source.code_lines += 1;
                }
                continue;
            };
            if open != Some(marker) {
                source.doc_comments.push((number, comment.to_owned()));
            }
            if awaits_errors && !comment.is_empty() {
                source.errors_sections.push((number, comment.to_owned()));
            }
            awaits_errors = comment == "# Errors" || (awaits_errors && comment.is_empty());
            open = Some(marker);
        }
        source
    }
}

/// The marker and the words of a doc comment's line.
fn doc_comment(line: &str) -> Option<(&'static str, &str)> {
    ["///", "//!"].into_iter().find_map(|marker| {
        let comment = line.strip_prefix(marker)?;
        (!comment.starts_with('/')).then_some((marker, comment.trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doc_comments_errors_comments_and_code_are_told_apart() {
        let text = "\
//! A module.
//! More of it.

/// A function.
///
/// # Errors
///
/// If it fails.
/// And so on.
fn f() {
    // A reason.
    g(); // Not counted: the line is code.
    //// Four slashes are a comment.
}
/// Another.
#[cfg(test)]
mod tests {
    // Neither code nor a comment.
}
";
        let source = Source::parse(text);
        let of = |list: &[(usize, String)]| -> Vec<(usize, String)> { list.to_vec() };
        assert_eq!(
            of(&source.doc_comments),
            [
                (1, "A module.".into()),
                (4, "A function.".into()),
                (15, "Another.".into())
            ]
        );
        assert_eq!(of(&source.errors_sections), [(8, "If it fails.".into())]);
        assert_eq!((source.comment_lines, source.code_lines), (2, 4));
    }
}
