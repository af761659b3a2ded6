//! The traces that a device leaves behind when it ends.

use std::path::Path;

use terrace_hyperflex::State;
use terrace_hyperflex::config::Config;

use terrace_testkit::front_end::wait_for;

/// The state that a device left. A child that another test forks has the file for a moment, and so its lock.
pub fn left_state(path: &Path, config: &Config) -> State {
    let mut state = None;
    wait_for("the state", || {
        state = State::open(path, config).ok();
        state.is_some()
    });
    state.unwrap()
}
