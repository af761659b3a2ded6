//! The sizes of a VM over time, in a line.

use terrace_sim::{SizeAt, VmResult};

use crate::render;

/// A line with the first, last, least and most size of a VM and the number of orders; none if nothing resized it after it
/// had booted.
pub fn line(vm: &VmResult) -> Option<String> {
    let device = vm
        .provision
        .as_ref()
        .filter(|device| device.was_resized())?;
    let sizes = || device.sizes_after_boot().map(SizeAt::whole_bytes);
    let first = device.orders.get(1)?.from_bytes.iter().sum();
    let last = device.given_bytes.iter().sum();
    let least = sizes().chain([first, last]).min().unwrap_or(last);
    let most = sizes().chain([first, last]).max().unwrap_or(last);
    let orders = device.orders.len() as u64 - 1 + device.more_orders;
    Some(format!(
        "{}, {}: {} at first, {} at last, {} at least, {} at most; orders for its size: {orders}",
        vm.policy,
        vm.name,
        render::bytes(first),
        render::bytes(last),
        render::bytes(least),
        render::bytes(most),
    ))
}
