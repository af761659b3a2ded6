//! Errors in a scenario, with their location: file, line and key.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::policy;

/// An error in a scenario.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct ScenarioError {
    /// The scenario's file.
    pub file: PathBuf,
    /// The line, from 1; `None` if the file as a whole is at fault.
    pub line: Option<usize>,
    /// The key, as `vm.fast`.
    pub key: Option<String>,
    /// The problem, the allowed values and the remedy, in one line.
    pub what: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, "{line}:")?;
        }
        if let Some(key) = &self.key {
            write!(f, " {key}:")?;
        }
        write!(f, " {}", self.what)
    }
}

/// A broken rule of scenarios.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {what}", self.key())]
pub struct Fault {
    /// The key's path, as `vm[1].fast`: `vm` counts from 0.
    pub path: String,
    /// The problem, the allowed values and the remedy.
    pub what: String,
}

impl Fault {
    pub(crate) fn new(path: impl Into<String>, what: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            what: what.into(),
        }
    }

    /// The key as in a scenario's file, without numbers.
    #[must_use]
    pub fn key(&self) -> String {
        let mut key = String::new();
        let mut inside = false;
        for c in self.path.chars() {
            match c {
                '[' => inside = true,
                ']' => inside = false,
                c if !inside => key.push(c),
                _ => {}
            }
        }
        key
    }
}

/// A key's path, and its bytes from the name's first to the value's last.
type Key = (String, Range<usize>);

/// The text of a scenario, to locate faults in it.
pub(super) struct ScenarioText<'a> {
    pub file: &'a Path,
    pub text: &'a str,
}

impl ScenarioText<'_> {
    /// The error of a text that is not TOML, or does not have a scenario's shape.
    pub fn misshapen(&self, error: &toml::de::Error) -> ScenarioError {
        let span = error.span().unwrap_or_default();
        // A table's fault is at its header, where the name stands behind brackets.
        let header = self.text.get(span.clone()).unwrap_or_default();
        let brackets = header.len() - header.trim_start_matches('[').len();
        let at = match header.strip_suffix(']') {
            Some(_) => span.start + brackets,
            None => span.start,
        };
        let keys = self.keys();
        let around = keys.iter().filter(|(_, span)| span.contains(&at));
        let path = around.max_by_key(|(path, _)| path.len());
        let what = path.and_then(|(path, _)| self.unknown(error.message(), path, &keys));
        ScenarioError {
            file: self.file.to_owned(),
            line: error.span().map(|_| self.line(at)),
            key: path.map(|(path, _)| Fault::new(path.as_str(), "").key()),
            // Parsers like to continue over several lines.
            what: one_line(what.as_deref().unwrap_or(error.message())),
        }
    }

    /// The error of an unknown key of a policy's table, with the keys of its base instead of those of all; `None` of
    /// another error.
    fn unknown(&self, message: &str, path: &str, keys: &[Key]) -> Option<String> {
        let (table, _) = path.rsplit_once('.')?;
        let (unknown, _) = message.split_once(", expected")?;
        if !unknown.starts_with("unknown field") || !table.ends_with(".policy") {
            return None;
        }
        let base = format!("{table}.base");
        let (_, span) = keys.iter().find(|(path, _)| *path == base)?;
        let base = self.text.get(span.clone())?.split('"').nth(1)?;
        let allowed = policy::keys(base)?;
        Some(format!(
            "{unknown}: with base = \"{base}\" allowed is `{}`",
            allowed.join("`, `")
        ))
    }

    /// The error of a broken rule, with the line of its key or, if that is not set, of the table that the key belongs
    /// to.
    pub fn broken(&self, fault: &Fault) -> ScenarioError {
        let keys = self.keys();
        let within = |path: &str| match fault.path.strip_prefix(path) {
            Some(rest) => rest.is_empty() || rest.starts_with(['.', '[']),
            None => false,
        };
        let named = keys.iter().filter(|(path, _)| within(path));
        let nearest = named.max_by_key(|(path, _)| path.len());
        ScenarioError {
            file: self.file.to_owned(),
            line: nearest.map(|(_, span)| self.line(span.start)),
            key: Some(fault.key()),
            what: one_line(&fault.what),
        }
    }

    /// Paths of all keys, each with its bytes from the name's first to the value's last; empty if the text is not
    /// TOML.
    fn keys(&self) -> Vec<Key> {
        let mut found = Vec::new();
        let Ok(root) = DeTable::parse(self.text) else {
            return found;
        };
        let mut open = Vec::new();
        for (name, value) in root.get_ref() {
            open.push((name.get_ref().to_string(), name.span().start, value));
        }
        while let Some((path, start, value)) = open.pop() {
            match value.get_ref() {
                DeValue::Table(inner) => {
                    for (name, value) in inner {
                        let path = format!("{path}.{}", name.get_ref());
                        open.push((path, name.span().start, value));
                    }
                }
                DeValue::Array(items) => {
                    for (i, item) in items.iter().enumerate() {
                        open.push((format!("{path}[{i}]"), item.span().start, item));
                    }
                }
                _ => {}
            }
            found.push((path, start..value.span().end));
        }
        found
    }

    fn line(&self, at: usize) -> usize {
        let before = self.text.bytes().take(at);
        before.filter(|b| *b == b'\n').count() + 1
    }
}

/// The text on one line, without control characters that a terminal would obey.
fn one_line(text: &str) -> String {
    let printable = text.replace(|c: char| c.is_control() && c != '\n', "\u{fffd}");
    printable.split_whitespace().collect::<Vec<_>>().join(" ")
}
