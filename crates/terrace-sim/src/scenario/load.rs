//! Loading of a scenario from a file or a text.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::Scenario;
use super::error::{Fault, ScenarioError, ScenarioText};
use super::raw::RawScenario;

/// Longest scenario, bytes: scenarios written by hand are far shorter.
const MAX_TEXT: u64 = 1 << 20;

impl Scenario {
    /// Reads and checks a file.
    ///
    /// # Errors
    /// If the file cannot be read or is not a valid scenario.
    pub fn load(path: &Path) -> Result<Self, ScenarioError> {
        Self::load_with_files_in(path, None)
    }

    /// Reads and checks a file. The files that its loads name are read from another folder, by their names, if there is one.
    ///
    /// # Errors
    /// If the file cannot be read or is not a valid scenario.
    pub fn load_with_files_in(path: &Path, files: Option<&Path>) -> Result<Self, ScenarioError> {
        let wrong = |what: String| ScenarioError {
            file: path.to_owned(),
            line: None,
            key: None,
            what,
        };
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(MAX_TEXT + 1).read_to_end(&mut bytes))
            .map_err(|e| wrong(format!("cannot be read: {e}")))?;
        if bytes.len() > 1 << 20 {
            return Err(wrong("longer than 1 MiB: this is no scenario".into()));
        }
        let text = String::from_utf8(bytes).map_err(|e| {
            wrong(format!(
                "not UTF-8 at byte {}: this is no scenario",
                e.utf8_error().valid_up_to()
            ))
        })?;
        let name = path.file_stem().unwrap_or(path.as_os_str());
        let folder = path.parent().unwrap_or(Path::new(""));
        read(&text, &name.to_string_lossy(), (folder, files), path)
    }

    /// Reads and checks a text; files that it names are relative to `folder`.
    ///
    /// # Errors
    /// If the text is not a valid scenario.
    pub fn parse(text: &str, name: &str, folder: &Path) -> Result<Self, ScenarioError> {
        read(
            text,
            name,
            (folder, None),
            &folder.join(format!("{name}.toml")),
        )
    }
}

fn read(
    text: &str,
    name: &str,
    (folder, files): (&Path, Option<&Path>),
    file: &Path,
) -> Result<Scenario, ScenarioError> {
    let source = ScenarioText { file, text };
    let raw: RawScenario = toml::from_str(text).map_err(|e| source.misshapen(&e))?;
    let shorthand = raw.shorthand();
    let mut scenario = raw
        .check(name, folder)
        .map_err(|fault| source.broken(&fault))?;
    if let Some(files) = files {
        for vm in &mut scenario.vms {
            vm.workload.read_from(files);
        }
    }
    match scenario.check() {
        Ok(()) => Ok(scenario),
        Err(fault) => Err(source.broken(&as_written(fault, &shorthand))),
    }
}

/// Names a fault in a VM's `tiers` by `fast` or `slow`, if the VM gives those.
fn as_written(fault: Fault, shorthand: &[bool]) -> Fault {
    let Some((vm, tier)) = fault.path.split_once(".tiers") else {
        return fault;
    };
    let number = vm.strip_prefix("vm[").and_then(|n| n.strip_suffix(']'));
    let number: Option<usize> = number.and_then(|n| n.parse().ok());
    let key = match tier {
        "[0]" => "fast",
        "[1]" => "slow",
        _ => return fault,
    };
    match number.and_then(|n| shorthand.get(n)) {
        Some(true) => Fault::new(format!("{vm}.{key}"), fault.what),
        _ => fault,
    }
}
