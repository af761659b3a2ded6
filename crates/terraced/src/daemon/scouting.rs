//! The loop's end of the scout: what its looks said that is about no VM, and what it is to know.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use terrace_host::Finding;
use terrace_host::qemu::who::Refusal;
use terrace_sys::ProcessId;

use crate::discovery::Claims;
use crate::messages::Found;

/// Refused VMs that are remembered.
const MOST_REFUSED: usize = 64;

/// What the scout said and is told, VMs aside.
pub struct Scouting {
    claims: Claims,
    /// What was found by the last look around.
    findings: Vec<Finding>,
    /// What was refused, by its monitor.
    refused: BTreeMap<PathBuf, Finding>,
}

impl Scouting {
    /// Nothing was looked at yet.
    pub fn new(claims: Claims) -> Self {
        Self {
            claims,
            findings: Vec::new(),
            refused: BTreeMap::new(),
        }
    }

    /// What the scout is to know of VMs.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The scout looked everywhere: what was refused is forgotten with its socket.
    pub fn looked(&mut self, findings: Vec<Finding>, sockets: &BTreeSet<PathBuf>) {
        self.findings = findings;
        self.refused.retain(|socket, _| sockets.contains(socket));
    }

    /// Remembers what is not taken for a VM; the words to tell, once.
    pub fn refuse(&mut self, found: Found, refusal: &Refusal) -> Option<String> {
        let of = match found.process {
            Some(ProcessId { pid, .. }) => format!("process {pid} ({})", found.socket.display()),
            None => found.socket.display().to_string(),
        };
        let finding = refusal.finding(&of);
        let is_told = self.refused.get(&found.socket) == Some(&finding);
        if is_told || self.refused.len() >= MOST_REFUSED {
            return None;
        }
        let words = format!("refused: {}", finding.why);
        self.refused.insert(found.socket, finding);
        Some(words)
    }

    /// What listens there is taken for a VM now.
    pub fn admit(&mut self, socket: &Path) {
        self.refused.remove(socket);
    }

    /// All of it for `doctor`.
    pub fn findings(&self) -> Vec<Finding> {
        let all = self.findings.iter().chain(self.refused.values());
        all.cloned().collect()
    }
}
