mod frozen;
mod remapped;

use std::time::Duration;

use terrace_config::WriteSource;
use terrace_host::tracker::Tracker;
use terrace_host::vm::Vm;

use super::observer::WriteConfig;
use super::{Context, Observer};

/// What observes a VM of which no writes are found out.
fn reads_only(context: &Context, vm: Vm, tracker: Tracker) -> Observer {
    let writes = WriteConfig {
        source: WriteSource::None,
        pause_budget: Duration::ZERO,
        windows: 8,
    };
    Observer::new(context, vm, tracker, writes)
}
