//! Memory that is plugged into a running guest as a DIMM, and taken out again, beside the daemon that scans it.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::guests::stock::guest::{MARK, SLACK, StockGuest};
use crate::guests::stock::machine::{Means, NAME};
use crate::guests::tiered::{self, MIB};
use crate::progress::say;

const DIMM_MIB: u64 = 256;

/// The node that gets the DIMM.
const NODE: u32 = 1;

const PAGE: u64 = 4096;

pub fn plugged_and_unplugged() -> Result<()> {
    let mut guest = StockGuest::start(Means::Dimm)?;
    let mut boot = 0;
    guest.until("the daemon knows the guest's memory", |guest| {
        boot = guest.daemon.vm()?["memory_bytes"]
            .as_u64()
            .unwrap_or_default();
        Ok(boot > 0)
    })?;
    let known_at_boot = guest.known_of(boot)?;
    guest.plug()?;
    // All of it is movable memory, which a program of the node is given first.
    guest.start_writer(NODE)?;
    let dimm = dimm()?;
    let (region, in_dimm) = (guest.writer.region_mib as u64 * MIB, dimm.blocks() * 512);
    ensure!(
        in_dimm + SLACK >= region,
        "the program is not in what was plugged in: {in_dimm} bytes"
    );
    let all = boot + DIMM_MIB * MIB;
    let mut known = guest.known_of(all)?;
    // The round under way may have begun before the program.
    guest.until("what was plugged in is scanned", |guest| {
        known = guest.known_of(all)?;
        Ok(known * PAGE + SLACK >= known_at_boot * PAGE + region)
    })?;
    say(&format!(
        "{} MiB of what was plugged in are in use; known to the daemon: {} MiB before, {} MiB now",
        in_dimm / MIB,
        known_at_boot * PAGE / MIB,
        known * PAGE / MIB
    ));
    guest.expect_writer_intact()?;
    let inode = dimm.ino();
    ensure!(
        guest.is_mapped(inode)?,
        "nothing of the daemon's maps what it scans"
    );
    guest.unplug()?;
    guest.until("the daemon has let go what is out", |guest| {
        Ok(!guest.is_mapped(inode)?)
    })?;
    let after = guest.known_of(boot)?;
    // The guest's kernel has moved the program's pages into what is left.
    ensure!(
        after * PAGE + SLACK >= known_at_boot * PAGE + region,
        "{after} pages are known"
    );
    guest.expect_writer_intact()?;
    println!("{}", guest.daemon.events()?);
    tiered::expect_a_quiet_kernel(&mut guest.lab, MARK)
}

/// The file of the DIMM: the one of its size.
fn dimm() -> Result<Metadata> {
    let files = tiered::host_files(NAME)?.into_iter();
    let mut files = files.filter_map(|path| fs::metadata(path).ok());
    let found = files.find(|file| file.len() == DIMM_MIB * MIB);
    found.context("no file of the DIMM")
}

impl StockGuest {
    /// Number of pages that are mapped by programs, by the next whole round over a guest of this size.
    fn known_of(&mut self, memory_bytes: u64) -> Result<u64> {
        let mut last = Value::Null;
        self.until(
            "the daemon scans the guest with its memory of now",
            |guest| {
                last = guest.daemon.vm()?;
                Ok(last["memory_bytes"] == memory_bytes && last["rounds"].is_u64())
            },
        )
        .with_context(|| format!("{memory_bytes} bytes: {last}"))?;
        let begun = |guest: &Self| -> Result<Option<u64>> {
            let round = guest.daemon.last_round()?;
            Ok(round.and_then(|round| round["number"].as_u64()))
        };
        let before = begun(self)?.unwrap_or_default();
        let mut known = None;
        self.until("a round is complete", |guest| {
            let round = guest.daemon.last_round()?.unwrap_or_default();
            let is_new = round["number"].as_u64() > Some(before) && round["abandoned"].is_null();
            known = round["known_pages"].as_u64().filter(|_| is_new);
            Ok(known.is_some())
        })?;
        known.context("no known_pages")
    }

    fn qmp(&self, command: &str, arguments: &Value) -> Result<Value> {
        self.lab.qmp()?.execute(command, arguments)
    }

    fn plug(&mut self) -> Result<()> {
        let before = self.meminfo(NODE as usize, "MemTotal")?;
        let size = DIMM_MIB * MIB;
        let memory =
            json!({"qom-type": "memory-backend-memfd", "id": "d0", "size": size, "share": true});
        self.qmp("object-add", &memory)?;
        let dimm = json!({"driver": "pc-dimm", "id": "dimm0", "memdev": "d0", "node": NODE});
        self.qmp("device_add", &dimm)?;
        self.until("the guest has what was plugged in", |guest| {
            Ok(guest.meminfo(NODE as usize, "MemTotal")? == before + size)
        })
    }

    fn unplug(&mut self) -> Result<()> {
        let before = self.meminfo(NODE as usize, "MemTotal")?;
        self.qmp("device_del", &json!({"id": "dimm0"}))?;
        self.until("the DIMM is out", |guest| {
            let there = guest.qmp("query-memory-devices", &json!({}))?;
            Ok(there.as_array().is_some_and(Vec::is_empty))
        })?;
        let after = self.meminfo(NODE as usize, "MemTotal")?;
        ensure!(
            after + DIMM_MIB * MIB == before,
            "the guest has {after} bytes, {before} before"
        );
        let anew = |guest: &Self| -> Result<usize> {
            Ok(guest
                .daemon
                .events()?
                .matches("its memory map changed")
                .count())
        };
        self.until(
            "the daemon has said so twice",
            |guest| Ok(anew(guest)? >= 2),
        )?;
        // QEMU takes the memory back only if nothing of its own uses it any more.
        self.qmp("object-del", &json!({"id": "d0"})).map(drop)
    }

    /// Whether the daemon or a worker of it maps a file.
    fn is_mapped(&self, inode: u64) -> Result<bool> {
        let mapped = |pid: &u32| {
            let maps = Path::new("/proc").join(pid.to_string()).join("maps");
            let maps = fs::read_to_string(maps).unwrap_or_default();
            let has = |line: &str| {
                let found = line.split_whitespace().nth(4);
                found == Some(inode.to_string().as_str()) && line.contains("memfd:")
            };
            maps.lines().any(has)
        };
        Ok(self.daemon.processes()?.iter().any(mapped))
    }
}
