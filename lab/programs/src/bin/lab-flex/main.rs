//! A HyperFlex device for tests of the guest driver: small, and it misbehaves on request.
//!
//! The device is no part of the product. It checks nothing that a guest sends beyond what keeps this program alive,
//! serves one guest and ends with it.
//!
//! `lab-flex SOCKET CONTROL ORDERS TIER_BYTES…`: the vhost-user socket, the socket on which tests give
//! orders (see `control.rs`), the page orders as bits, and each tier's memory, one behind the other in
//! the guest's address space; tier N is the guest's node N.

mod balloon;
mod control;
mod memory;
mod ring;
mod session;
mod wire;

use std::fs;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixListener;

use anyhow::{Context, Result, bail};
use balloon::Balloons;
use control::Control;
use session::Session;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, orders_from, page_orders, sizes @ ..] = &arguments[..] else {
        bail!("usage: lab-flex SOCKET CONTROL ORDERS TIER_BYTES…");
    };
    let sizes: Result<Vec<u64>, _> = sizes.iter().map(|size| size.parse()).collect();
    let balloons = Balloons::new(page_orders.parse()?, &sizes.context("tier sizes")?);
    let mut control = Control::new(listen(orders_from)?);
    // Last: when this is there, all of the device is.
    let guest = listen(socket)?;
    let (stream, _) = guest.accept().context("waiting for the guest")?;
    let mut session = Session::new(stream, balloons);
    loop {
        let mut watched = session.descriptors();
        watched.extend(control.descriptors());
        let ready = wait(&watched)?;
        if !session.serve(&ready)? {
            return Ok(());
        }
        control.serve(&ready, &mut session)?;
    }
}

fn listen(path: &str) -> Result<UnixListener> {
    if fs::exists(path)? {
        fs::remove_file(path)?;
    }
    UnixListener::bind(path).with_context(|| format!("cannot listen on {path}"))
}

/// The descriptors that have something to read.
fn wait(descriptors: &[RawFd]) -> Result<Vec<RawFd>> {
    let mut polled: Vec<libc::pollfd> = descriptors
        .iter()
        .map(|fd| libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        })
        .collect();
    // SAFETY: the array lives through the call and its length is given.
    let ready = unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, -1) };
    if ready < 0 {
        return Err(std::io::Error::last_os_error()).context("poll");
    }
    let has_news = polled.iter().filter(|entry| entry.revents != 0);
    Ok(has_news.map(|entry| entry.fd).collect())
}
