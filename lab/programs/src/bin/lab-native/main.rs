//! Runs in L1 as one of its programs: workloads whose hot pages and contents are known exactly, a load on
//! redis-server, and the kernel's answers about the nodes of a process's pages.

mod ask;
mod chase;
mod hold;
mod hotset;
mod launch;
mod line_server;
mod mappings;
mod partner;
mod placement;
mod redis;

use std::process::ExitCode;

use anyhow::{Context, Result, bail};

const USAGE: &str = "usage: lab-native hotset JSON        touch a hot set; answers on /run/lab/NAME.sock
       lab-native load JSON          ask a redis-server; answers on /run/lab/NAME.sock
       lab-native ask NAME WORD...   ask one of these and print its answer
       lab-native placement          node counts of the pages on standard input, an answer to `truth`
       lab-native move NODE          the same, after moving them
       lab-native frames             the frames of those pages, in their order
       lab-native hold FILE          map a file's memory, say so, and let it go at the end of standard input
       lab-native chase NODE MIB STEPS
                                     chase pointers through memory of a node and print ns a step
       lab-native start NODE PROCESSOR PROGRAM [ARGUMENT...]
                                     run a program that prefers a node's memory";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab-native: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["hotset", spec] => hotset::run(&serde_json::from_str(spec).context("hotset JSON")?),
        ["load", spec] => redis::run(&serde_json::from_str(spec).context("load JSON")?),
        ["ask", name, rest @ ..] => ask::ask(name, &rest.join(" ")),
        ["placement"] => placement::print(None),
        ["frames"] => placement::print_frames(),
        ["move", node] => placement::print(Some(node.parse()?)),
        ["hold", file] => hold::hold(file),
        ["chase", node, mib, steps] => chase::chase(node.parse()?, mib.parse()?, steps.parse()?),
        ["start", node, processor, program, rest @ ..] => {
            launch::start(node.parse()?, processor.parse()?, program, rest)
        }
        _ => bail!("{USAGE}"),
    }
}
