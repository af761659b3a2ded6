//! Hot pages that the host names to a guest that gathers.

use anyhow::{Result, ensure};
use terrace_core::policy::{Observe, PolicyChoice};
use terrace_host::unit::UnitChoice;

use crate::agent::VmMode;
use crate::raw::{RawVm, TrackerChoice};

/// The settings that decide whether a VM's hot pages can be named.
#[derive(Clone, Copy, Debug)]
pub(super) struct Namer<'a> {
    pub mode: VmMode,
    pub scan: bool,
    pub unit: UnitChoice,
    pub tracker: TrackerChoice,
    pub policy: &'a PolicyChoice,
}

impl Namer<'_> {
    /// Refuses a policy that observes no pages.
    fn check_policy(self, what: &str) -> Result<()> {
        let policy = self.policy.resolve("engine.policy")?;
        ensure!(
            policy.observe != Observe::None,
            "{what}, and the policy {} looks for none: set another engine.policy, or one for this VM (engine.vm_policies)",
            policy.name.name()
        );
        Ok(())
    }
}

/// Refuses keys of one VM that were set for all.
pub(super) fn check_defaults(defaults: &RawVm) -> Result<()> {
    ensure!(
        defaults.agent_socket.is_none(),
        "defaults.agent_socket: each VM has a socket of its own: set it under [vm.NAME], or agent.folder"
    );
    ensure!(
        defaults.gather.is_none(),
        "defaults.gather: whether a guest gathers is its owner's choice: set it under [vm.NAME]"
    );
    Ok(())
}

/// Whether the host names hot pages to the VM's guest, and the unit of such a VM: pages of 4 KiB are named, so they are looked at one
/// by one.
///
/// # Errors
/// If it was asked for and cannot be; the message has the reason.
pub(super) fn of_vm(own: &RawVm, namer: Namer<'_>) -> Result<(bool, UnitChoice)> {
    if namer.mode == VmMode::Coordinated {
        namer.check_policy("mode = \"coordinated\" has the host name pages")?;
    }
    if own.gather != Some(true) {
        return Ok((false, namer.unit));
    }
    ensure!(
        namer.mode != VmMode::Guest,
        "gather = true has the host name hot pages, and with mode = \"guest\" it looks for none: use mode = \"host\" or \"coordinated\""
    );
    ensure!(
        namer.scan,
        "gather = true has the host name hot pages, which it finds by scanning the VM: opt in by scan = true"
    );
    ensure!(
        namer.mode != VmMode::Host || own.agent_socket.is_some(),
        "gather = true names pages to the guest's agent, to which there is no connection: set agent_socket to the socket of its port"
    );
    ensure!(
        namer.unit != UnitChoice::Huge,
        "gather = true names pages of 4 KiB, so unit = \"2MiB\" is not possible: leave it out, or set \"4KiB\""
    );
    ensure!(
        namer.tracker != TrackerChoice::Damon,
        "gather = true names pages of 4 KiB, and tracker = \"damon\" finds regions: leave it out, or set \"page-tables\""
    );
    namer.check_policy("gather = true has the host name hot pages")?;
    Ok((true, UnitChoice::Base))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::Config;

    const GATHERS: &str = "[vm.a]\ngather = true\nscan = true\nagent_socket = \"/x/a\"\n";

    fn refused(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn a_coordinated_vm_takes_a_policy_that_observes_and_moves() {
        let vm = "[vm.a]\nscan = true\nmode = \"coordinated\"\n";
        let why = refused(&format!("[engine]\npolicy = \"first-touch\"\n{vm}"));
        assert!(why.contains("first-touch looks for none"), "{why}");
        let config = Config::parse(vm).unwrap();
        let warning = &config.warnings()[0];
        assert!(
            warning.starts_with("vm.a: mode = \"coordinated\" moves no page"),
            "{warning}"
        );
        let moves = Config::parse(&format!("{vm}moves = true\n")).unwrap();
        assert!(moves.warnings().is_empty());
    }

    #[test]
    fn a_vm_whose_guest_gathers_has_a_connection_and_small_pages() {
        let config = Config::parse(GATHERS).unwrap();
        let [a, b] = ["a", "b"].map(|name| config.vm(name).unwrap());
        assert!(a.management.gather && !b.management.gather);
        assert_eq!(a.unit, UnitChoice::Base);
        let socket = Path::new("/x/a");
        assert_eq!(a.management.agent_socket.as_deref(), Some(socket));
        let coordinated = "[vm.a]\ngather = true\nscan = true\nmode = \"coordinated\"\n";
        let a = Config::parse(coordinated).unwrap().vm("a").unwrap();
        let socket = Path::new("/run/terrace/agent/a.sock");
        assert_eq!(a.management.agent_socket.as_deref(), Some(socket));
        let off = "[vm.a]\ngather = false\nagent_socket = \"/x/a\"\n";
        let a = Config::parse(off).unwrap().vm("a").unwrap();
        assert_eq!(a.management.agent_socket, None, "as ever in host mode");
    }

    #[test]
    fn what_cannot_name_pages_is_refused_with_the_reason() {
        let without = |line: &str| refused(&GATHERS.replace(line, ""));
        assert!(without("scan = true\n").contains("opt in by scan = true"));
        assert!(without("agent_socket = \"/x/a\"\n").contains("set agent_socket"));
        let with = |line: &str| refused(&format!("{GATHERS}{line}\n"));
        assert!(with("mode = \"guest\"").contains("it looks for none"));
        assert!(with("unit = \"2MiB\"").contains("unit = \"2MiB\" is not possible"));
        assert!(with("tracker = \"damon\"").contains("finds regions"));
        assert!(with("[engine]\npolicy = \"prefer-fast\"").contains("the policy prefer-fast"));
        assert!(refused("[defaults]\ngather = true").contains("defaults.gather"));
        assert!(with("[defaults]\nunit = \"2MiB\"").contains("vm.a: gather = true"));
    }
}
