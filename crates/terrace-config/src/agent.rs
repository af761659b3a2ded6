//! Configuration of guests' agents.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde::Deserialize;
use terrace_host::unit::UnitChoice;
use terrace_proto::agent::Budgets;

/// The manager of a VM's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VmMode {
    /// The host alone.
    #[default]
    Host,
    /// The guest's agent; the host does not look into the VM's memory.
    Guest,
    /// The host counts and the guest's agent moves.
    Coordinated,
}

impl VmMode {
    /// The unit of a VM in this mode: a guest that moves its own pages is named pages of 4 KiB.
    ///
    /// # Errors
    /// If another one was asked for.
    pub(super) fn unit(self, wanted: UnitChoice) -> Result<UnitChoice> {
        if self != Self::Coordinated {
            return Ok(wanted);
        }
        ensure!(
            wanted != UnitChoice::Huge,
            "mode = \"coordinated\" names the guest's own pages, so unit = \"2MiB\" is not possible: leave it out, or set \"4KiB\""
        );
        Ok(UnitChoice::Base)
    }

    /// The mode's name as the configuration has it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Guest => "guest",
            Self::Coordinated => "coordinated",
        }
    }
}

/// The host's behaviour for a VM while its agent is silent or lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fallback {
    /// The host manages the VM as if there were no agent, if scanning is opted in.
    #[default]
    Host,
    /// The host watches the VM and moves nothing, if scanning is opted in.
    Observe,
}

/// The management of a VM's memory: who does it, and who does it in the agent's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Management {
    /// The manager of the VM's memory.
    pub mode: VmMode,
    /// The host's behaviour while the guest's agent is silent or lies.
    pub fallback: Fallback,
    /// QEMU's end of the agent's port; `None` if the host manages the VM alone.
    pub agent_socket: Option<PathBuf>,
    /// Whether the host names hot pages to the guest, which gathers them.
    pub gather: bool,
}

impl Management {
    /// Whether the guest's agent manages the memory, and the host does not look into it.
    #[must_use]
    pub fn is_by_guest(&self) -> bool {
        self.mode == VmMode::Guest
    }

    /// Whether the host moves nothing in the agent's place.
    #[must_use]
    pub fn only_observes(&self) -> bool {
        self.is_by_guest() && self.fallback == Fallback::Observe
    }
}

/// `[agent]` as written.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Raw {
    folder: PathBuf,
    #[serde(with = "humantime_serde")]
    silence: Duration,
    move_budget_bytes_per_s: u64,
    cpu_share_max_percent: u8,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            folder: "/run/terrace/agent".into(),
            silence: Duration::from_secs(5),
            move_budget_bytes_per_s: 1 << 30,
            cpu_share_max_percent: 50,
        }
    }
}

/// Guests' agents.
#[derive(Clone, Debug)]
pub struct AgentConfig {
    /// The folder of the sockets of agents' ports, unless a VM has a socket of its own.
    pub folder: PathBuf,
    /// Time without a heartbeat after which an agent is silent.
    pub silence: Duration,
    /// An agent's budgets; its own configuration may allow less.
    pub budgets: Budgets,
}

impl TryFrom<Raw> for AgentConfig {
    type Error = anyhow::Error;

    fn try_from(raw: Raw) -> Result<Self> {
        ensure!(
            (Duration::from_secs(2)..=Duration::from_secs(600)).contains(&raw.silence),
            "agent.silence is out of range: allowed is 2s to 10m (an agent speaks once a second)"
        );
        let budgets = Budgets::new(raw.move_budget_bytes_per_s, raw.cpu_share_max_percent);
        Ok(Self {
            folder: raw.folder,
            silence: raw.silence,
            budgets: budgets.map_err(|e| anyhow!("agent: {e}"))?,
        })
    }
}

impl AgentConfig {
    /// The socket of the port of a VM's agent; `None` if the VM has no agent.
    pub(super) fn socket(
        &self,
        name: &str,
        mode: VmMode,
        scan: bool,
        own: Option<&Path>,
        gather: bool,
    ) -> Result<Option<PathBuf>> {
        if mode == VmMode::Host && !gather {
            return Ok(None);
        }
        ensure!(
            mode != VmMode::Coordinated || scan,
            "mode = \"coordinated\" has the host count accesses: opt in by scan = true, or use mode = \"guest\""
        );
        if let Some(own) = own {
            return Ok(Some(own.to_owned()));
        }
        // A name is what the VM's owner gave it: it must not lead out of the folder.
        ensure!(
            !name.contains('/') && !name.starts_with('.') && !name.is_empty(),
            "{name:?} is no file name: set agent_socket to the socket of its agent's port"
        );
        Ok(Some(self.folder.join(format!("{name}.sock"))))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Config;
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn vms_are_the_hosts_unless_it_says_otherwise() {
        let config = Config::parse("[vm.a]\nmode = \"guest\"\n").unwrap();
        let other = config.vm("b").unwrap().management;
        assert_eq!((other.mode, other.agent_socket), (VmMode::Host, None));
        let a = config.vm("a").unwrap();
        assert!(!a.scan && a.is_opted_in());
        let a = a.management;
        assert_eq!((a.mode, a.fallback), (VmMode::Guest, Fallback::Host));
        let socket = Path::new("/run/terrace/agent/a.sock");
        assert_eq!(a.agent_socket.as_deref(), Some(socket));
    }

    #[test]
    fn a_vm_may_have_a_socket_and_a_fallback_of_its_own() {
        let text = "[agent]\nfolder = \"/x\"\n[defaults]\nmode = \"guest\"\nfallback = \"observe\"\n\
                    [vm.a]\nagent_socket = \"/y/a\"\nfallback = \"host\"\n";
        let config = Config::parse(text).unwrap();
        let [a, b] = ["a", "b"].map(|name| config.vm(name).unwrap().management);
        assert_eq!(a.agent_socket.unwrap(), Path::new("/y/a"));
        assert_eq!(b.agent_socket.unwrap(), Path::new("/x/b.sock"));
        assert_eq!(
            (a.fallback, b.fallback),
            (Fallback::Host, Fallback::Observe)
        );
    }

    #[test]
    fn a_vm_whose_name_leads_out_of_the_folder_has_no_socket_there() {
        let config = Config::parse("[defaults]\nmode = \"guest\"\n").unwrap();
        for name in ["../../etc/x", "a/b", "..", ""] {
            let error = config.vm(name).unwrap_err().to_string();
            assert!(error.contains("agent_socket"), "{error}");
        }
        Config::parse("").unwrap().vm("../x").unwrap();
    }

    #[test]
    fn what_cannot_be_is_refused() {
        assert!(refused("[vm.a]\nmode = \"both\"").contains("coordinated"));
        assert!(refused("[vm.a]\nmode = \"coordinated\"").contains("scan = true"));
        let huge = "[vm.a]\nmode = \"coordinated\"\nscan = true\nunit = \"2MiB\"";
        assert!(refused(huge).contains("unit = \"2MiB\" is not possible"));
        assert!(refused("[vm.a]\nfallback = \"guest\"").contains("observe"));
        assert!(refused("[agent]\nsilence = \"1s\"").contains("2s to 10m"));
        assert!(refused("[agent]\ncpu_share_max_percent = 101").contains("CPU percent"));
        let shared = "[defaults]\nagent_socket = \"/x\"";
        assert!(refused(shared).contains("a socket of its own"));
    }
}
