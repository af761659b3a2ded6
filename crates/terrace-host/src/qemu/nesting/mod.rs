//! The registers that count: those of virtual CPUs that ran no nested guest around them.
//!
//! While a virtual CPU runs a nested guest, hypervisors report that guest's registers, and its CR3 is no
//! table of the guest that is scanned. If a guest's processor can nest (svm or vmx), KVM's statistics
//! show: `guest_mode` whether a virtual CPU is in a nested guest now, `nested_run` how often it entered one.
//! Pure functions on what is not trusted; what they do not understand counts as nested.

use std::collections::{BTreeMap, BTreeSet};

use qapi::Any;
use terrace_proto::PagingRegisters;

use super::ParseError;
use super::parse::{MAX_VCPUS, Numbered};

const VCPUS: &str = "query-cpus-fast";
const STATISTICS: &str = "query-stats";
/// Longest path of an object that is believed.
const MAX_PATH: usize = 1024;

/// The properties of a virtual CPU that let it run nested guests.
pub(super) const FEATURES: [&str; 2] = ["svm", "vmx"];
/// The statistics that show nested guests.
pub(super) const GUEST_MODE: &str = "guest_mode";
pub(super) const NESTED_RUN: &str = "nested_run";

/// The reason why a VM's registers do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Uncounted {
    /// An emulated VM has no such statistics.
    #[error(
        "its processor has svm or vmx, and an emulated VM (TCG) does not report when it runs a nested guest, whose \
         registers would be taken for its own: start it with -cpu MODEL,-svm"
    )]
    Emulated,
    /// QEMU is older than 7.1.
    #[error(
        "its processor has svm or vmx, and this QEMU has no query-stats, which would report when it runs a \
         nested guest, \
         whose registers would be taken for its own: use QEMU 7.1 or later, or -cpu MODEL,-svm,-vmx"
    )]
    NoStatistics,
    /// The host's kernel is too old.
    #[error(
        "its processor has svm or vmx, and KVM reports neither {GUEST_MODE} nor {NESTED_RUN}, so that a \
         nested guest's \
         registers would be taken for its own: run Linux 5.14 or later on the host, or -cpu MODEL,-svm,-vmx"
    )]
    NoCounters,
    /// The registers are not of the virtual CPUs that were asked about.
    #[error("virtual CPUs came or went while their registers were read")]
    Changed,
    /// The registers are older than the guest that runs now.
    #[error("the VM was reset while its registers were read")]
    Reset,
}

impl Uncounted {
    /// Whether it stays so as long as the VM runs as it was started.
    #[must_use]
    pub fn is_lasting(self) -> bool {
        matches!(self, Self::Emulated | Self::NoStatistics | Self::NoCounters)
    }
}

/// A virtual CPU, as QEMU lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vcpu {
    /// The virtual CPU's number.
    pub index: u64,
    /// The path among QEMU's objects.
    pub path: String,
    /// The virtual CPU's thread: one that was taken out and put in again has another.
    pub thread: Option<u64>,
}

/// The virtual CPUs from `query-cpus-fast`, in QEMU's order.
pub(super) fn vcpus(answer: &Any) -> Result<Vec<Vcpu>, ParseError> {
    let fail = |what: String| ParseError {
        command: VCPUS,
        what,
    };
    let list = answer.as_array().ok_or_else(|| fail("no list".into()))?;
    if list.len() > MAX_VCPUS {
        return Err(fail(format!("more than {MAX_VCPUS} virtual CPUs")));
    }
    let vcpu = |entry: &Any| {
        let path = entry.get("qom-path")?.as_str()?;
        Some(Vcpu {
            index: entry.get("cpu-index")?.as_u64()?,
            path: (path.len() <= MAX_PATH).then(|| path.to_owned())?,
            thread: entry.get("thread-id").and_then(Any::as_u64),
        })
    };
    let vcpus: Option<Vec<Vcpu>> = list.iter().map(vcpu).collect();
    let vcpus = vcpus.ok_or_else(|| fail("a virtual CPU without a number or a path".into()))?;
    let indices: BTreeSet<u64> = vcpus.iter().map(|vcpu| vcpu.index).collect();
    let paths: BTreeSet<&str> = vcpus.iter().map(|vcpu| vcpu.path.as_str()).collect();
    if indices.len() < vcpus.len() || paths.len() < vcpus.len() {
        return Err(fail("two virtual CPUs of one number or path".into()));
    }
    Ok(vcpus)
}

