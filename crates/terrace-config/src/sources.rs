//! The configuration's files: which there are, how they override each other, and which one set a key.
//!
//! Responsible for: one file and the drop-ins of its folder (`terrace.toml` and `terrace.toml.d/*.toml`
//! by name, later ones over earlier ones, tables key by key, anything else as a whole), and for naming
//! file, line and key of an error. The meaning of the keys is left to `config`.

use std::borrow::Cow;
use std::fmt;
use std::io::{self, Read as _};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};
use terrace_proto::printable::printable;
use toml::de::{DeTable, DeValue};
use toml::{Table, Value};

use crate::renamed;

/// The file that is read if none is named.
pub const DEFAULT_FILE: &str = "/etc/terrace/terrace.toml";

/// Largest file of a configuration, bytes.
const MAX_FILE: u64 = 16 << 20;

/// Every key with its default, as shipped.
const REFERENCE: &str = include_str!("../../../dist/terrace.toml");

/// An error of a configuration, with its location.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, thiserror::Error)]
pub struct Problem {
    /// The file; `None` if no single one is to blame.
    #[serde(serialize_with = "as_text")]
    pub file: Option<PathBuf>,
    /// The line in the file, from 1.
    pub line: Option<usize>,
    /// Path of the key, as `engine.windows`.
    pub key: Option<String>,
    /// The error, with the allowed values; for people.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), Some(line)) => write!(f, "{}:{line}: ", shown(file))?,
            (Some(file), None) => write!(f, "{}: ", shown(file))?,
            (None, _) => f.write_str("configuration: ")?,
        }
        // Checks name their key themselves.
        match &self.key {
            Some(key) if !dotted(&self.what).starts_with(key.as_str()) => {
                write!(f, "{}: ", printable(key))?
            }
            _ => {}
        }
        f.write_str(&printable(&self.what))
    }
}

/// The message of a check with the path of its key in one piece: `vm.a: fast` is about `vm.a.fast`.
fn dotted(what: &str) -> String {
    what.replacen(": ", ".", 1)
}

/// A file's name as text that is safe to print, whatever its bytes are.
#[must_use]
pub fn shown(file: &Path) -> String {
    printable(&file.to_string_lossy()).into_owned()
}

fn as_text<S: Serializer>(file: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    file.as_deref().map(shown).serialize(to)
}

/// A key that a file sets.
#[derive(Debug)]
struct Key {
    path: Vec<String>,
    line: usize,
    /// Bytes of the file from the key's name to its value's end.
    span: Range<usize>,
}

/// One file.
#[derive(Debug)]
struct Layer {
    file: PathBuf,
    text: String,
    table: Table,
    keys: Vec<Key>,
    /// Warnings about keys under their old names.
    renamed: Vec<String>,
}

/// All files of a configuration, in the order in which they override each other: the last one wins.
#[derive(Debug, Default)]
pub struct Sources {
    layers: Vec<Layer>,
}

