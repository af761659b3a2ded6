//! A struct is a thing with a few parts, each of which may be one of its own: a limit of fields, with a list of
//! exceptions that only shrinks.

use std::collections::BTreeMap;
use std::path::Path;

use crate::sources::rust_files;
use crate::sources::structs::structs;

const MAX_FIELDS: usize = 12;

/// Derives of a struct that is data alone, or a plain value: it may have as many fields as a file, a message or a
/// command has.
const DATA: [&str; 5] = ["Serialize", "Deserialize", "Args", "Parser", "Copy"];

/// Large structs, as `path::struct` and the number of fields. Lower the numbers and remove entries; do not add any.
const LARGE: &[(&str, usize)] = &[];

#[test]
fn structs_have_few_fields_and_the_list_of_large_ones_shrinks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut known: BTreeMap<&str, usize> = LARGE.iter().copied().collect();
    let mut wrong = Vec::new();
    let mut all = 0;
    for folder in ["crates", "lab", "xtask"] {
        for file in rust_files(&root.join(folder)) {
            let text = std::fs::read_to_string(&file).expect("a source file");
            let path = file.strip_prefix(&root).expect("below the root");
            for each in structs(&text) {
                all += 1;
                let is_data = each.derives.iter().any(|of| DATA.contains(&of.as_str()));
                if is_data || each.fields <= MAX_FIELDS {
                    continue;
                }
                let (id, fields) = (format!("{}::{}", path.display(), each.name), each.fields);
                match known.remove(id.as_str()) {
                    Some(listed) if listed == fields => {}
                    Some(listed) => wrong.push(format!("{id}: {fields} fields, {listed} listed")),
                    None => wrong.push(format!("{id}: {fields} fields, at most {MAX_FIELDS}")),
                }
            }
        }
    }
    let gone = known.into_keys();
    wrong.extend(gone.map(|id| format!("{id}: large no more, remove it from the list")));
    assert!(all > 500, "only {all} structs found");
    assert!(wrong.is_empty(), "fields:\n{}", wrong.join("\n"));
}

#[test]
fn fields_are_counted_and_derives_are_seen() {
    let text = "\
/// Data.
#[derive(
    Debug, serde::Serialize,
)]
#[serde(deny_unknown_fields)]
pub(crate) struct Data<T>
where
    T: Copy,
{
    /// One: the first.
    pub a: T,
    #[serde(default)]
    pub(super) b: u8,
    r#type: Vec<(u8, u8)>,
}

struct Tuple(u8);
struct Unit;

mod deep {
    struct Empty {}
    #[derive(Clone, Copy)]
    struct Plain {
        // one: two
        a: u8,
    }
}
";
    let found = structs(text);
    let found: Vec<_> = found
        .iter()
        .map(|s| (s.name.as_str(), s.fields, s.derives.join(" ")))
        .collect();
    assert_eq!(
        found,
        [
            ("Data", 3, "Debug Serialize".to_owned()),
            ("Plain", 1, "Clone Copy".to_owned()),
        ]
    );
}
