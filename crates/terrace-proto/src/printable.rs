//! Text of other programs, made fit for a terminal, a log and an answer of the API.
//!
//! A process, a monitor, a guest and a file's name are free to hold escape sequences, characters that reorder
//! the text beside them, and megabytes. This is the one place that removes them.

use std::borrow::Cow;
use std::fmt::Write as _;

/// Most characters of other programs' text that a sentence quotes.
pub const MAX_TEXT_CHARS: usize = 1000;
/// Most bytes of a VM's name.
pub const MAX_NAME: usize = 255;

/// Text in which every character that does not stand for itself on a terminal is written out, as `\u{1b}`: controls,
/// line ends, marks that reorder or join, and characters without a glyph.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.chars().all(stands_for_itself) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        push(&mut out, c);
    }
    Cow::Owned(out)
}

/// The same, cut to so many characters of the result; `…` marks the cut.
#[must_use]
pub fn excerpt(text: &str, most: usize) -> String {
    let mut out = String::new();
    let mut room = most;
    for c in text.chars() {
        let before = out.len();
        push(&mut out, c);
        // A character that is written out is ASCII; anything else is one character.
        let width = if out.len() - before == c.len_utf8() {
            1
        } else {
            out.len() - before
        };
        if width > room {
            out.truncate(before);
            out.push('…');
            break;
        }
        room -= width;
    }
    out
}

/// Whether a name may be a VM's: 1 to 255 printable characters of ASCII that neither begins nor ends with a space.
/// Two names that appear alike are then equal.
#[must_use]
pub fn is_vm_name(name: &str) -> bool {
    let is_long = name.is_empty() || name.len() > MAX_NAME;
    let is_ascii = name.bytes().all(|b| (b' '..=b'~').contains(&b));
    !is_long && is_ascii && name.trim() == name
}

/// Whether a character is its own glyph: neither a control nor a format character, nor one that joins another.
fn stands_for_itself(c: char) -> bool {
    match c {
        ' '..='~' => true,
        // The standard library's own table of characters that are printed unchanged.
        _ => c.escape_debug().len() == 1,
    }
}

fn push(out: &mut String, c: char) {
    if stands_for_itself(c) {
        out.push(c);
    } else {
        // Writing to a string cannot fail.
        let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_and_marks_that_reorder_are_written_out() {
        assert_eq!(printable("\x1b[2J\x07"), "\\u{1b}[2J\\u{7}");
        assert_eq!(printable("a\r\nb\tc"), "a\\u{d}\\u{a}b\\u{9}c");
        // C1 controls, a right-to-left override, a zero-width joiner, a line separator, a combining mark.
        for c in [
            '\u{9b}', '\u{7f}', '\u{202e}', '\u{200d}', '\u{2028}', '\u{301}', '\u{feff}',
        ] {
            let text = printable(&c.to_string()).into_owned();
            assert!(text.starts_with("\\u{") && text.is_ascii(), "{c:?}: {text}");
        }
        for plain in ["web1", "2 GiB → 3 GiB …", "größer, 猫 ~ \\ \" '"] {
            assert!(matches!(printable(plain), Cow::Borrowed(_)), "{plain}");
        }
    }

    #[test]
    fn what_is_cut_is_cut_between_characters_and_says_so() {
        assert_eq!(excerpt("猫猫猫", 3), "猫猫猫");
        assert_eq!(excerpt("猫猫猫", 2), "猫猫…");
        assert_eq!(excerpt("ab\x1bc", 2), "ab…");
        assert_eq!(excerpt("", 0), "");
        assert_eq!(
            excerpt(&"x".repeat(15 << 20), MAX_TEXT_CHARS)
                .chars()
                .count(),
            MAX_TEXT_CHARS + 1
        );
    }

    #[test]
    fn a_name_is_255_printable_characters_of_ascii_at_most() {
        for good in ["a", "web 1/b;c", &"x".repeat(255)] {
            assert!(is_vm_name(good), "{good}");
        }
        let long = "x".repeat(256);
        for bad in [
            "",
            &long,
            "a\x1b[2J",
            "a\nb",
            "größe",
            " a",
            "a ",
            "\u{202e}a",
        ] {
            assert!(!is_vm_name(bad), "{bad:?}");
        }
    }

    proptest::proptest! {
        #[test]
        fn nothing_gets_through(text in ".{0,60}", most in 0_usize..80) {
            let plain = printable(&text);
            assert!(plain.chars().all(|c| !c.is_control()));
            assert!(matches!(printable(&plain), Cow::Borrowed(_)));
            assert!(excerpt(&text, most).chars().count() <= most + 1);
        }
    }
}