/// KVM's statistics of a virtual CPU's nested guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Nested {
    /// The virtual CPU is in a nested guest.
    pub inside: bool,
    /// Number of times that the virtual CPU entered one.
    pub runs: u64,
}

/// Statistics by the path of the virtual CPU; those that are not whole are left out.
pub(super) type Statistics = BTreeMap<String, Nested>;

/// Statistics from `query-stats`.
pub(super) fn statistics(answer: &Any) -> Result<Statistics, ParseError> {
    let fail = |what: String| ParseError {
        command: STATISTICS,
        what,
    };
    let list = answer.as_array().ok_or_else(|| fail("no list".into()))?;
    // Other providers may have an entry for each as well.
    if list.len() > 4 * MAX_VCPUS {
        return Err(fail(format!("{} entries", list.len())));
    }
    let mut found = BTreeMap::new();
    for entry in list {
        if entry.get("provider").and_then(Any::as_str) != Some("kvm") {
            continue;
        }
        let Some(path) = entry.get("qom-path").and_then(Any::as_str) else {
            continue;
        };
        // Of two entries about one virtual CPU none is believed.
        let twice = found.contains_key(path);
        let state = nested(entry).filter(|_| !twice);
        found.insert(path.to_owned(), state);
    }
    let whole = found
        .into_iter()
        .filter_map(|(path, state)| Some((path, state?)));
    Ok(whole.collect())
}

fn nested(entry: &Any) -> Option<Nested> {
    let list = entry.get("stats")?.as_array()?;
    let value = |name: &str| {
        let mut of_name = list
            .iter()
            .filter(|stat| stat.get("name").and_then(Any::as_str) == Some(name));
        let value = of_name.next()?.get("value")?;
        of_name.next().is_none().then_some(value)
    };
    let inside = match value(GUEST_MODE)? {
        Any::Bool(inside) => *inside,
        // From a kernel that does not call it a boolean.
        number => number.as_u64()? != 0,
    };
    let runs = value(NESTED_RUN)?.as_u64()?;
    Some(Nested { inside, runs })
}

/// Registers of each virtual CPU, without those that do not count. `around` holds the statistics from before and
/// after the registers were read; `None` if no virtual CPU can nest.
pub(super) fn counted(
    vcpus: &[Vcpu],
    registers: &[Numbered],
    around: Option<(&Statistics, &Statistics)>,
) -> Result<Vec<Option<PagingRegisters>>, Uncounted> {
    let numbers = registers.iter().map(|numbered| numbered.number);
    if !numbers.eq(vcpus.iter().map(|vcpu| vcpu.index)) {
        return Err(Uncounted::Changed);
    }
    let pairs = vcpus.iter().zip(registers);
    let Some((before, after)) = around else {
        return Ok(pairs.map(|(_, read)| Some(read.registers)).collect());
    };
    if !vcpus.iter().any(|vcpu| before.contains_key(&vcpu.path)) {
        return Err(Uncounted::NoCounters);
    }
    let stayed_out = |vcpu: &Vcpu| {
        let (before, after) = (before.get(&vcpu.path)?, after.get(&vcpu.path)?);
        Some(!before.inside && before == after)
    };
    let count = |(vcpu, read): (&Vcpu, &Numbered)| {
        (stayed_out(vcpu) == Some(true)).then_some(read.registers)
    };
    Ok(pairs.map(count).collect())
}

#[cfg(test)]
mod tests;
