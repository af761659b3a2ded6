//! Keys that were renamed: the old name is accepted for one version.

use toml::{Table, Value};

/// The table, the old name and the new one.
const RENAMED: [(&str, &str, &str); 1] = [("engine", "reasons_kept", "max_reasons")];

/// The new path of a key, if it has an old one.
pub fn new_path(path: &[String]) -> Option<Vec<String>> {
    let [table, name] = path else { return None };
    let (_, _, new) = RENAMED
        .iter()
        .find(|(of, old, _)| table == of && name == old)?;
    Some(vec![table.clone(), (*new).to_owned()])
}

/// Gives a file's keys their new names.
///
/// # Errors
/// If a key stands under both names; the error begins with the old one's path.
pub fn rename(file: &mut Table) -> Result<(), String> {
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
    }
    Ok(())
}
