//! The daemon's HTTP API over a unix socket: types, paths and a client.
//!
//! Responsible for: the shape of the JSON and how to ask for it. The answers are left to `terraced`. Everything is
//! `GET` apart from the few commands that change something (`POST`). Bodies are JSON; an error is [`types::ErrorBody`]
//! with a 4xx or 5xx status.

pub mod client;
pub mod old_keys;
pub mod plain;
pub mod provision;
pub mod types;

/// The daemon's socket unless its configuration names another one.
pub const DEFAULT_SOCKET: &str = "/run/terrace/terraced.sock";
