//! The distribution's redis-server in L1, under a skewed load.
//!
//! It is unpacked, never installed: an installed one would start as a service of this machine.

use std::fs;

use anyhow::{Context, Result};
use terrace_lab_programs::native::Load;

use super::lab::Lab;
use crate::host;
use crate::machine::images::{self, LIBRARIES};

const PROGRAM: &str = "usr/bin/redis-server";
const FOLDER: &str = "/redis";

/// Options of redis-server: in memory alone, and with `DEBUG OBJECT`, which shows where keys are.
const OPTIONS: &str =
    "--port 0 --save '' --appendonly no --enable-debug-command yes --daemonize no";

impl Lab {
    /// Starts redis-server, whose memory comes from `node`, fills it, and asks as `load` sets.
    pub fn start_redis(&mut self, load: &Load, node: u32) -> Result<()> {
        self.push_redis()?;
        let Load {
            name,
            server,
            processor,
            ..
        } = load;
        self.check(&format!(
            "LD_LIBRARY_PATH={FOLDER} setsid lab-native start {node} {processor} {FOLDER}/redis-server \
             --unixsocket {server} {OPTIONS} </dev/null >/run/lab/redis.log 2>&1 & \
             for i in $(seq 200); do [ -S {server} ] && exit; sleep 0.1; done; cat /run/lab/redis.log; exit 1"
        ))?;
        let json = serde_json::to_string(load)?;
        self.start_workload(name, &format!("lab-native load '{json}'"))
    }

    fn push_redis(&mut self) -> Result<()> {
        // A link to the program of another package.
        let program = fs::canonicalize(host::find_unpacked("redis-server", PROGRAM)?)?;
        self.push(&program, &format!("{FOLDER}/redis-server"))?;
        // L1's own libraries are of the same distribution.
        let there = self.check(&format!("ls /{LIBRARIES} /lib64"))?;
        for library in images::libraries(&program)? {
            let name = library.file_name().context("a library without a name")?;
            let name = name.to_string_lossy();
            if !there.lines().any(|there| there == name) {
                self.push(&library, &format!("{FOLDER}/{name}"))?;
            }
        }
        Ok(())
    }
}
