//! Carries a guest's truth channel from its QEMU to a port of L1.
//!
//! The guest end is one half of a socket pair and the port can be opened only once, so nothing else in L1, the
//! product under test least of all, can read the guest's answers.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::poll;

/// Copies in both directions until the guest's QEMU ends. Clients of the port come and go.
pub fn bridge(mut port: File, mut guest: UnixStream) -> Result<()> {
    let mut chunk = vec![0; 64 << 10];
    loop {
        let [client, answer] = poll::wait([port.as_fd(), guest.as_fd()], -1)?;
        if answer.readable || answer.hung_up {
            // A QEMU that dies resets the connection, one that ends closes it.
            let Ok(read @ 1..) = guest.read(&mut chunk) else {
                return Ok(());
            };
            // A write to a port without a listener waits for one; drop it instead.
            if !client.hung_up {
                port.write_all(&chunk[..read])
                    .context("writing to the port")?;
            }
        }
        if client.hung_up {
            thread::sleep(Duration::from_millis(10));
        } else if client.readable {
            let read = port.read(&mut chunk).context("reading from the port")?;
            guest
                .write_all(&chunk[..read])
                .context("writing to the guest")?;
        }
    }
}
