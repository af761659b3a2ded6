//! The daemon's HTTP API over a unix socket: types, paths and a client.
//!
//! Responsible for: what the JSON looks like and how to ask for it. It leaves to `terraced`: the
//! answers. Everything is `GET` apart from the few wishes that change something (`POST`). Bodies are
//! JSON; an error is [`types::ErrorBody`] with a 4xx or 5xx status.

pub mod client;
pub mod elastic;
pub mod plain;
pub mod types;

/// Where the daemon listens unless its configuration says otherwise.
pub const DEFAULT_SOCKET: &str = "/run/terrace/terraced.sock";
