//! The work of an init before anything works.

use std::ffi::{CStr, CString};
use std::fs;

use anyhow::{Context, Result};

/// Mounts the kernel's file systems.
pub fn mount_filesystems() -> Result<()> {
    for (kind, target) in [("proc", "/proc"), ("sysfs", "/sys"), ("devtmpfs", "/dev")] {
        fs::create_dir_all(target).with_context(|| format!("cannot create {target}"))?;
        mount(kind, target)?;
    }
    Ok(())
}

/// Sets the name of this process in the guest's kernel, instead of `init`.
pub fn name_this_process(name: &CStr) -> Result<()> {
    // SAFETY: the name ends in NUL and outlives the call; the other arguments are not used.
    let result = unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot name this process");
    }
    Ok(())
}

fn mount(kind: &str, target: &str) -> Result<()> {
    let kind_c = CString::new(kind)?;
    let target_c = CString::new(target)?;
    // SAFETY: both strings end in NUL and outlive the call; these file systems take no data.
    let result = unsafe {
        libc::mount(
            kind_c.as_ptr(),
            target_c.as_ptr(),
            kind_c.as_ptr(),
            0,
            std::ptr::null(),
        )
    };
    if result != 0 {
        let error = std::io::Error::last_os_error();
        return Err(error).with_context(|| format!("cannot mount {kind} on {target}"));
    }
    Ok(())
}
