//! To come.

use std::path::Path;

use serde::Deserialize;

use crate::access::Source;
use crate::workload::{Context, WorkloadError};

/// A load of kind `trace`: its keys, checked.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TraceSpec {
    file: std::path::PathBuf,
}

impl TraceSpec {
    /// 4 KiB pages of its memory: its accesses are to pages below this.
    ///
    /// # Errors
    /// Where the file in `folder` cannot be read.
    pub fn pages(&self, folder: &Path) -> Result<u64, WorkloadError> {
        Err(self.not_yet(folder))
    }

    /// One source for each vCPU.
    ///
    /// # Errors
    /// Where the file cannot be read.
    pub fn sources(&self, context: &Context) -> Result<Vec<Box<dyn Source>>, WorkloadError> {
        Err(self.not_yet(context.folder))
    }

    fn not_yet(&self, folder: &Path) -> WorkloadError {
        let file = folder.join(&self.file);
        WorkloadError(format!("{}: traces cannot be read yet", file.display()))
    }
}
