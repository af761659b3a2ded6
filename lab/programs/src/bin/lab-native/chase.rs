//! A chase of pointers through memory of one node: each step waits for the one before.

use std::hint::black_box;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use terrace_lab_programs::numa;

/// A line of the cache, whose first word is the place of the next one.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u32; 16]);

/// Prints ns for each of so many steps through so many MiB that prefer a node.
pub fn chase(node: u32, mib: usize, steps: u64) -> Result<()> {
    ensure!((1..=1024).contains(&mib), "1 to 1024 MiB");
    ensure!(steps > 0, "at least one step");
    numa::prefer(node).with_context(|| format!("cannot prefer node {node}"))?;
    let lines = cycle(mib * (1 << 20) / size_of::<Line>());
    let begin = Instant::now();
    let mut at = 0;
    for _ in 0..steps {
        at = lines[at as usize].0[0];
    }
    black_box(at);
    println!("{:.1}", begin.elapsed().as_nanos() as f64 / steps as f64);
    Ok(())
}

/// Lines that lead through all of them, in a shuffled order (Sattolo's).
fn cycle(count: usize) -> Vec<Line> {
    let mut order: Vec<u32> = (0..).take(count).collect();
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    for last in (1..count).rev() {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let other = usize::try_from(random % last as u64).unwrap_or(0);
        order.swap(last, other);
    }
    let mut lines = vec![Line([0; 16]); count];
    for (line, next) in lines.iter_mut().zip(order) {
        line.0[0] = next;
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chase_comes_by_every_line_once() {
        let lines = cycle(1000);
        let mut seen = vec![false; 1000];
        let mut at = 0;
        for _ in 0..1000 {
            at = lines[at].0[0] as usize;
            assert!(!std::mem::replace(&mut seen[at], true));
        }
        assert_eq!(at, 0);
    }
}
