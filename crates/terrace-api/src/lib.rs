//! HTTP types and client of the daemon's API.
