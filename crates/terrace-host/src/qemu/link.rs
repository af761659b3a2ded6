//! The connections that monitors of one socket share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use qapi::Qmp;
use terrace_sys::Peer;

use super::stream::LineStream;

/// The state that all monitors of one VM share.
#[derive(Default)]
pub(super) struct Link {
    /// Nothing before the first command and after one that failed.
    pub(super) connection: Option<Qmp<LineStream>>,
    /// The process that listened there first, once there was a connection; `Some(None)` if it cannot be determined.
    pub(super) peer: Option<Option<Peer>>,
    /// Number of the VM's resets since the first connection, as far as QEMU's events show. A connection that was made
    /// anew may have missed some and counts as one.
    pub(super) resets: u64,
    /// Number of QEMU's events after which the guest's RAM may be another one; a reset and a connection that was made
    /// anew count too.
    pub(super) memory_events: u64,
    /// Number of QEMU's events after which the guest's memory may have other contents: resets, and stops; a connection that was
    /// made anew counts too.
    pub(super) run_events: u64,
}

type Links = BTreeMap<PathBuf, Weak<Mutex<Link>>>;

static LINKS: Mutex<Links> = Mutex::new(BTreeMap::new());

/// The link that is in use for this socket, or a new one.
pub(super) fn of(socket: &Path) -> Arc<Mutex<Link>> {
    let mut links = links();
    let known = links.get(socket).and_then(Weak::upgrade);
    known.unwrap_or_else(|| insert(&mut links, socket))
}

/// A new link for this socket; who has the old one keeps it.
pub(super) fn anew(socket: &Path) -> Arc<Mutex<Link>> {
    insert(&mut links(), socket)
}

fn insert(links: &mut Links, socket: &Path) -> Arc<Mutex<Link>> {
    links.retain(|_, link| link.strong_count() > 0);
    let link = Arc::default();
    links.insert(socket.to_owned(), Arc::downgrade(&link));
    link
}

fn links() -> MutexGuard<'static, Links> {
    LINKS.lock().unwrap_or_else(PoisonError::into_inner)
}
