//! Programs of L1's own: L1 as a guest with a NUMA node per tier, instead of as a host.
//!
//! A workload reports which of its pages are hot; L1's kernel reports where they are.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;
use terrace_lab_programs::native::HotSet;
use terrace_lab_programs::pages::Placement;

use super::daemon::{FAST, HotOnFast, VM};
use super::lab::Lab;
use crate::programs;

/// Longest time until a workload has filled its memory and works. One whose guest swaps all the while, on a machine that is
/// busy, has taken more than two minutes.
const START: Duration = Duration::from_secs(600);

/// Path of `lab-native` in L1.
const PROGRAM: &str = "/bin/lab-native";

impl Lab {
    /// Ends the nested guest and puts the workloads' program into L1: all of L1 is theirs.
    pub fn become_a_guest(&mut self) -> Result<()> {
        self.end_vm(VM)?;
        self.install_native()?;
        // Only the agent shall move pages, and huge pages come only on request.
        self.check("echo 0 >/proc/sys/kernel/numa_balancing")?;
        self.check("echo madvise >/sys/kernel/mm/transparent_hugepage/enabled")?;
        Ok(())
    }

    /// Puts the workloads' program into L1.
    pub fn install_native(&mut self) -> Result<()> {
        let native = &programs::build_lab()?.native;
        self.push(native, PROGRAM)
    }

    /// Kills a nested guest.
    pub fn end_vm(&mut self, name: &str) -> Result<()> {
        let pid = terrace_lab_programs::vm::pid_path(name);
        self.check(&format!(
            "kill $(cat {pid}); while [ -e {pid} ]; do sleep 0.1; done"
        ))?;
        Ok(())
    }

    /// Starts a process with a hot set and waits until it touches it.
    pub fn start_hot_set(&mut self, spec: &HotSet) -> Result<()> {
        self.begin_hot_set(spec)?;
        self.wait_for_workload(&spec.name)
    }

    /// Starts a process with a hot set.
    pub fn begin_hot_set(&mut self, spec: &HotSet) -> Result<()> {
        let json = serde_json::to_string(spec)?;
        self.begin_workload(&spec.name, &format!("lab-native hotset '{json}'"))
    }

    /// Starts a workload that answers by this name.
    pub fn start_workload(&mut self, name: &str, command: &str) -> Result<()> {
        self.begin_workload(name, command)?;
        self.wait_for_workload(name)
    }

    fn begin_workload(&mut self, name: &str, command: &str) -> Result<()> {
        self.check(&format!(
            "setsid {command} </dev/null >/run/lab/{name}.log 2>&1 &"
        ))?;
        Ok(())
    }

    /// Waits until a workload works.
    pub fn wait_for_workload(&mut self, name: &str) -> Result<()> {
        self.wait_until(&format!("{name} works"), START, |lab| {
            let asked = lab.run(&format!("lab-native ask {name} stats"), START)?;
            if asked.exit != 0 {
                let log = lab.check(&format!("cat /run/lab/{name}.log"))?;
                return match log.is_empty() {
                    true => Ok(None),
                    false => bail!("{name} did not start: {log}"),
                };
            }
            let stats: Value = serde_json::from_str(&asked.stdout)?;
            Ok((stats["passes"].as_u64() >= Some(10)).then_some(()))
        })
    }

    /// Asks a workload.
    pub fn ask(&mut self, name: &str, line: &str) -> Result<Value> {
        let answer = self.check(&format!("lab-native ask {name} {line}"))?;
        let answer: Value = serde_json::from_str(&answer)
            .with_context(|| format!("{name} on {line:?}: {answer}"))?;
        match answer.get("error") {
            None => Ok(answer),
            Some(error) => bail!("{name} on {line:?}: {error}"),
        }
    }

    /// The nodes of the pages that a workload names when asked for `what`.
    pub fn native_placement(&mut self, name: &str, what: &str) -> Result<Placement> {
        let answer = self.check(&format!(
            "lab-native ask {name} {what} | lab-native placement"
        ))?;
        serde_json::from_str(&answer).context("lab-native placement")
    }

    /// How much of a workload's hot set is in fast memory.
    pub fn native_on_fast(&mut self, name: &str) -> Result<HotOnFast> {
        let placement = self.native_placement(name, "truth")?;
        Ok(HotOnFast {
            fast: placement.on(FAST),
            hot: placement.total(),
        })
    }

    /// Expects every byte of a workload to be what it wrote, and everything that it read to be right.
    pub fn expect_native_intact(&mut self, name: &str) -> Result<()> {
        let verified = self.ask(name, "verify")?;
        for count in ["bad", "errors", "churn_errors", "mapped_errors"] {
            if verified.get(count).is_some_and(|count| *count != 0) {
                bail!("{name}'s memory is damaged: {verified}");
            }
        }
        Ok(())
    }

    /// Ends a workload.
    pub fn end_workload(&mut self, name: &str) -> Result<()> {
        self.ask(name, "quit").map(drop)
    }
}
