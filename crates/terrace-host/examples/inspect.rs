//! Prints what Terrace sees of one QEMU VM: `inspect QMP-SOCKET [SECONDS]`.
//!
//! Prints the findings of `doctor`, where the VM's RAM is, where its pages are, and how many of them the
//! guest touches in the given time (default 1). Clears accessed bits in the guest's tables, like any
//! scan; moves nothing.

use std::collections::BTreeMap;
use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use terrace_host::mover::Target;
use terrace_host::qemu::Candidate;
use terrace_host::qemu::who::{HypervisorConfig, Rules};
use terrace_host::topology::Topology;
use terrace_host::tracker::GuestTables;
use terrace_host::vm::Vm;
use terrace_host::worker::{WorkerCommand, run};
use terrace_host::{HostRoot, doctor, placement};
use terrace_proto::action::PlacementQuery;
use terrace_proto::{PageSize, Rearm, RequestId, ScanRequest, Space, VmId};

const TIMEOUT: Duration = Duration::from_secs(30);
const VM: VmId = VmId(0);

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let result = match args.next().as_deref() {
        Some("worker") => run().map_err(Into::into),
        Some(socket) => inspect(socket, args.next()),
        None => Err("usage: inspect QMP-SOCKET [SECONDS]".into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn inspect(socket: &str, seconds: Option<String>) -> Result<(), Box<dyn Error>> {
    let seconds = seconds.map_or(Ok(1.0), |s| s.parse())?;
    let root = HostRoot::default();
    let topology = Topology::read(&root, &[])?;
    // Without a configuration: what is allowed by default.
    let (rules, _) = Rules::read(&root, &HypervisorConfig::default());
    let mut vm = Vm::open(&root, &rules, &Candidate::at(socket), TIMEOUT)?;
    let status = vm.status()?;
    println!("{:#?}\n{status:?}", vm.identity());
    let memory = vm.memory();
    let readings = vm.readings();
    let mut tables = None;
    let mut gaps = Vec::new();
    let memory = memory.map(Arc::new);
    if let Ok(memory) = &memory {
        let command = WorkerCommand::this_program(&["worker"]);
        let started = GuestTables::attach(command, memory.clone(), TIMEOUT)?;
        gaps = started.sandbox_gaps().to_vec();
        tables = Some(started);
    }
    let facts = doctor::VmFacts {
        identity: vm.identity(),
        memory: memory.as_deref(),
        readings: readings.as_ref(),
        sandbox_gaps: &gaps,
        uncharged: None,
        damon: false,
    };
    for finding in doctor::host(&root, &topology)
        .iter()
        .chain(&doctor::vm(&root, &topology, &facts))
    {
        println!(
            "{:>10?}  {}: {}",
            finding.health, finding.name, finding.found
        );
    }
    let (Ok(memory), Some(mut tables)) = (memory, tables) else {
        return Ok(());
    };
    for range in memory.ranges() {
        println!("{range:x?}");
    }
    let target = Target {
        process: vm.process().clone(),
        memory,
        unit: PageSize::Base,
        others_map: false,
    };
    where_pages_are(&root, &topology, &target)?;
    what_is_touched(&mut vm, &mut tables, seconds)
}

fn where_pages_are(
    root: &HostRoot,
    topology: &Topology,
    target: &Target,
) -> Result<(), Box<dyn Error>> {
    let query = PlacementQuery {
        id: RequestId(0),
        vm: VM,
    };
    let begin = Instant::now();
    let reports = placement::query(root, topology, target, query)?;
    let elapsed = begin.elapsed();
    let mut counts: BTreeMap<u8, u64> = BTreeMap::new();
    for code in reports.iter().flat_map(|report| &report.codes) {
        *counts.entry(code.0).or_default() += 1;
    }
    println!("pages by code (7 absent, +8 huge): {counts:?}, asked in {elapsed:?}");
    Ok(())
}

fn what_is_touched(
    vm: &mut Vm,
    tables: &mut GuestTables,
    seconds: f64,
) -> Result<(), Box<dyn Error>> {
    for (id, discover) in [(0, true), (1, false), (2, false)] {
        let request = ScanRequest {
            id: RequestId(id),
            space: Space::Guest(VM),
            rearm: Rearm::All,
            prune: false,
            discover,
        };
        match tables.scan(vm, request) {
            Ok(answer) => println!(
                "{} known, {} accessed, {} huge; {:?}",
                answer.known.count(),
                answer.accessed.count(),
                answer.huge_leaf.count(),
                answer.stats
            ),
            Err(failure) if failure.fatal => return Err(failure.reason.into()),
            Err(failure) => println!("{}", failure.reason),
        }
        std::thread::sleep(Duration::from_secs_f64(seconds));
    }
    Ok(())
}
