//! The process of one VM: sockets and state first, then the sandbox, then the hypervisor.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use terrace_sys::{SocketFile, accepted_peer_pid, listen_at};
use vhost::vhost_user::{Error as VhostUserError, Listener};
use vhost_user_backend::{Error as DaemonError, VhostUserDaemon};
use vm_memory::GuestMemoryMmap;
use vmm_sys_util::eventfd::EventFd;

use crate::backend::{Backend, Shared};
use crate::config::{Args, Config};
use crate::control;
use crate::device::Device;
use crate::error::FlexError;
use crate::memory::GuestFiles;
use crate::ring::Memory;
use crate::state::State;

/// A device that holds all that it needs of the host's files.
pub struct Prepared {
    hypervisor: UnixListener,
    control: UnixListener,
    shared: Arc<Shared>,
}

impl Prepared {
    /// Binds the sockets, in place of those that a killed process left, and opens the state.
    ///
    /// # Errors
    /// If the arguments make no sense, the state is of another VM or in use, or a socket cannot be made.
    pub fn new(args: &Args) -> Result<Self, FlexError> {
        let config = Config::try_from(args)?;
        let state = match &args.state {
            Some(path) => State::open(path, &config)?,
            None => State::in_memory(&config)?,
        };
        let device = Device::new(config, Arc::new(state), GuestFiles::default());
        let shared = Shared::new(device).map_err(FlexError::file(Path::new("eventfd")))?;
        let (hypervisor, of_hypervisor) = bind(&args.socket)?;
        let (control, of_control) = bind(&args.control)?;
        // Locked in, this process can remove no file: the next process that serves the VM replaces the files that it
        // leaves.
        of_hypervisor.leave();
        of_control.leave();
        Ok(Self {
            hypervisor,
            control,
            shared: Arc::new(shared),
        })
    }

    /// Serves one hypervisor until it goes away: with its VM, or because it was ordered to.
    ///
    /// # Errors
    /// If it breaks the protocol, or threads cannot be started.
    pub fn run(self) -> Result<(), FlexError> {
        let failed = |what: &str| {
            let path = Path::new(what).to_owned();
            move |source| FlexError::File { path, source }
        };
        let protocol = |error: DaemonError| FlexError::VhostUser(error.to_string());
        let backend = Backend::new(Arc::clone(&self.shared)).map_err(failed("timerfd"))?;
        let backend = Arc::new(backend);
        let memory = Memory::new(GuestMemoryMmap::new());
        let mut daemon = VhostUserDaemon::new("hypervisor".into(), Arc::clone(&backend), memory)
            .map_err(protocol)?;
        let handlers = daemon.get_epoll_handlers();
        for handler in &handlers {
            backend.listen(handler).map_err(failed("epoll"))?;
        }
        let over = EventFd::new(0).map_err(failed("eventfd"))?;
        let listening = over.try_clone().map_err(failed("eventfd"))?;
        let connected = Arc::clone(&self.shared);
        let gone = Arc::clone(&self.shared);
        let (control, shared) = (self.control, self.shared);
        let control = std::thread::Builder::new()
            .name("control".into())
            .spawn(move || control::serve(&control, &listening, &shared))
            .map_err(failed("a thread"))?;
        // The library does not hand out the connection that it accepts.
        let seen = self.hypervisor.try_clone().map_err(failed("a socket"))?;
        let mut listener = Listener::from(self.hypervisor);
        let ended = daemon.start(&mut listener).and_then(|()| {
            match accepted_peer_pid(&seen) {
                Ok(Some(pid)) => connected.set_hypervisor_pid(pid),
                Ok(None) => tracing::info!("the hypervisor is in another pid namespace"),
                Err(error) => {
                    tracing::warn!("the hypervisor's process cannot be identified: {error}")
                }
            }
            daemon.wait()
        });
        // Who serves the VM next may be there before this process is gone.
        gone.interrupt().end();
        over.write(1).map_err(failed("eventfd"))?;
        match control.join() {
            Ok(done) => done.map_err(failed("the control socket"))?,
            Err(_) => tracing::error!("the thread of the control socket panicked"),
        }
        for handler in &handlers {
            handler.send_exit_event();
        }
        match ended {
            Ok(())
            | Err(DaemonError::HandleRequest(
                VhostUserError::Disconnected | VhostUserError::PartialMessage,
            )) => Ok(()),
            Err(error) => Err(protocol(error)),
        }
    }
}

/// A socket that only this user connects to.
fn bind(path: &Path) -> Result<(UnixListener, SocketFile), FlexError> {
    Ok(listen_at(path, 0o600)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use clap::Parser as _;

    use super::*;

    fn prepared(folder: &Path) -> Result<Prepared, FlexError> {
        let path = |name: &str| folder.join(name).display().to_string();
        let (socket, control) = (path("flex"), path("control"));
        let text = [
            "terrace-hyperflex",
            "--socket",
            &socket,
            "--control",
            &control,
        ];
        let tier = ["--tier", "node=0,size=512MiB"];
        Prepared::new(&Args::parse_from(text.into_iter().chain(tier)))
    }

    #[test]
    fn a_device_replaces_dead_sockets_only() {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("control");
        let first = prepared(folder.path()).unwrap();
        let error = prepared(folder.path()).err().unwrap().to_string();
        assert!(error.contains("already listens"), "{error}");
        UnixStream::connect(&control).expect("the first one goes on");
        drop(first);
        drop(prepared(folder.path()).unwrap());
        std::fs::remove_file(&control).unwrap();
        std::fs::write(&control, "precious").unwrap();
        let error = prepared(folder.path()).err().unwrap().to_string();
        assert!(error.contains("a file and no socket"), "{error}");
        assert_eq!(std::fs::read_to_string(&control).unwrap(), "precious");
    }
}
