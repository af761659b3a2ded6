//! Processes that may have pinned a VM's memory, by the operator's word.

use std::path::PathBuf;

use anyhow::{Result, ensure};

use crate::raw::RawVm;

/// The operator's word on the processes that have a VM's RAM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinConfig {
    /// Whether no process pins it; if so, none is looked for.
    pub nobody_pins: bool,
    /// Programs that do not pin it.
    pub do_not_pin: Vec<PathBuf>,
}

/// The pins of a VM, from its own section and the defaults.
pub(super) fn of_vm(own: &RawVm, all: &RawVm) -> Result<PinConfig> {
    let mut programs: Vec<PathBuf> = Vec::new();
    let lists = [own, all].into_iter().flat_map(|raw| &raw.do_not_pin);
    for program in lists.flatten() {
        ensure!(
            program.is_absolute(),
            "do_not_pin: \"{}\" is not an absolute path: a program is known by its file, not by its name",
            program.display()
        );
        if !programs.contains(program) {
            programs.push(program.clone());
        }
    }
    Ok(PinConfig {
        nobody_pins: own.nobody_pins.or(all.nobody_pins).unwrap_or(false),
        do_not_pin: programs,
    })
}

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn do_not_pin_programs_join_the_vms_and_the_globals_by_path() {
        let text = "[defaults]\ndo_not_pin = [\"/usr/libexec/virtiofsd\"]\n\
                    [vm.a]\ndo_not_pin = [\"/opt/x\"]\nnobody_pins = true\n";
        let config = Config::parse(text).unwrap();
        let of = |vm| config.vm(vm).unwrap().pins;
        assert_eq!(
            of("b").do_not_pin,
            ["/usr/libexec/virtiofsd"].map(std::path::PathBuf::from)
        );
        assert_eq!(
            (
                of("a").do_not_pin.len(),
                of("a").nobody_pins,
                of("b").nobody_pins
            ),
            (2, true, false)
        );
        let wrong = Config::parse("[vm.a]\ndo_not_pin = [\"virtiofsd\"]\n").unwrap_err();
        let wrong = wrong.to_string();
        assert!(
            wrong.contains("not an absolute path") && wrong.contains("vm.a"),
            "{wrong}"
        );
    }
}
