//! The scanner over simulated guest memory.

mod access_history;
mod common;
mod faults;
mod freed_tables;
mod fuzz_corpus;
mod naive_walker;
mod part_attacks;
mod parts;
mod race;
mod tables;
