//! A guest with a node per tier and a HyperFlex device.
//!
//! It runs the guest driver against the product's device, and against one of the lab's own that can be made to
//! misbehave.

pub mod device;
pub mod guest;
pub mod hostile;
pub mod leased;
pub mod machine;
pub mod product;
pub mod shape;
