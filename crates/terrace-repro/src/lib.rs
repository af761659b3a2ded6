//! Uses of simulated runs: comparing them, choosing a size, reporting them, and the papers' figures.
//!
//! Responsible for: runs side by side ([`compare`]), policies over several scenarios ([`judge`]), the cheapest size that is good enough ([`choice`]), the page that
//! shows them ([`report`]) and the papers' experiments ([`repro`]). It leaves to others: a run itself
//! ([`terrace_sim`]), the command line and the terminal.

pub mod choice;
pub mod compare;
pub mod judge;
pub mod report;
pub mod repro;
