//! Another process that holds the memory of a file, as one that serves a VM holds the VM's.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::ptr;

use anyhow::{Context as _, Result, ensure};

/// Maps the file, with no descriptor of it left, until standard input ends.
pub fn hold(path: &str) -> Result<()> {
    let file = File::options().read(true).write(true).open(path);
    let file = file.with_context(|| format!("cannot open {path}"))?;
    let bytes = usize::try_from(file.metadata()?.len())?;
    // SAFETY: a new mapping at an address of the kernel's choice, which nothing here reads or writes.
    let start = unsafe {
        libc::mmap(
            ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    let error = io::Error::last_os_error();
    ensure!(
        start != libc::MAP_FAILED,
        "mapping {bytes} bytes of {path}: {error}"
    );
    drop(file);
    println!("mapped {bytes} bytes");
    io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
