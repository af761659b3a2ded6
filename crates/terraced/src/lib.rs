//! What the `terrace` command shares with the daemon: the configuration, so that it can be checked
//! without one.

pub mod config;
