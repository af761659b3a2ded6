//! The guest's kernel module as the agent uses it: its SCAN samples, its EXCHANGE moves pages where no node has room, its
//! MIGRATE moves the frames that a host names.
//!
//! It is always optional: what it does not do is done by `move_pages(2)` and DAMON, or is left.

use std::sync::Arc;

use terrace_sys::guest_module::{GuestModule, ModuleError};
use terrace_sys::{HostRoot, KernelPages, MoveOutcome, MoveTo, Pages, SysError};

/// Place of a call in what the module reports.
#[derive(Clone, Copy, Debug)]
enum CallName {
    Scan = 0,
    Exchange = 2,
    Migrate = 3,
}

/// The parts of the module that the agent uses, each by a descriptor of its own: a call waits for another one of the same
/// descriptor. Opening takes `CAP_SYS_ADMIN`, which the agent drops.
#[derive(Clone, Debug)]
pub struct ModuleParts {
    /// For samples; or why not.
    pub scan: Result<Arc<GuestModule>, String>,
    /// For exchanges in place; or why not.
    pub exchange: Result<Arc<GuestModule>, String>,
    /// For frames that a host names; or why not.
    pub migrate: Result<Arc<GuestModule>, String>,
}

impl ModuleParts {
    /// Opens the module, if it is loaded and wanted.
    #[must_use]
    pub fn open(root: &HostRoot, wanted: bool) -> Self {
        if !wanted {
            return Self::without("the configuration switches it off (module = false)");
        }
        Self {
            scan: part(root, CallName::Scan),
            exchange: part(root, CallName::Exchange),
            migrate: part(root, CallName::Migrate),
        }
    }

    /// No module, for this reason.
    #[must_use]
    pub fn without(reason: &str) -> Self {
        Self {
            scan: Err(reason.to_owned()),
            exchange: Err(reason.to_owned()),
            migrate: Err(reason.to_owned()),
        }
    }
}

fn part(root: &HostRoot, call: CallName) -> Result<Arc<GuestModule>, String> {
    let module = GuestModule::open(root).map_err(|error| match error {
        ModuleError::NotLoaded => format!("{error} (the agent looks for it when it starts)"),
        _ => error.to_string(),
    })?;
    let states = module.states().map_err(|error| error.to_string())?;
    match states.get(call as usize) {
        Some(state) => match &state.missing {
            None => Ok(Arc::new(module)),
            Some(why) => Err(format!("{} of the module: {why}", state.name)),
        },
        None => Err("the module does not report its calls".into()),
    }
}

/// The kernel's `move_pages(2)`, and of the module's calls to move pages those that work.
#[derive(Debug)]
pub struct GuestPages {
    kernel: KernelPages,
    exchange: Result<Arc<GuestModule>, String>,
    migrate: Result<Arc<GuestModule>, String>,
}

impl GuestPages {
    /// With the module's calls, if they are there.
    #[must_use]
    pub fn new(parts: &ModuleParts) -> Self {
        Self {
            kernel: KernelPages,
            exchange: parts.exchange.clone(),
            migrate: parts.migrate.clone(),
        }
    }
}

impl Pages for GuestPages {
    fn call(
        &self,
        pid: u32,
        addresses: &[u64],
        to: Option<MoveTo>,
        status: &mut [i32],
    ) -> Result<MoveOutcome, SysError> {
        self.kernel.call(pid, addresses, to, status)
    }

    fn swaps(&self) -> Result<(), String> {
        self.exchange.as_ref().map(drop).map_err(Clone::clone)
    }

    fn swap(
        &self,
        up: (u32, &[u64]),
        down: (u32, &[u64]),
        status: &mut [i32],
    ) -> Result<(), SysError> {
        match &self.exchange {
            Ok(module) => module.exchange(up, down, status).map(drop),
            Err(_) => self.kernel.swap(up, down, status),
        }
    }

    fn migrates(&self) -> Result<(), String> {
        self.migrate.as_ref().map(drop).map_err(Clone::clone)
    }

    fn migrate(&self, node: u32, frames: &[u64], status: &mut [i32]) -> Result<(), SysError> {
        match &self.migrate {
            Ok(module) => module.migrate(node, frames, status),
            Err(_) => self.kernel.migrate(node, frames, status),
        }
    }
}
