//! The part of a page that a command writes: the text between two markers.

use anyhow::{Context, Result};

const END: &str = "<!-- end -->";

/// The page with a table between the markers of `cargo xtask lab COMMAND --write`.
///
/// # Errors
/// If the page has no markers.
pub fn replaced(page: &str, command: &str, table: &str) -> Result<String> {
    let begin = format!("<!-- begin: cargo xtask lab {command} --write -->\n");
    let markers = || format!("the lines `{}` and `{END}` are missing", begin.trim_end());
    let (head, rest) = page.split_once(&begin).with_context(markers)?;
    let (_, tail) = rest.split_once(END).with_context(markers)?;
    Ok(format!("{head}{begin}\n{table}\n{END}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_markers_is_replaced() {
        let begin = "<!-- begin: cargo xtask lab compare --write -->";
        let text = format!("before\n{begin}\nold\n{END}\nafter\n");
        let new = replaced(&text, "compare", "| new |").unwrap();
        assert_eq!(new, format!("before\n{begin}\n\n| new |\n{END}\nafter\n"));
        assert_eq!(replaced(&new, "compare", "| new |").unwrap(), new);
        assert!(replaced(&new, "proof", "").is_err());
    }
}
