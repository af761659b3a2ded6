//! The structs of a source, each with its number of fields.
//!
//! Formatted sources are read as text: a struct ends at the first closing brace that stands at its own indentation, and
//! its fields stand one step further in.

/// A struct with named fields.
#[derive(Debug, PartialEq, Eq)]
pub struct Struct {
    /// The struct's name.
    pub name: String,
    /// The number of its fields.
    pub fields: usize,
    /// The derived traits, each by the last name of its path.
    pub derives: Vec<String>,
}

/// All structs with named fields.
pub fn structs(text: &str) -> Vec<Struct> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = named(line) else {
            continue;
        };
        let indent = line.len() - line.trim_start().len();
        let close = format!("{}}}", " ".repeat(indent));
        let rest = &lines[start..];
        let ends = |line: &&str| line.ends_with(['{', ';', '}']);
        let Some(body) = rest.iter().position(ends) else {
            continue;
        };
        if !rest[body].ends_with('{') {
            continue;
        }
        let end = rest.iter().position(|line| *line == close);
        let fields = rest[body + 1..end.unwrap_or(body + 1)].iter();
        found.push(Struct {
            name: name.to_owned(),
            fields: fields.filter(|line| is_field(line, indent + 4)).count(),
            derives: derives(&lines[..start]),
        });
    }
    found
}

/// The name of the struct that begins with this line.
fn named(line: &str) -> Option<&str> {
    let name = without_pub(line.trim_start()).strip_prefix("struct ")?;
    name.split(|c: char| !c.is_alphanumeric() && c != '_')
        .next()
}

fn is_field(line: &str, indent: usize) -> bool {
    let Some(field) = line.strip_prefix(&" ".repeat(indent)) else {
        return false;
    };
    let name = without_pub(field).split(':').next().unwrap_or_default();
    let name = name.strip_prefix("r#").unwrap_or(name);
    field.contains(':')
        && name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(|c| c.is_alphanumeric() || c == '_')
}

fn without_pub(item: &str) -> &str {
    let Some(rest) = item.strip_prefix("pub") else {
        return item;
    };
    let rest = match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    };
    rest.strip_prefix(' ').unwrap_or(item)
}

/// The names in the derives of the attributes that end these lines.
fn derives(above: &[&str]) -> Vec<String> {
    let is_other = |line: &&&str| line.is_empty() || line.ends_with(['{', ';', '}']);
    let attributes = above.iter().rev().take_while(|line| !is_other(line));
    let attributes: Vec<&str> = attributes
        .map(|line| line.trim())
        .filter(|line| !line.starts_with("//"))
        .collect();
    let attributes: String = attributes.into_iter().rev().collect();
    let lists = attributes.split("derive(").skip(1);
    let lists = lists.filter_map(|rest| rest.split(')').next());
    let paths = lists.flat_map(|list| list.split(','));
    let names = paths.filter_map(|path| path.trim().rsplit("::").next());
    // A list over several lines ends with a comma.
    let names = names.filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}
