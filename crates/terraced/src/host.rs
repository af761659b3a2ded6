//! The daemon on this host: its parts are made from a configuration, joined, and ended in their order.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use anyhow::Result;
use terrace_config::{Config, Sources};
use terrace_host::HostRoot;
use terrace_host::topology::{Topology, TopologyError};
use terrace_host::worker::WorkerCommand;
use terrace_sys::{Damon, SocketFile};

use crate::api;
use crate::confine::{self, Role};
use crate::daemon::Daemon;
use crate::discovery::{Claims, Discoverer};
use crate::messages::{Inbox, Input};
use crate::provisioning::{self, Provisioning};

/// Takes from this process, for good, the rights that the daemon does not need. Called while there is one thread, and
/// before [`serve`].
///
/// # Errors
/// If a right is left that should be gone.
pub fn confine_process(config: &Config) -> Result<()> {
    confine::start(config.security.seccomp)
}

/// Serves this host until its inbox has a stop. The inbox is made once the host was read: until then a signal ends the
/// process as it does any other.
///
/// # Errors
/// If the host's memory cannot be read, another daemon listens already, or a part cannot be started.
pub fn serve(
    mut config: Config,
    sources: &Sources,
    inbox: impl FnOnce() -> Result<Inbox>,
) -> Result<()> {
    let root = HostRoot::default();
    let topology = Arc::new(read_topology(&root, &mut config, sources)?);
    let config = Arc::new(config);
    let damon = Damon::new(&root.join(""));
    let Inbox { sender, inputs } = inbox()?;
    // A socket that no process serves any more only misleads: it is removed with this.
    let _socket = take_over(&config.socket, sender.clone(), &damon)?;
    let claims = Claims::default();
    let worker = WorkerCommand {
        program: "/proc/self/exe".into(),
        args: vec!["worker".into()],
    };
    let discoverer = Discoverer::new(
        root.clone(),
        Arc::clone(&topology),
        Arc::clone(&config),
        worker,
        Arc::clone(&damon),
        sender.clone(),
        claims.clone(),
    );
    confine::spawn(Role::Discoverer, move || discoverer.run())?;
    let finder = provisioning::finder(config.hypervisors.clone());
    let provisioning = Provisioning::new(finder, config.engine.provision);
    let daemon = Daemon::new(config, root, topology, sender, claims, provisioning);
    let ended = daemon.and_then(|daemon| daemon.run(&inputs));
    // The threads that hold kdamonds may outlive this one's last line.
    if let Err(error) = damon.shut_down() {
        tracing::warn!("DAMON could not be stopped: {error}");
    }
    ended
}

/// Becomes the one daemon of the socket, and only then stops the kdamonds that a predecessor left: while another
/// daemon listens, they are that one's.
pub fn take_over(socket: &Path, inbox: Sender<Input>, damon: &Damon) -> Result<SocketFile> {
    let file = api::start(socket, inbox)?;
    if let Err(error) = damon.stop_leftovers() {
        tracing::warn!(
            "DAMON is still running from the last run and could not be stopped: {error}"
        );
    }
    Ok(file)
}

/// Reads the host's tiers; the engine's tiers follow them if no file defines any.
///
/// # Errors
/// If the tiers cannot be read, or the host has not what the configuration names: the problem, with file, line and key.
pub fn read_topology(root: &HostRoot, config: &mut Config, sources: &Sources) -> Result<Topology> {
    let defined = config.tier_definitions();
    let topology = Topology::read(root, &defined).map_err(|error| match error {
        TopologyError::Definition(what) => sources.invalid(format!("tier: {what}")).into(),
        error => anyhow::Error::from(error).context("cannot read the host's memory tiers"),
    })?;
    if topology.tiers.len() == 1 {
        tracing::warn!(
            "this host has one memory tier: VMs are observed and nothing moves. If its nodes differ, declare \
             them by [[tier]] sections in the configuration (many hosts report all nodes in one tier)"
        );
    }
    let topology = topology.or_observed();
    let followed = match defined.is_empty() {
        true => config.follow(&topology),
        false => Ok(()),
    };
    let checked = followed.and_then(|()| config.check_host(&topology));
    checked.map_err(|error| sources.invalid(format!("{error:#}")))?;
    Ok(topology)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::played;

    #[test]
    fn what_the_host_has_not_is_refused_with_file_and_line() {
        let folder = tempfile::tempdir().unwrap();
        played::host(folder.path());
        let root = HostRoot::new(folder.path());
        let tiers = "[[tier]]\nname = \"a\"\nnodes = [0]\n[[tier]]\nname = \"b\"\n";
        for (text, wanted) in [
            (
                format!("{tiers}nodes = [7]\n"),
                "terrace.toml:1: tier: 'b' names node 7, which is offline or has no memory",
            ),
            (
                "# a host\n[vm.web1]\nfloor = { fast = \"64TiB\" }\n".to_owned(),
                "terrace.toml:3: vm.web1: floor = 64.0 TiB is more than tier",
            ),
            (
                "[vm.web1]\nfloor = { cxl = \"1GiB\" }\n".to_owned(),
                "terrace.toml:1: vm.web1: there is no tier \"cxl\"",
            ),
        ] {
            let sources = Sources::of_text(&text).unwrap();
            let refused = match Config::new(&sources) {
                Ok(mut config) => read_topology(&root, &mut config, &sources)
                    .unwrap_err()
                    .to_string(),
                Err(problem) => problem.to_string(),
            };
            assert!(refused.starts_with(wanted), "{refused}");
        }
    }
}
