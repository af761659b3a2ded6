//! The loop's end of the discoverer: results of its discovery scans that are about no VM, and its instructions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use terrace_host::Finding;
use terrace_host::qemu::who::Refusal;
use terrace_sys::ProcessId;

use crate::discovery::Claims;
use crate::messages::Discovered;

/// Most refused VMs that are remembered.
const MAX_REFUSED: usize = 64;

/// The discoverer's results and instructions, VMs aside.
pub struct DiscovererState {
    claims: Claims,
    /// Findings of the last discovery scan.
    findings: Vec<Finding>,
    /// Refused VMs, by the socket of the monitor.
    refused: BTreeMap<PathBuf, Finding>,
}

impl DiscovererState {
    /// The state before the first discovery scan.
    pub fn new(claims: Claims) -> Self {
        Self {
            claims,
            findings: Vec::new(),
            refused: BTreeMap::new(),
        }
    }

    /// The discoverer's instructions about VMs.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// Takes in the end of a discovery scan: refusals are forgotten with their sockets.
    pub fn discovery_scan(&mut self, findings: Vec<Finding>, sockets: &BTreeSet<PathBuf>) {
        self.findings = findings;
        self.refused.retain(|socket, _| sockets.contains(socket));
    }

    /// Remembers a process that is not taken for a VM; returns the message for people, once.
    pub fn refuse(&mut self, found: Discovered, refusal: &Refusal) -> Option<String> {
        let of = match found.process {
            Some(ProcessId { pid, .. }) => format!("process {pid} ({})", found.socket.display()),
            None => found.socket.display().to_string(),
        };
        let finding = refusal.finding(&of);
        let was_reported = self.refused.get(&found.socket) == Some(&finding);
        if was_reported || self.refused.len() >= MAX_REFUSED {
            return None;
        }
        let text = format!("refused: {}", finding.found);
        self.refused.insert(found.socket, finding);
        Some(text)
    }

    /// Forgets the refusal of a socket whose process is taken for a VM now.
    pub fn admit(&mut self, socket: &Path) {
        self.refused.remove(socket);
    }

    /// All findings, for `doctor`.
    pub fn findings(&self) -> Vec<Finding> {
        let all = self.findings.iter().chain(self.refused.values());
        all.cloned().collect()
    }
}
