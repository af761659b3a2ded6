//! Guests that are started on this machine, without an L1 around them, and the product beside them.

pub mod balanced;
pub mod beside;
pub mod flex;
pub mod module;
pub mod plain;
pub mod stock;
pub mod tiered;
