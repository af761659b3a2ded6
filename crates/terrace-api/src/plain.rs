//! JSON whose texts are safe to print on any terminal: foreign text is escaped once more where it is written, and
//! where it is read, so that neither a program that prints an answer nor one that trusts the daemon can be steered.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter, Serializer};
use terrace_proto::printable::printable;

/// A value as JSON.
///
/// # Errors
/// If the value has no JSON form.
pub fn to_json<T: Serialize>(value: &T) -> serde_json::Result<Vec<u8>> {
    let mut out = Vec::new();
    value.serialize(&mut Serializer::with_formatter(&mut out, Plain))?;
    Ok(out)
}

struct Plain;

impl Formatter for Plain {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        // What is written out has a backslash, which JSON writes as two.
        match printable(fragment) {
            std::borrow::Cow::Borrowed(text) => writer.write_all(text.as_bytes()),
            std::borrow::Cow::Owned(text) => {
                writer.write_all(text.replace('\\', "\\\\").as_bytes())
            }
        }
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        let control = match escape {
            CharEscape::Backspace => 8,
            CharEscape::Tab => 9,
            CharEscape::LineFeed => 10,
            CharEscape::FormFeed => 12,
            CharEscape::CarriageReturn => 13,
            CharEscape::AsciiControl(byte) => byte,
            other => return CompactFormatter.write_char_escape(writer, other),
        };
        write!(writer, "\\\\u{{{control:x}}}")
    }
}

/// Escapes every text of a value, keys included.
pub fn escape(value: &mut Value) {
    match value {
        Value::String(text) => {
            if let std::borrow::Cow::Owned(plain) = printable(text) {
                *text = plain;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(escape),
        Value::Object(fields) => {
            let is_plain = |key: &String| matches!(printable(key), std::borrow::Cow::Borrowed(_));
            if !fields.keys().all(is_plain) {
                let old = std::mem::take(fields);
                fields.extend(
                    old.into_iter()
                        .map(|(k, v)| (printable(&k).into_owned(), v)),
                );
            }
            fields.values_mut().for_each(escape);
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn escapes_do_not_get_through_an_answer() {
        let value = json!({"na\x1bme": "a\x1b[2J\"\\b\n\u{202e}", "list": ["\x07", "größe → 1"]});
        let text = String::from_utf8(to_json(&value).unwrap()).unwrap();
        let read: Value = serde_json::from_str(&text).unwrap();
        let mut want = value;
        escape(&mut want);
        assert_eq!(read, want);
        assert_eq!(read["na\\u{1b}me"], "a\\u{1b}[2J\"\\b\\u{a}\\u{202e}");
        assert_eq!(read["list"], json!(["\\u{7}", "größe → 1"]));
    }

    #[test]
    fn what_is_plain_is_written_as_ever() {
        let value = json!({"a": [1, 2.5, null, true, "x\"y\\z"]});
        assert_eq!(
            to_json(&value).unwrap(),
            serde_json::to_vec(&value).unwrap()
        );
    }
}
