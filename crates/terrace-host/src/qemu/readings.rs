//! The conversation that reads what a scan starts from.

use qapi::{Any, Command, ExecuteError, qmp};
use serde::Serialize;
use terrace_proto::Readings;

use super::nesting::{self, FEATURES, GUEST_MODE, NESTED_RUN, Statistics, Uncounted, Vcpu};
use super::parse::{self, Numbered};
use super::{Monitor, QemuError};

/// Reads one VM's registers. A property that cannot change while its virtual CPUs stay the same is asked once.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    known: Option<Known>,
}

/// The known facts about the virtual CPUs, until one comes or goes, or the VM is reset.
#[derive(Debug)]
struct Known {
    vcpus: Vec<Vcpu>,
    resets: u64,
    can_nest: bool,
}

impl Reader {
    /// The registers that count, and how often the VM was reset before they were read.
    pub(crate) fn read(&mut self, monitor: &mut Monitor, kvm: bool) -> Result<Readings, QemuError> {
        let readings = self.ask(monitor, kvm)?;
        readings.map_err(|source| QemuError::Uncounted {
            socket: monitor.socket().to_owned(),
            source,
        })
    }

    fn ask(
        &mut self,
        monitor: &mut Monitor,
        kvm: bool,
    ) -> Result<Result<Readings, Uncounted>, QemuError> {
        let vcpus = monitor.vcpus()?;
        let before = match (self.can_nest(monitor, &vcpus)?, kvm) {
            (false, _) => None,
            (true, false) => return Ok(Err(Uncounted::Emulated)),
            (true, true) => match monitor.statistics()? {
                None => return Ok(Err(Uncounted::NoStatistics)),
                statistics => statistics,
            },
        };
        let (registers, resets) = monitor.numbered_registers()?;
        let counted = match before {
            None => nesting::counted(&vcpus, &registers, None),
            Some(before) => {
                let after = monitor.statistics()?.unwrap_or_default();
                nesting::counted(&vcpus, &registers, Some((&before, &after)))
            }
        };
        if monitor.resets() != resets {
            return Ok(Err(Uncounted::Reset));
        }
        Ok(counted.map(|vcpus| Readings { vcpus, resets }))
    }

    /// Whether any virtual CPU can run a nested guest, or does not report that it cannot.
    fn can_nest(&mut self, monitor: &mut Monitor, vcpus: &[Vcpu]) -> Result<bool, QemuError> {
        let resets = monitor.resets();
        if let Some(known) = &self.known
            && known.vcpus == vcpus
            && known.resets == resets
        {
            return Ok(known.can_nest);
        }
        let mut can_nest = false;
        for vcpu in vcpus {
            for feature in FEATURES {
                can_nest = can_nest || monitor.flag(&vcpu.path, feature)? != Some(false);
            }
        }
        self.known = Some(Known {
            vcpus: vcpus.to_vec(),
            resets,
            can_nest,
        });
        Ok(can_nest)
    }
}

impl Monitor {
    /// The virtual CPUs, in QEMU's order.
    fn vcpus(&mut self) -> Result<Vec<Vcpu>, QemuError> {
        let list = self.execute("query-cpus-fast", &Loose(qmp::query_cpus_fast {}))?;
        self.parsed(nesting::vcpus(&list))
    }

    /// The threads of the virtual CPUs.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn vcpu_threads(&mut self) -> Result<Vec<u32>, QemuError> {
        let threads = self.vcpus()?.into_iter().filter_map(|vcpu| vcpu.thread);
        Ok(threads
            .filter_map(|thread| u32::try_from(thread).ok())
            .collect())
    }

    /// A property of an object that is true or false; `None` if the object has none of this name or it is neither.
    fn flag(&mut self, path: &str, property: &str) -> Result<Option<bool>, QemuError> {
        let command = qmp::qom_get {
            path: path.into(),
            property: property.into(),
        };
        match self.try_execute(&command)? {
            Ok(value) => Ok(value.as_bool()),
            Err(ExecuteError::Qapi(_)) => Ok(None),
            Err(error) => Err(self.failed("qom-get", error)),
        }
    }

    /// KVM's statistics of nested guests; `None` if this QEMU cannot be asked.
    fn statistics(&mut self) -> Result<Option<Statistics>, QemuError> {
        match self.try_execute(&query_stats::of_nested_guests())? {
            Ok(list) => self.parsed(nesting::statistics(&list)).map(Some),
            Err(ExecuteError::Qapi(_)) => Ok(None),
            Err(error) => Err(self.failed("query-stats", error)),
        }
    }

    /// Control registers of each virtual CPU with its number, and how often the VM had been reset by then.
    fn numbered_registers(&mut self) -> Result<(Vec<Numbered>, u64), QemuError> {
        let (text, resets) = self.human_counted("info registers -a")?;
        Ok((self.parsed(parse::numbered_registers(&text))?, resets))
    }
}

/// A command whose answer is taken as it comes: one that has not the shape that the `qapi` crate knows is no
/// error of the connection.
#[derive(Serialize)]
#[serde(transparent)]
pub(super) struct Loose<C>(pub(super) C);

impl<C: Command> Command for Loose<C> {
    type Ok = Any;
    const NAME: &'static str = C::NAME;
    const ALLOW_OOB: bool = false;
}

/// `query-stats`, which the `qapi` crate does not know.
#[derive(Serialize)]
#[allow(
    non_camel_case_types,
    reason = "named as the qapi crate names commands"
)]
struct query_stats {
    target: &'static str,
    providers: [Provider; 1],
}

#[derive(Serialize)]
struct Provider {
    provider: &'static str,
    names: [&'static str; 2],
}

impl query_stats {
    fn of_nested_guests() -> Self {
        Self {
            target: "vcpu",
            providers: [Provider {
                provider: "kvm",
                names: [GUEST_MODE, NESTED_RUN],
            }],
        }
    }
}

impl Command for query_stats {
    type Ok = Any;
    const NAME: &'static str = "query-stats";
    const ALLOW_OOB: bool = false;
}
