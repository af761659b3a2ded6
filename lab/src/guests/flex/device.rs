//! A guest's device, whichever it is: a process with two sockets in a folder beside the machine's.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::shape::Shape;
use crate::children::Guarded;
use crate::guests::beside::MONITORS;
use crate::guests::tiered::TIERS;
use crate::progress::Wait;
use crate::{host, places};

/// The device's socket for the guest, as seen from the machine's folder.
pub const SOCKET: &str = "../flex-device/guest";

/// The socket of a monitor of the guest's QEMU for the program that manages it, as seen from the machine's folder; the
/// only socket of its folder.
pub const MONITOR: &str = "../flex-device/monitors/qmp";

/// Names of the sockets in the device's folder.
pub const GUEST: &str = "guest";
pub const CONTROL: &str = "control";

pub const FOLDER: &str = "flex-device";

/// A device that a guest can be started with.
pub trait Device: Sized {
    /// Starts one for a guest of this shape.
    fn start(shape: &Shape) -> Result<Self>;

    /// Sets all targets, in pages of the balloons.
    fn set_targets(&mut self, pages: [u64; TIERS]) -> Result<()>;

    /// Pages in each balloon by the device's count.
    fn actual(&mut self) -> Result<Vec<u64>>;

    /// Fails if the guest asked for something that could not be right.
    fn expect_no_wrong_request(&mut self) -> Result<()>;
}

/// A device's process; it ends with this value, without a warning, or with its guest.
pub struct Running {
    child: Guarded,
    folder: PathBuf,
}

impl Running {
    /// Starts a device in an empty folder.
    pub fn start(program: &Path, arguments: &[String]) -> Result<Self> {
        let folder = places::lab("run")?.join(FOLDER);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(folder.join(MONITORS))?;
        Self::start_in(folder, program, arguments)
    }

    /// Starts a device in the folder of an earlier one.
    pub fn start_again(program: &Path, arguments: &[String]) -> Result<Self> {
        Self::start_in(places::lab("run")?.join(FOLDER), program, arguments)
    }

    /// Starts a device in a folder.
    pub fn start_in(folder: PathBuf, program: &Path, arguments: &[String]) -> Result<Self> {
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args(arguments)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("log"))?);
        let child = Guarded::spawn(&mut command)?;
        Ok(Self { child, folder })
    }

    /// Connects to the control socket, once both sockets are there.
    pub fn connect(&self) -> Result<UnixStream> {
        let mut wait = Wait::begin_silently("waiting for the device", Duration::from_secs(30));
        loop {
            self.check_alive()?;
            // Socket addresses hold 107 bytes.
            let place = File::open(&self.folder)?;
            let path = PathBuf::from(format!("/proc/self/fd/{}/{CONTROL}", place.as_raw_fd()));
            match UnixStream::connect(&path) {
                Ok(stream) if self.folder.join(GUEST).exists() => {
                    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                    return Ok(stream);
                }
                Ok(_) => wait.go_on()?,
                Err(error) => wait
                    .go_on()
                    .with_context(|| format!("connecting to the device: {error}"))?,
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Stops all threads of the device, as a host does whose storage hangs; they are still there, and so are its
    /// sockets.
    pub fn hang(&self) -> Result<()> {
        let pid = self.child.pid();
        let stopped = format!(
            "kill -STOP {pid} && while grep -qv ') T ' /proc/{pid}/task/*/stat; do sleep 0.02; done"
        );
        host::output(Command::new("sh").args(["-c", &stopped])).map(drop)
    }

    /// Lets the threads continue where they were.
    pub fn go_on(&self) -> Result<()> {
        let go_on = format!("kill -CONT {}", self.child.pid());
        host::output(Command::new("sh").args(["-c", &go_on])).map(drop)
    }

    /// Fails, with the device's log, if the device has ended.
    pub fn check_alive(&self) -> Result<()> {
        if let Some(status) = self.child.ended()? {
            bail!("the device ended ({status}): {}", self.log());
        }
        Ok(())
    }

    /// The device's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}
