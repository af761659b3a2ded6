//! The figures of all methods.

use serde::Serialize;

use super::watch::Measured;

/// The report of one run: the figures of every method.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub kernel: String,
    pub window_s: u64,
    pub methods: Vec<MethodReport>,
}

/// One method's figures, a window for each hot set.
#[derive(Debug, Serialize)]
pub struct MethodReport {
    pub name: &'static str,
    /// Pages of the guest on the fast node when the first window began.
    pub fast_at_start: usize,
    pub windows: Vec<Measured>,
}

/// The hot sets, in the order in which the guest gets them, and the command that sets each: `None` for the first.
pub const HOT_SETS: [(&str, Option<&str>); 3] = [
    ("scattered, first", None),
    ("scattered, moved", Some("move 99")),
    ("contiguous, moved", Some("move 7 clustered")),
];
