//! A worker's process, and how it ends without anybody waiting for it.
//!
//! A worker may be in a cgroup that was frozen, or in the middle of a fault that takes long: it then dies
//! late, or when it is thawed. It is killed, given a moment, and left to a thread that collects the dead.

use std::io;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SendError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

/// Time between two checks of workers that were killed.
const COLLECT_EVERY: Duration = Duration::from_millis(200);
/// Time for which a worker that was killed is waited for: most end at once.
const MOMENT: Duration = Duration::from_millis(50);
const GLANCE: Duration = Duration::from_millis(1);

/// A worker's process. Its number is its own until its end was collected.
#[derive(Clone, Debug)]
pub(super) struct WorkerProcess {
    pid: u32,
    child: Arc<Mutex<Child>>,
}

impl WorkerProcess {
    pub(super) fn new(child: Child) -> Self {
        Self {
            pid: child.id(),
            child: Arc::new(Mutex::new(child)),
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// The exit status of the worker, if it ended within this time.
    pub(super) fn ended_within(&self, limit: Duration) -> Option<ExitStatus> {
        let mut waited = Duration::ZERO;
        loop {
            match self.child().try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if waited < limit => {}
                Ok(None) | Err(_) => return None,
            }
            thread::sleep(GLANCE);
            waited += GLANCE;
        }
    }

    /// Has it killed and collected; returns at once. Threads that read what others send may signal no process, so
    /// another one does it.
    pub(super) fn kill(&self) {
        let collector = start_collector();
        let collector = collector.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(SendError(mut process)) = collector.send(self.clone()) {
            // If there is no such thread, the dead are collected when the daemon ends.
            process.kill_now();
        }
    }

    /// Has the worker killed, and returns its exit status if it ended in a moment.
    pub(super) fn end(&self) -> Option<ExitStatus> {
        self.kill();
        self.ended_within(MOMENT)
    }

    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A process that is to be killed and has to be collected, so that no zombie is left behind.
trait Dying: Send + 'static {
    fn kill_now(&mut self);
    fn is_over(&mut self) -> io::Result<bool>;
}

impl Dying for WorkerProcess {
    fn kill_now(&mut self) {
        // Fails only if it has ended already.
        let _ = self.child().kill();
    }

    fn is_over(&mut self) -> io::Result<bool> {
        self.child().try_wait().map(|status| status.is_some())
    }
}

static COLLECTOR: OnceLock<Mutex<Sender<WorkerProcess>>> = OnceLock::new();

/// Starts the thread that kills and collects workers, if there is none.
pub(super) fn start_collector() -> &'static Mutex<Sender<WorkerProcess>> {
    COLLECTOR.get_or_init(|| {
        let (sender, queue) = channel();
        let body = move || collect(&queue);
        // Without the thread the queue's end is gone, and the sender gets an error.
        let _ = thread::Builder::new().name("worker-end".into()).spawn(body);
        Mutex::new(sender)
    })
}

/// Kills and collects until no sender is left. One that does not end delays no other.
fn collect<T: Dying>(queue: &Receiver<T>) {
    let mut dying: Vec<T> = Vec::new();
    loop {
        let next = if dying.is_empty() {
            queue.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            queue.recv_timeout(COLLECT_EVERY)
        };
        match next {
            Ok(mut process) => {
                process.kill_now();
                dying.push(process);
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        // An error means that there is nothing to be collected.
        dying.retain_mut(|process| !process.is_over().unwrap_or(true));
    }
}

/// Ends a VM's worker from another thread, for good: none is started any more.
#[derive(Clone, Debug, Default)]
pub struct WorkerStop {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    worker: Option<(WorkerProcess, Arc<UnixStream>)>,
}

impl WorkerStop {
    /// Kills the worker, if there is one, whatever it does. A thread that waits for its answer learns that it ended,
    /// even if it is frozen and dies later.
    pub fn stop(&self) {
        let mut state = self.state();
        state.stopped = true;
        if let Some((process, socket)) = state.worker.take() {
            process.kill();
            // Fails only if it is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Takes in a worker; `false` if none may run any more.
    pub(super) fn admits(&self, process: &WorkerProcess, socket: &Arc<UnixStream>) -> bool {
        let mut state = self.state();
        let worker = (process.clone(), Arc::clone(socket));
        state.worker = Some(worker).filter(|_| !state.stopped);
        !state.stopped
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::Command;
    use std::time::Instant;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Ends when its sender asks for it, and reports that it was collected.
    struct Frozen {
        thawed: Receiver<()>,
        collected: Sender<&'static str>,
        name: &'static str,
    }

    impl Dying for Frozen {
        fn kill_now(&mut self) {}

        fn is_over(&mut self) -> io::Result<bool> {
            let over = self.thawed.try_recv().is_ok();
            if over {
                self.collected.send(self.name).unwrap();
            }
            Ok(over)
        }
    }

    #[test]
    fn a_worker_that_dies_late_delays_the_collection_of_no_other() {
        let (sender, queue) = channel();
        let (collected, names) = channel();
        let collector = thread::spawn(move || collect(&queue));
        let freeze = |name| {
            let (thaw, thawed) = channel();
            let collected = collected.clone();
            sender
                .send(Frozen {
                    thawed,
                    collected,
                    name,
                })
                .unwrap();
            thaw
        };
        let (first, second) = (freeze("first"), freeze("second"));
        second.send(()).unwrap();
        assert_eq!(names.recv_timeout(PATIENCE), Ok("second"));
        first.send(()).unwrap();
        assert_eq!(names.recv_timeout(PATIENCE), Ok("first"));
        drop(sender);
        collector.join().unwrap();
    }

    #[test]
    fn a_dead_worker_is_collected_by_itself() {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = WorkerProcess::new(child);
        assert_eq!(process.ended_within(Duration::ZERO), None);
        process.kill();
        let proc = format!("/proc/{}", process.pid());
        let begin = Instant::now();
        while std::path::Path::new(&proc).exists() {
            assert!(begin.elapsed() < PATIENCE, "a dead process is left");
            thread::sleep(GLANCE);
        }
    }

    #[test]
    fn none_is_admitted_once_it_was_stopped() {
        let sleep = || WorkerProcess::new(Command::new("sleep").arg("1000").spawn().unwrap());
        let (stop, process) = (WorkerStop::default(), sleep());
        // The other end stays open, as that of a worker that dies late.
        let (ours, _theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        let ours = Arc::new(ours);
        assert!(stop.admits(&process, &ours));
        stop.stop();
        assert_eq!((&*ours).read(&mut [0]).unwrap(), 0, "nobody waits for it");
        assert!(process.ended_within(PATIENCE).is_some(), "it was killed");
        let late = sleep();
        assert!(!stop.admits(&late, &ours));
        late.end();
    }
}
