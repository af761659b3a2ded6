//! A guest with a node per tier on a QEMU without any device of ours, and the daemon beside it: resizing by
//! virtio-mem and by the balloon, and memory that is plugged in and out.

pub mod guest;
pub mod machine;
