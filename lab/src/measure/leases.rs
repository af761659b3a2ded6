//! `cargo xtask lab bench leases`: the cost of the daemon's pin checks.

use std::time::{Duration, Instant};

use anyhow::Result;

use super::median::median;
use crate::alone::seeing_all_processes;
use crate::guests::flex::device::Device;
use crate::guests::flex::guest::PATIENCE;
use crate::guests::flex::leased::{LEASED, Leased, SHRINK_MIB, WHOLE_MIB, with_leases};
use crate::guests::flex::shape::{BASE, HUGE, PAGE, Shape};
use crate::guests::tiered::MIB;
use crate::progress::{Wait, say};

/// Number of shrinks of which the median counts.
const ROUNDS: usize = 3;

/// Time between two questions to the device whether it is done.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Prints the cost of a lease.
pub fn run() -> Result<()> {
    seeing_all_processes(&["lab", "bench", "leases"], || with_leases(Leased::measure))
}

impl Leased {
    /// Prints the cost of a lease: the same shrink with one and without.
    fn measure(&mut self) -> Result<()> {
        for (pages, orders) in [("4 KiB", BASE), ("4 KiB and 2 MiB", BASE | HUGE)] {
            let mut seconds = [0.0; 2];
            for (seconds, is_leased) in seconds.iter_mut().zip([true, false]) {
                let shape = Shape {
                    orders,
                    is_leased,
                    ..LEASED
                };
                self.guest.device.start_again_as(&shape)?;
                self.guest.replug()?;
                self.wait_until_ordered_about()?;
                let mut times = Vec::new();
                for _ in 0..ROUNDS {
                    times.push(self.time_shrink()?);
                }
                say(&format!(
                    "pages of {pages}, leased: {is_leased}: {times:.3?} s"
                ));
                *seconds = median(times);
            }
            let [leased, free] = seconds;
            let rate = |seconds: f64| SHRINK_MIB as f64 / seconds;
            println!(
                "{SHRINK_MIB} MiB by pages of {pages}: {leased:.3} s ({:.0} MiB/s) under leases, {free:.3} s ({:.0} MiB/s) \
                 with --nobody-pins; median of {ROUNDS}",
                rate(leased),
                rate(free)
            );
        }
        Ok(())
    }

    /// Waits until the daemon orders the device again, which was started anew.
    fn wait_until_ordered_about(&mut self) -> Result<()> {
        let daemon = &self.daemon;
        self.guest
            .until("the daemon orders the new device about", |_| {
                Ok(daemon.resize(Some(WHOLE_MIB), Some(WHOLE_MIB)).is_ok())
            })?;
        self.guest.wait_for([0, 0])
    }

    /// Seconds from the order until the device has all of it.
    fn time_shrink(&mut self) -> Result<f64> {
        self.guest.touch()?;
        let target = [SHRINK_MIB * MIB / PAGE, 0];
        let begin = Instant::now();
        self.daemon.resize(Some(WHOLE_MIB - SHRINK_MIB), None)?;
        let mut wait = Wait::begin_silently("the memory is there", PATIENCE);
        while self.guest.device.actual()? != target {
            wait.go_on()?;
            std::thread::sleep(POLL_INTERVAL);
        }
        let seconds = begin.elapsed().as_secs_f64();
        self.grow()?;
        Ok(seconds)
    }
}
