//! A test of the lab.

use std::panic::{AssertUnwindSafe, catch_unwind};

use anyhow::{Result, anyhow};

use super::runner::On;
use crate::control::lab::Lab;
use crate::machine::slow_node;

/// The function of a test in L1.
pub type InL1 = fn(&mut Lab) -> Result<()>;
/// The function of a test that starts a guest of its own.
pub type OnGuest = fn() -> Result<()>;

/// A test, named as a behaviour.
pub struct Test {
    pub name: &'static str,
    pub needs: Needs,
    pub boot: Boot,
}

/// The conditions that a test needs before it begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    Nothing,
    /// The product's programs in L1.
    Product,
    /// The same, and an emulator that counts misses by node.
    Counters,
    /// A view of every process there is.
    EveryProcess,
}

/// The machine on which a test runs, and its function.
#[derive(Clone, Copy)]
pub enum Boot {
    /// A lab that was not used before.
    L1(InL1),
    /// A guest of this machine, which the test starts itself.
    Guest(OnGuest),
}

impl Needs {
    /// Whether this machine has it, as far as it is not installed.
    ///
    /// # Errors
    /// If it has not; the message is the reason.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Counters => slow_node::api().map(drop),
            _ => Ok(()),
        }
    }

    /// Whether the product's programs are in L1.
    pub fn has_product(self) -> bool {
        matches!(self, Self::Product | Self::Counters)
    }
}

impl Test {
    /// A test that starts a guest of its own.
    pub const fn on_guest(name: &'static str, run: OnGuest) -> Self {
        Self {
            name,
            needs: Needs::Nothing,
            boot: Boot::Guest(run),
        }
    }

    /// The machine that it runs on.
    pub fn on(&self) -> On {
        match self.boot {
            Boot::L1(_) => On::L1,
            Boot::Guest(_) => On::Guests,
        }
    }
}

/// Runs a test's function; an assertion in it fails this test, not the run.
pub fn caught(run: impl FnOnce() -> Result<()>) -> Result<()> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|panic| Err(anyhow!("panic: {}", message(panic.as_ref()))))
}

fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("(no message)")
}
