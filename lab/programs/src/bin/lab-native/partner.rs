//! A process to take turns with.
//!
//! An emulated processor keeps translations of hot pages in its software TLB and never reads their
//! entries again, so that accessed bits that were cleared stay clear. It drops them when another process's
//! page tables are loaded.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};

use anyhow::{Context, Result};

/// The other process, on the same processor.
pub struct Partner {
    to: File,
    from: File,
}

impl Partner {
    /// Forks the other process; it ends when this process does.
    pub fn new() -> Result<Self> {
        let (their_from, our_to) = pipe()?;
        let (our_from, their_to) = pipe()?;
        // SAFETY: this program has one thread yet; the child uses its two descriptors and never returns.
        match unsafe { libc::fork() } {
            -1 => Err(std::io::Error::last_os_error()).context("cannot fork the partner"),
            0 => {
                drop((our_to, our_from));
                echo(their_from, their_to)
            }
            _ => Ok(Self {
                to: our_to,
                from: our_from,
            }),
        }
    }

    /// Lets the other process run once.
    pub fn take_turns(&mut self) -> Result<()> {
        self.to.write_all(b"!").context("the partner is gone")?;
        let mut answer = [0];
        self.from
            .read_exact(&mut answer)
            .context("the partner is gone")
    }
}

fn echo(mut from: File, mut to: File) -> ! {
    let mut byte = [0];
    while from.read_exact(&mut byte).is_ok() && to.write_all(&byte).is_ok() {}
    // SAFETY: ends the process, without the clean-up that is its parent's.
    unsafe { libc::_exit(0) }
}

fn pipe() -> Result<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: two descriptors are written into room for two.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot make a pipe");
    }
    // SAFETY: the kernel just made both, and nothing else has them.
    let [from, to] = ends.map(|end| File::from(unsafe { OwnedFd::from_raw_fd(end) }));
    Ok((from, to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_take_turns() {
        let mut partner = Partner::new().unwrap();
        for _ in 0..3 {
            partner.take_turns().unwrap();
        }
    }
}
