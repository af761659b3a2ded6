//! To come.

/// The page of these runs, in their order. Runs of a sweep carry its value.
#[must_use]
pub fn html(title: &str, runs: &[crate::run::Output]) -> String {
    format!("{title}: {}", runs.len())
}
