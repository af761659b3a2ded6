//! Short texts that may be printed on a terminal.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::OutOfBounds;

/// A text of at most `MAX` bytes of printable ASCII: no control character of the other end reaches a terminal
/// or a log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Text<const MAX: usize>(String);

impl<const MAX: usize> Text<MAX> {
    /// As much of `text` as fits; characters that may not be printed become `?`.
    #[must_use]
    pub fn lossy(text: &str) -> Self {
        let printable = |c: char| if is_printable(c) { c } else { '?' };
        Self(text.chars().take(MAX).map(printable).collect())
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn is_printable(c: char) -> bool {
    c == ' ' || c.is_ascii_graphic()
}

impl<const MAX: usize> TryFrom<String> for Text<MAX> {
    type Error = OutOfBounds;

    fn try_from(text: String) -> Result<Self, OutOfBounds> {
        if text.len() > MAX {
            Err(OutOfBounds::new("bytes of a text", text.len(), MAX))
        } else if text.chars().all(is_printable) {
            Ok(Self(text))
        } else {
            Err(OutOfBounds::new("characters that cannot be printed", 1, 0))
        }
    }
}

impl<const MAX: usize> From<Text<MAX>> for String {
    fn from(text: Text<MAX>) -> Self {
        text.0
    }
}

impl<const MAX: usize> fmt::Display for Text<MAX> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_long_or_steers_a_terminal_is_no_text() {
        let text = |s: &str| Text::<8>::try_from(s.to_owned());
        assert_eq!(text("damon v1").unwrap().as_str(), "damon v1");
        for bad in ["nine char", "\x1b[2J", "a\nb", "über"] {
            assert!(text(bad).is_err(), "{bad:?}");
        }
        assert_eq!(Text::<4>::lossy("a\x1bücd").as_str(), "a??c");
    }
}
