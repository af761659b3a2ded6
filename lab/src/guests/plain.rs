//! Plain guests: the files from which they are started, for the code that starts them.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::machine::kernel::Kernel;
use crate::machine::{emulator, images};
use crate::progress::say;
use crate::{host, places, programs};

/// Environment variable that names the folder for the tests.
pub const IMAGES: &str = "TERRACE_GUEST_IMAGES";

/// Makes the folder with all files from which a guest is started.
pub fn prepare() -> Result<PathBuf> {
    let _lock = places::lock("images")?;
    host::install_missing()?;
    let kernel = Kernel::get(false)?;
    let initrd = images::guest(programs::build_lab()?)?;
    let folder = places::lab("guests")?;
    fs::write(folder.join("initrd"), initrd)?;
    let vmlinuz = folder.join("vmlinuz");
    if vmlinuz.is_symlink() {
        fs::remove_file(&vmlinuz)?;
    }
    symlink(kernel.image(), &vmlinuz)?;
    write_emulator(&folder.join("emulator"))?;
    say(&format!(
        "guests start from {}; to run a test alone: {IMAGES}={0} cargo test -p terrace-host --test guests -- \
         --ignored NAME",
        folder.display()
    ));
    Ok(folder)
}

/// Writes a script that starts the emulator with options of its caller.
fn write_emulator(path: &Path) -> Result<()> {
    let command = emulator::command()?;
    let mut script = "#!/bin/sh\n".to_owned();
    for (name, value) in command.get_envs() {
        let value = quoted(&value.unwrap_or_default().to_string_lossy());
        script.push_str(&format!("export {}={value}\n", name.display()));
    }
    let args = std::iter::once(command.get_program()).chain(command.get_args());
    let args: Vec<String> = args.map(|word| quoted(&word.to_string_lossy())).collect();
    script.push_str(&format!("exec {} \"$@\"\n", args.join(" ")));
    fs::write(path, script).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_shell_reads_a_quoted_word_as_it_was() {
        let word = "it's a $word";
        let echo = Command::new("sh")
            .args(["-c", &format!("printf %s {}", quoted(word))])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&echo.stdout), word);
    }
}