impl Sources {
    /// Reads `file`, or the default one if it exists, and the drop-ins beside it.
    ///
    /// # Errors
    /// If a file cannot be read or is not TOML.
    pub fn read(file: Option<&Path>) -> Result<Self, Problem> {
        let main = file.unwrap_or(Path::new(DEFAULT_FILE));
        let mut files = Vec::new();
        // One that may not be looked at fails when it is read: it is not taken for absent.
        if file.is_some() || main.try_exists().unwrap_or(true) {
            files.push(main.to_owned());
        }
        files.extend(drop_ins(main)?);
        let layers = files.into_iter().map(Layer::read);
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
        })
    }

    /// Parses one file's text.
    ///
    /// # Errors
    /// If the text is not TOML.
    pub fn of_text(text: &str) -> Result<Self, Problem> {
        let layer = Layer::parse("terrace.toml".into(), text.to_owned())?;
        Ok(Self {
            layers: vec![layer],
        })
    }

    /// The files, in the order in which they override each other: the last one wins.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        self.layers.iter().map(|layer| layer.file.as_path())
    }

    /// Warnings about keys under their old names, for people.
    pub fn renamed(&self) -> impl Iterator<Item = &str> {
        let all = self.layers.iter().flat_map(|layer| &layer.renamed);
        all.map(String::as_str)
    }

    /// The files in words, for people.
    #[must_use]
    pub fn text(&self) -> String {
        let files: Vec<String> = self.files().map(shown).collect();
        if files.is_empty() {
            format!("built-in defaults ({DEFAULT_FILE} is not there)")
        } else {
            files.join(", ")
        }
    }

    /// Every file's text with the file's index.
    pub(super) fn texts(&self) -> impl Iterator<Item = (usize, &str)> {
        let layers = self.layers.iter().enumerate();
        layers.map(|(i, layer)| (i, layer.text.as_str()))
    }

    /// The tables of all files, merged.
    pub(super) fn merged(&self) -> Table {
        let mut merged = Table::new();
        for layer in &self.layers {
            merge(&mut merged, layer.table.clone());
        }
        merged
    }

    /// The problem of a file that is not of the right shape.
    pub(super) fn misshapen(&self, layer: usize, error: &toml::de::Error) -> Problem {
        let layer = &self.layers[layer];
        layer.problem(error)
    }

    /// The problem of a check that failed. Its message begins with the path of the key that it is about; the last
    /// file that sets the key, or what contains it, is to blame.
    #[must_use]
    pub fn invalid(&self, what: String) -> Problem {
        let keys = self.layers.iter().rev().flat_map(|layer| {
            let keys = layer.keys.iter();
            keys.map(move |key| (key.path.join("."), key.line, &layer.file))
        });
        let dotted = dotted(&what);
        let named = keys.filter(|(path, ..)| {
            let rest = dotted.strip_prefix(path.as_str());
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
        });
        // Of the longest ones the first found, which is the last file's.
        let blamed = named.reduce(|a, b| if b.0.len() > a.0.len() { b } else { a });
        let (key, line, file) = match blamed {
            Some((key, line, file)) => (Some(key), Some(line), Some(file.clone())),
            None => (None, None, None),
        };
        Problem {
            file,
            line,
            key,
            what,
        }
    }

    /// Every key with its value, as TOML, each with a comment that says which file set it.
    #[must_use]
    pub fn effective(&self) -> String {
        let mut out = String::new();
        let mut path = Vec::new();
        self.print(&self.effective_table(), &mut path, &mut out);
        out
    }

    /// Every key with its value.
    #[must_use]
    pub fn effective_table(&self) -> Table {
        // The shipped file is valid by a test.
        let mut merged: Table = toml::from_str(REFERENCE).unwrap_or_default();
        merge(&mut merged, self.merged());
        merged
    }

    fn print(&self, table: &Table, path: &mut Vec<String>, out: &mut String) {
        for (name, value) in table {
            path.push(name.clone());
            match value {
                Value::Table(inner) => self.print(inner, path, out),
                value => {
                    let key: Vec<String> = path.iter().map(|part| quoted(part)).collect();
                    let key = key.join(".");
                    *out += &format!("{key} = {}  # {}\n", on_a_line(value), self.set_by(path));
                }
            }
            path.pop();
        }
    }

    fn set_by(&self, path: &[String]) -> String {
        let mut newest_first = self.layers.iter().rev();
        let found = newest_first.find_map(|layer| {
            let key = layer.keys.iter().find(|key| key.path == path)?;
            Some(format!("{}:{}", shown(&layer.file), key.line))
        });
        found.unwrap_or_else(|| "default".into())
    }
}

/// Reads a regular file of at most [`MAX_FILE`] bytes: a pipe may never end, and a device has no end.
fn read_regular(file: &Path) -> io::Result<String> {
    let known = std::fs::metadata(file)?;
    if !known.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::new();
    let read = std::fs::File::open(file)?
        .take(MAX_FILE + 1)
        .read_to_string(&mut text)?;
    if read as u64 > MAX_FILE {
        return Err(io::Error::other("it is larger than 16 MiB"));
    }
    Ok(text)
}

