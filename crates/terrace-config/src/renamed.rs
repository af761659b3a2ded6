//! Keys that were renamed: the old name is accepted for one version.

use toml::{Table, Value};

/// The table, the old name and the new one.
const RENAMED: [(&str, &str, &str); 1] = [("engine", "reasons_kept", "max_reasons")];

/// The new name of a key, if it has an old one.
pub fn new_name(table: &str, name: &str) -> Option<&'static str> {
    let mut all = RENAMED.iter();
    all.find_map(|&(of, old, new)| (table == of && name == old).then_some(new))
}

/// Gives a file's keys their new names; returns the old paths of those that it set.
///
/// # Errors
/// If a key stands under both names; the error begins with the old one's path.
pub fn rename(file: &mut Table) -> Result<Vec<[&'static str; 2]>, String> {
    let mut renamed = Vec::new();
    for (table, old, new) in RENAMED {
        let Some(Value::Table(inner)) = file.get_mut(table) else {
            continue;
        };
        let Some(value) = inner.remove(old) else {
            continue;
        };
        if inner.insert(new.to_owned(), value).is_some() {
            return Err(format!(
                "{table}.{old} is called {table}.{new} now, which is set too: remove one"
            ));
        }
        renamed.push([table, old]);
    }
    Ok(renamed)
}
