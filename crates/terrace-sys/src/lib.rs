//! System calls and structs that no crate covers.