/// The `*.toml` of the folder beside `file`, by name.
fn drop_ins(file: &Path) -> Result<Vec<PathBuf>, Problem> {
    let mut folder = file.as_os_str().to_owned();
    folder.push(".d");
    let unreadable = |error: std::io::Error| Problem {
        file: Some(PathBuf::from(&folder)),
        line: None,
        key: None,
        what: format!("the drop-in folder cannot be read: {error}"),
    };
    let entries = match std::fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        let hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

impl Layer {
    fn read(file: PathBuf) -> Result<Self, Problem> {
        match read_regular(&file) {
            Ok(text) => Self::parse(file, text),
            Err(error) => Err(Problem {
                file: Some(file),
                line: None,
                key: None,
                what: format!("cannot be read: {error}"),
            }),
        }
    }

    fn parse(file: PathBuf, text: String) -> Result<Self, Problem> {
        let mut layer = Self {
            file,
            text,
            table: Table::new(),
            keys: Vec::new(),
            renamed: Vec::new(),
        };
        let spans = DeTable::parse(&layer.text);
        layer.keys = match spans {
            Ok(table) => keys(&layer.text, table.get_ref()),
            Err(error) => return Err(layer.problem(&error)),
        };
        layer.table = toml::from_str(&layer.text).map_err(|e| layer.problem(&e))?;
        match renamed::rename(&mut layer.table) {
            Ok(renamed) => layer.rename_keys(&renamed),
            Err(what) => {
                let sources = Sources {
                    layers: vec![layer],
                };
                return Err(sources.invalid(what));
            }
        }
        Ok(layer)
    }

    /// Gives keys that were renamed, and the ones below them, their new paths, and notes their old ones.
    fn rename_keys(&mut self, renamed: &[[&str; 2]]) {
        let is_renamed = |key: &&mut Key| {
            renamed
                .iter()
                .any(|old| key.path.starts_with(&old.map(str::to_owned)))
        };
        for key in self.keys.iter_mut().filter(is_renamed) {
            let [table, name, below @ ..] = &key.path[..] else {
                continue;
            };
            let Some(new) = renamed::new_name(table, name) else {
                continue;
            };
            if below.is_empty() {
                self.renamed.push(format!(
                    "{}:{}: {table}.{name} is called {table}.{new} now; the old name is accepted in this version",
                    shown(&self.file),
                    key.line
                ));
            }
            key.path[1] = new.to_owned();
        }
    }

    fn problem(&self, error: &toml::de::Error) -> Problem {
        let span = error.span().unwrap_or_default();
        let at = error.span().map(|span| span.start);
        let deepest = |is_meant: &dyn Fn(&Range<usize>) -> bool| {
            let keys = self.keys.iter().filter(|key| is_meant(&key.span));
            keys.max_by_key(|key| key.path.len())
        };
        // The span of a table is its header's, which begins before the key.
        let key = deepest(&|key| key.contains(&span.start))
            .or_else(|| deepest(&|key| span.contains(&key.start)));
        Problem {
            file: Some(self.file.clone()),
            line: at.map(|at| line(&self.text, at)),
            key: key.map(|key| key.path.join(".")),
            what: plain(error.message()),
        }
    }
}

/// A parser's message on one line, with an example of what it expected.
fn plain(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    line.replace(
        "expected parsable string",
        "expected a size such as 512MiB or 2GiB",
    )
    .replace("expected a duration", "expected a duration such as 5s")
    .replace("expected u8", "expected a whole number up to 255")
    .replace("expected u16", "expected a whole number up to 65535")
    .replace("expected u32", "expected a whole number without a unit")
    .replace("expected u64", "expected a whole number without a unit")
}

fn keys(text: &str, table: &DeTable<'_>) -> Vec<Key> {
    let mut found = Vec::new();
    let line_ends: Vec<_> = text.match_indices('\n').map(|(at, _)| at).collect();
    let mut open = vec![(Vec::new(), table)];
    while let Some((path, table)) = open.pop() {
        for (name, value) in table {
            let mut path: Vec<String> = path.clone();
            path.push(name.get_ref().to_string());
            found.push(Key {
                line: line_ends.partition_point(|end| *end < name.span().start) + 1,
                span: name.span().start..value.span().end,
                path: path.clone(),
            });
            match value.get_ref() {
                DeValue::Table(inner) => open.push((path, inner)),
                DeValue::Array(items) => {
                    let tables = items.iter().filter_map(|item| item.get_ref().as_table());
                    open.extend(tables.map(|inner| (path.clone(), inner)));
                }
                _ => {}
            }
        }
    }
    found
}

/// Number of the line that a byte is in, from 1.
fn line(text: &str, at: usize) -> usize {
    let before = text.bytes().take(at);
    before.filter(|b| *b == b'\n').count() + 1
}

/// Merges `over` into `under`: tables key by key, anything else as a whole.
fn merge(under: &mut Table, over: Table) {
    for (name, value) in over {
        match (under.get_mut(&name), value) {
            (Some(Value::Table(under)), Value::Table(over)) => merge(under, over),
            (_, value) => {
                under.insert(name, value);
            }
        }
    }
}

fn quoted(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) {
        name.to_owned()
    } else {
        string(name)
    }
}

