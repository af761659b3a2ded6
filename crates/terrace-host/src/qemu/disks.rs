//! What a VM reads from its disks, as QEMU counts it (`query-blockstats`).

use qapi::{ExecuteError, qmp};
use serde_json::Value;

use super::{Monitor, QemuError};

impl Monitor {
    /// Bytes that the VM has read from its disks; `None` if QEMU counts none: it has no disk, or its disks are served by other
    /// programs.
    ///
    /// # Errors
    /// If QEMU does not answer.
    pub fn disk_read_bytes(&mut self) -> Result<Option<u64>, QemuError> {
        let command = qmp::query_blockstats { query_nodes: None };
        match self.try_execute(&super::readings::Loose(command))? {
            Ok(answer) => Ok(read_bytes(&answer)),
            Err(ExecuteError::Qapi(_)) => Ok(None),
            Err(error) => Err(self.failed("query-blockstats", error)),
        }
    }
}

/// The sum over all drives. One that never read anything, such as an empty CD-ROM drive, says nothing.
fn read_bytes(answer: &Value) -> Option<u64> {
    let drives = answer.as_array()?.iter();
    let read = drives.filter_map(|drive| drive["stats"]["rd_bytes"].as_u64());
    Some(read.fold(0, u64::saturating_add)).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn reads_of_all_drives_are_one_sum() {
        let drive = |bytes: Value| json!({"device": "d", "stats": {"rd_bytes": bytes}});
        let answer = json!([
            drive(json!(5)),
            drive(json!(-1)),
            drive(json!("x")),
            drive(json!(7))
        ]);
        assert_eq!(read_bytes(&answer), Some(12));
        let most = json!([drive(json!(u64::MAX)), drive(json!(1))]);
        assert_eq!(read_bytes(&most), Some(u64::MAX));
    }

    #[test]
    fn without_a_drive_that_was_read_nothing_is_known() {
        for answer in [
            json!([]),
            json!([{"device": "cd", "stats": {"rd_bytes": 0}}]),
            json!([3, null, {"stats": []}]),
            json!({"stats": {"rd_bytes": 3}}),
            json!(null),
        ] {
            assert_eq!(read_bytes(&answer), None, "{answer}");
        }
    }
}
