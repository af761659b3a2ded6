//! A process with a hot set that starts in slow memory.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use terrace_lab_programs::churn::Churn;
use terrace_lab_programs::commands::{self, COMMANDS};
use terrace_lab_programs::hotset::Layout;
use terrace_lab_programs::native::HotSet;
use terrace_lab_programs::numa;
use terrace_lab_programs::pages::{PAGE_SIZE, coalesce};
use terrace_lab_programs::region::{MappingAddress, Region};
use terrace_lab_programs::workload::Workload;

use crate::line_server::LineServer;
use crate::mappings::Mappings;
use crate::partner::Partner;

/// The process's workload and what runs beside it.
struct Process {
    workload: Workload,
    churn: Churn,
    mappings: Mappings,
}

/// Touches the hot set until it is asked to quit or is killed.
pub fn run(spec: &HotSet) -> Result<()> {
    numa::pin(spec.processor).context("cannot keep to a processor")?;
    let mut partner = Partner::new()?;
    let mut process = Process {
        workload: prepare(spec)?,
        churn: Churn::new()?,
        mappings: Mappings::default(),
    };
    let server = LineServer::new(&spec.name)?;
    let pause_ms = i32::try_from(spec.pause_ms)?;
    let mut quit = false;
    while !quit {
        let running = process.workload.running;
        if running {
            process.workload.pass();
            partner.take_turns()?;
        }
        server.serve(if running { pause_ms } else { -1 }, |line| {
            quit = line == "quit";
            process.answer(line)
        })?;
    }
    Ok(())
}

/// Fills the region from the node on which it starts; later memory comes from wherever it is touched.
fn prepare(spec: &HotSet) -> Result<Workload> {
    let at = if spec.heap {
        MappingAddress::Heap
    } else {
        MappingAddress::Anywhere
    };
    numa::prefer(spec.node).context("cannot prefer a node")?;
    let region = Region::new(spec.region_mib, spec.thp, at)?;
    numa::prefer_none().context("cannot go back to no preference")?;
    let (layout, hot) = match spec.sparse {
        0 => (Layout::Clustered, (spec.hot_mib << 20) / PAGE_SIZE),
        each => (Layout::Sparse { each }, spec.region_mib / 2 * each),
    };
    let mut workload = Workload::new(region, 0, layout, spec.seed);
    workload.set_hot_pages(hot);
    workload.elsewhere = spec.elsewhere;
    Ok(workload)
}

impl Process {
    fn answer(&mut self, line: &str) -> Result<Value> {
        let mut args = line.split_whitespace();
        let command = args.next().unwrap_or_default();
        let Self {
            workload,
            churn,
            mappings,
        } = self;
        if let Some(mut answer) = commands::answer(workload, churn, command, args.clone())? {
            answer["mapped"] = json!(mappings.mapped());
            answer["mapped_errors"] = json!(mappings.errors());
            return Ok(answer);
        }
        match command {
            "truth" => Ok(pages(workload, workload.hot_indices())),
            "region" => Ok(pages(workload, 0..workload.pages())),
            "mappings" => {
                mappings.set(commands::number(args.next())? > 0)?;
                Ok(json!({}))
            }
            "quit" => Ok(json!({})),
            other => bail!(
                "no command {other:?}; there are {COMMANDS}, truth, region, mappings 0|1, quit"
            ),
        }
    }
}

/// The virtual page numbers of some pages of the region.
fn pages(workload: &Workload, indices: impl Iterator<Item = usize>) -> Value {
    let first = workload.address() / PAGE_SIZE;
    let ranges = coalesce(indices.map(|page| (first + page) as u64).collect());
    json!({ "pid": std::process::id(), "hot": workload.hot_pages(), "ranges": ranges })
}
