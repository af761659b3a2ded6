//! Random streams: one for each use, so that no use disturbs another.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

/// The purpose of a random stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The choice of hot pages, and the locations of objects.
    Layout,
    /// The choice of the objects that are accessed.
    Accesses,
    /// The choice between reads and writes.
    Writes,
    /// The positions of VMs' memory in the host's.
    HostMemory,
    /// The choices of a mechanism that samples pages at random.
    Monitoring,
}

/// The generator of (seed, VM, vCPU, purpose): Xoshiro256++. The VM counts by its name, so adding another changes
/// nothing. Streams that a VM's vCPUs share (its layout) take vCPU 0.
#[must_use]
pub fn stream(seed: u64, vm: &str, vcpu: u32, purpose: Purpose) -> Xoshiro256PlusPlus {
    let mut hash = mix(seed ^ 0x7465_7272_6163_6531);
    for byte in vm.bytes() {
        hash = mix(hash ^ u64::from(byte));
    }
    let purpose = match purpose {
        Purpose::Layout => 1,
        Purpose::Accesses => 2,
        Purpose::Writes => 3,
        Purpose::HostMemory => 4,
        Purpose::Monitoring => 5,
    };
    hash = mix(hash ^ u64::from(vcpu) << 8 ^ purpose << 48);
    Xoshiro256PlusPlus::seed_from_u64(hash)
}

/// A bijection of 64 bits in which each bit of the result depends on all bits (the finalizer of
/// SplitMix64, Steele et al. 2014).
#[must_use]
pub fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ x >> 31
}