/// A value as TOML on one line that is safe to print.
fn on_a_line(value: &Value) -> String {
    match value {
        Value::String(text) => string(text),
        Value::Array(items) => {
            let items: Vec<_> = items.iter().map(on_a_line).collect();
            format!("[{}]", items.join(", "))
        }
        Value::Table(inner) => {
            let each = |(name, value): (&String, &Value)| {
                format!("{} = {}", quoted(name), on_a_line(value))
            };
            let members: Vec<_> = inner.iter().map(each).collect();
            format!("{{ {} }}", members.join(", "))
        }
        plain => plain.to_string(),
    }
}

/// A basic string of TOML: characters that a terminal may act on are escaped.
fn string(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        _ if matches!(printable(c.encode_utf8(&mut [0; 4])), Cow::Borrowed(_)) => c.to_string(),
        _ => format!("\\U{:08x}", u32::from(c)),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    /// A folder with `terrace.toml` and drop-ins.
    fn folder(main: &str, drop_ins: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("terrace.toml"), main).unwrap();
        std::fs::create_dir(dir.path().join("terrace.toml.d")).unwrap();
        for (name, text) in drop_ins {
            std::fs::write(dir.path().join("terrace.toml.d").join(name), text).unwrap();
        }
        dir
    }

    fn read(dir: &tempfile::TempDir) -> Result<Sources, Problem> {
        Sources::read(Some(&dir.path().join("terrace.toml")))
    }

    fn refused(main: &str, drop_ins: &[(&str, &str)]) -> (String, Problem) {
        let dir = folder(main, drop_ins);
        let problem = read(&dir).and_then(|s| Config::new(&s)).unwrap_err();
        let text = problem.to_string();
        assert_eq!(text.lines().count(), 1, "one message: {text}");
        let inside = format!("{}/", dir.path().display());
        (text.replace(&inside, ""), problem)
    }

    #[test]
    fn drop_ins_go_over_the_file_by_name_and_key() {
        let main = "[engine]\nwindows = 4\nwindow_ms = 300\n[vm.a]\nscan = true\n\
                    [[tier]]\nname = \"x\"\nnodes = [0]\n[[tier]]\nname = \"y\"\nnodes = [1]\n";
        let tiers =
            "[[tier]]\nname = \"dram\"\nnodes = [1]\n[[tier]]\nname = \"cxl\"\nnodes = [0]\n";
        let dir = folder(
            main,
            &[
                ("20-late.toml", "engine.windows = 6\nvm.a.moves = true\n"),
                ("10-early.toml", "[engine]\nwindows = 5\n"),
                ("30-tiers.toml", tiers),
                (".hidden.toml", "nonsense"),
                ("README", "nonsense"),
            ],
        );
        let sources = read(&dir).unwrap();
        let config = Config::new(&sources).unwrap();
        assert_eq!(
            (config.engine.windows, config.engine.window_ms),
            (6, 300),
            "the last file that sets a key has its way"
        );
        let a = config.vm("a").unwrap();
        assert!(a.scan && a.moves, "tables are joined");
        let nodes: Vec<_> = config.tiers.iter().map(|t| t.nodes.clone()).collect();
        assert_eq!(nodes, [[1], [0]], "arrays are replaced as a whole");
        assert!(sources.text().ends_with("30-tiers.toml"));
    }

    #[test]
    fn malformed_configuration_is_named_with_its_line() {
        let (text, _) = refused("[engine]\nwindows = = 3\n", &[]);
        assert!(text.starts_with("terrace.toml:2: "), "{text}");
    }

    #[test]
    fn an_unknown_key_in_a_drop_in_is_named_with_file_and_line() {
        let (text, problem) = refused("", &[("50-x.toml", "# more\n[engine]\nwindos = 3\n")]);
        let start = "terrace.toml.d/50-x.toml:3: engine.windos: unknown field `windos`, expected";
        assert!(text.starts_with(start), "{text}");
        assert_eq!(problem.key.as_deref(), Some("engine.windos"));
    }

    #[test]
    fn a_value_of_the_wrong_type_or_unit_is_named_with_its_key() {
        let (text, _) = refused("[vm.a]\nceiling = { fast = \"1 parsec\" }\n", &[]);
        assert!(
            text.starts_with("terrace.toml:2: vm.a.ceiling.fast: "),
            "{text}"
        );
        let (text, _) = refused("[discover]\nevery = 5\n", &[]);
        assert!(
            text.starts_with("terrace.toml:2: discover.every: "),
            "{text}"
        );
        let (text, _) = refused("[engine]\nwindow_ms = \"5ms\"\n", &[]);
        let end = "expected a whole number without a unit";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn a_value_out_of_range_is_named_where_it_was_set_last() {
        let main = "[engine]\nwindows = 4\n";
        let (text, _) = refused(main, &[("a.toml", "\n[engine]\nwindows = 99\n")]);
        let start = "terrace.toml.d/a.toml:3: engine.windows = 99 is out of range: allowed is";
        assert!(text.starts_with(start), "{text}");
        let (text, _) = refused("[vm.\"a b\"]\nfloor = { quick = \"1GiB\" }", &[]);
        let start = "terrace.toml:1: vm.a b: there is no tier \"quick\": allowed is fast, slow";
        assert_eq!(text, start);
        let (text, _) = refused("[vm.a]\nscan = true\nscan_threads = 17\n", &[]);
        let start = "terrace.toml:3: vm.a: scan_threads = 17 is out of range";
        assert!(text.starts_with(start), "{text}");
        // An error that two files make together, neither of them alone.
        let floor = "[vm.a]\nfloor = { fast = \"2GiB\" }";
        let (text, _) = refused(floor, &[("a.toml", "vm.a.ceiling.fast = \"1GiB\"")]);
        assert!(
            text.starts_with("terrace.toml.d/a.toml:1: vm.a: the floor of"),
            "{text}"
        );
    }

    #[test]
    fn a_named_file_must_exist_and_the_default_need_not() {
        let missing = Sources::read(Some(Path::new("/nonexistent/terrace.toml"))).unwrap_err();
        let text = missing.to_string();
        assert!(
            text.contains("/nonexistent/terrace.toml: cannot be read"),
            "{text}"
        );
        assert!(Sources::default().text().contains("built-in defaults"));
        Config::new(&Sources::default()).unwrap();
    }

    #[test]
    fn what_is_effective_says_who_set_it_and_is_valid_itself() {
        let dir = folder(
            "[engine]\nwindows = 4\n[vm.\"a b\"]\nscan = true\n",
            &[("a.toml", "engine.windows = 6\n")],
        );
        let sources = read(&dir).unwrap();
        let text = sources.effective();
        let set_by = |key: &str| {
            let line = text.lines().find(|l| l.starts_with(key)).unwrap();
            line.split_once("  # ").unwrap().1.to_owned()
        };
        assert!(set_by("engine.windows = 6").ends_with("terrace.toml.d/a.toml:1"));
        assert!(set_by("vm.\"a b\".scan = true").ends_with("terrace.toml:4"));
        assert_eq!(set_by("engine.window_ms = 600"), "default");
        let again = Config::parse(&text).unwrap();
        let once = Config::new(&sources).unwrap();
        assert_eq!(format!("{again:?}"), format!("{once:?}"));
    }

    #[test]
    fn a_renamed_key_counts_under_its_new_name_and_is_warned_of() {
        let old = "[engine]\nreasons_kept = 32\n";
        let sources = read(&folder(old, &[])).unwrap();
        assert!(sources.effective().contains("engine.max_reasons = 32  # "));
        assert!(!sources.effective().contains("reasons_kept"));
        assert_eq!(Config::new(&sources).unwrap().engine.max_reasons, 32);
        let warnings: Vec<_> = sources.renamed().collect();
        let wanted = "terrace.toml:2: engine.reasons_kept is called engine.max_reasons now";
        assert!(
            warnings.len() == 1 && warnings[0].contains(wanted),
            "{warnings:?}"
        );
        let dir = folder(old, &[("a.toml", "engine.max_reasons = 16\n")]);
        let sources = read(&dir).unwrap();
        assert_eq!(Config::new(&sources).unwrap().engine.max_reasons, 16);
        let both = "[engine]\nmax_reasons = 1\nreasons_kept = 2\n";
        let (text, problem) = refused(both, &[]);
        assert_eq!(problem.line, Some(3), "{text}");
        assert!(text.contains("which is set too: remove one"), "{text}");
    }

    #[test]
    fn a_table_that_is_no_engine_is_not_taken_for_a_renamed_key() {
        let sources = Sources::of_text("[[engine]]\nreasons_kept = 1\n").unwrap();
        assert_eq!(sources.renamed().count(), 0);
        Config::new(&sources).unwrap_err();
        let (text, problem) = refused("[engine.reasons_kept]\nx = 1\n", &[]);
        assert_eq!(problem.key.as_deref(), Some("engine.max_reasons"), "{text}");
    }

    #[test]
    fn controls_in_keys_values_and_file_names_are_not_printed() {
        let main = "vm.\"a\\u001b[2J\\u009b\" = { scan = true }\nsocket = \"/a\\u0007\\nb\"\n";
        let dir = folder(main, &[("x\x1b]0;.toml", "[engine]\nwindows = 4\n")]);
        let sources = read(&dir).unwrap();
        let effective = sources.effective();
        let all = format!("{effective}{}", sources.text());
        assert!(all.chars().all(|c| c == '\n' || !c.is_control()), "{all:?}");
        assert!(
            effective.contains("socket = \"/a\\U00000007\\U0000000ab\""),
            "{effective}"
        );
        let again: Table = toml::from_str(&effective).unwrap();
        assert_eq!(again, sources.effective_table());
        let (text, problem) = refused("\"win\\u001bdows\" = 3\n", &[]);
        assert!(text.contains("win\\u{1b}dows"), "{text}");
        let json = Problem {
            file: Some("/x\u{9b}".into()),
            ..problem
        };
        let json = toml::to_string(&json).unwrap();
        assert!(
            json.chars().all(|c| c == '\n' || !c.is_control()),
            "{json:?}"
        );
    }

    #[test]
    fn a_file_name_that_is_not_utf8_is_shown() {
        use std::os::unix::ffi::OsStrExt as _;
        let name = Path::new(std::ffi::OsStr::from_bytes(b"/nonexistent/\xff.toml"));
        let problem = Sources::read(Some(name)).unwrap_err();
        let json = toml::to_string(&problem).unwrap();
        assert!(json.contains("/nonexistent/\u{fffd}.toml"), "{json}");
    }

    #[test]
    fn what_is_no_regular_file_is_not_read() {
        let dir = folder("", &[]);
        let pipe = dir.path().join("terrace.toml.d/x.toml");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()), "no pipe");
        let problem = read(&dir).unwrap_err();
        assert!(problem.what.contains("no regular file"), "{problem}");
        let problem = Sources::read(Some(Path::new("/dev/zero"))).unwrap_err();
        assert!(problem.what.contains("no regular file"), "{problem}");
    }

    #[test]
    fn lines_of_many_keys_are_found() {
        let items = "\n{ reasons_kept = 1 },".repeat(20_000);
        let sources = Sources::of_text(&format!("engine.reasons_kept = [{items}\n]")).unwrap();
        assert_eq!(
            sources.layers[0].keys.iter().map(|key| key.line).max(),
            Some(20_001)
        );
    }
}
