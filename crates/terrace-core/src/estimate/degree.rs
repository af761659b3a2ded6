//! The page degree (vTMM §3.3.1): weighted reads and writes.
//!
//! Responsible for: the formula. It leaves to others: the weights' origin ([`crate::config`]), which
//! also holds `windows × weight` at or below 250, so that a degree fits in a byte.

/// `read · reads + write · writes` of each unit.
#[inline]
pub(super) fn degrees(read: u8, write: u8, reads: &[u8], writes: &[u8], out: &mut [u8]) {
    // The weights of the kinds of memory by name: a product with a number that the compiler knows is a sum or two.
    match (read, write) {
        (1, 1) => weigh(1, 1, reads, writes, out),
        (1, 3) => weigh(1, 3, reads, writes, out),
        (2, 3) => weigh(2, 3, reads, writes, out),
        _ => weigh(read, write, reads, writes, out),
    }
}

#[inline(always)]
fn weigh(read: u8, write: u8, reads: &[u8], writes: &[u8], out: &mut [u8]) {
    for ((out, r), w) in out.iter_mut().zip(reads).zip(writes) {
        *out = r.wrapping_mul(read).wrapping_add(w.wrapping_mul(write));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn writes_weigh_three_reads_on_persistent_memory() {
        let mut out = [0; 3];
        super::degrees(1, 3, &[8, 0, 2], &[0, 8, 1], &mut out);
        assert_eq!(out, [8, 24, 5]);
    }
}
