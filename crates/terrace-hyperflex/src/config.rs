//! An operator's description of a VM, checked: its tiers, their guest memory, and the limits.
//!
//! `Args` is the command line as it was typed; [`Config`] can only be made from it (or in code by
//! [`Config::new`]) and is valid by construction.

use std::path::PathBuf;
use std::str::FromStr;

use bytesize::ByteSize;
use terrace_sys::MAX_NODES;

use crate::abi::{MAX_TIERS, MAX_VM_PAGES, ORDER_2M, ORDER_4K, PAGE_BYTES};
use crate::error::FlexError;

const GIB: u64 = 1 << 30;

/// The address at which RAM continues above the hole for devices, on x86 machines.
const ABOVE_HOLE: u64 = 4 * GIB;

/// HyperFlex: the device through which a running VM's memory changes size, tier by tier.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "terrace-hyperflex", version, max_term_width = 100)]
pub struct Args {
    /// The socket to which the hypervisor connects (QEMU: `-chardev socket,path=…`).
    #[arg(long, value_name = "FILE")]
    pub socket: PathBuf,
    /// The control socket, for `terrace` and `terraced`.
    #[arg(long, value_name = "FILE")]
    pub control: PathBuf,
    /// File for the state that survives a restart of this process; on a tmpfs, as it is void after a restart of the
    /// host. Without it a restart loses track of the balloons.
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// One per tier, fastest first, with the guest's node: `node=0,size=4GiB`. Its addresses follow from the sizes for
    /// QEMU and Cloud Hypervisor; otherwise name them: `node=0,range=0+2GiB,range=4GiB+2GiB`. With `host-node=1` its
    /// memory comes from that node of the host as long as the node has some.
    #[arg(long = "tier", value_name = "TIER", required = true)]
    pub tiers: Vec<TierArg>,
    /// With sizes: how much RAM is below 4 GiB at most. QEMU's q35 has 2 GiB if the VM has 2.75 GiB or more,
    /// and all of it otherwise, which is the default.
    #[arg(long, value_name = "SIZE")]
    pub below_4g: Option<ByteSize>,
    /// Memory that the VM's owner pays for: the limit of each tier; the tiers together have at most twice of it.
    /// Default: no limit but the tiers' own sizes.
    #[arg(long, value_name = "SIZE")]
    pub total: Option<ByteSize>,
    /// Page sizes that are taken. If huge pages back the memory, give 2MiB alone.
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_values_t = [PageArg::Base, PageArg::Huge])]
    pub pages: Vec<PageArg>,
    /// Seconds between the guest's statistics, 0 for none.
    #[arg(long, value_name = "SECONDS", default_value_t = 5)]
    pub statistics: u32,
    /// Page queue entries (of any page size) that are taken per second, 0 for no limit.
    #[arg(long, value_name = "N", default_value_t = 1 << 18)]
    pub rate: u64,
    /// Your word that no process but the hypervisor ever pins this VM's memory (as SPDK, DPDK behind vhost-user, or
    /// users of iommufd may). Without it memory is given back only while terraced checks which processes have it, and
    /// reports that no other does.
    #[arg(long)]
    pub nobody_pins: bool,
}

/// A page size that is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum PageArg {
    /// 4 KiB.
    #[value(name = "4KiB")]
    Base,
    /// 2 MiB.
    #[value(name = "2MiB")]
    Huge,
}

impl std::fmt::Display for PageArg {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Base => "4KiB",
            Self::Huge => "2MiB",
        })
    }
}

/// `--tier` as it was typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierArg {
    node: u32,
    host_node: Option<u32>,
    place: PlaceArg,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PlaceArg {
    Size(u64),
    Ranges(Vec<GpaRange>),
}

impl FromStr for TierArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (mut node, mut host_node, mut size, mut ranges) = (None, None, None, Vec::new());
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}` is not KEY=VALUE"))?;
            match key {
                "node" => node = Some(number(key, value)?),
                "host-node" => host_node = Some(number(key, value)?),
                "size" => size = Some(bytes(value)?),
                "range" => {
                    let (start, len) = value
                        .split_once('+')
                        .ok_or_else(|| format!("range `{value}` is not START+LENGTH"))?;
                    ranges.push(GpaRange {
                        start: bytes(start)?,
                        len: bytes(len)?,
                    });
                }
                _ => return Err(format!("`{key}` is none of node, host-node, size, range")),
            }
        }
        let place = match (size, ranges.is_empty()) {
            (Some(size), true) => PlaceArg::Size(size),
            (None, false) => PlaceArg::Ranges(ranges),
            _ => return Err("a tier has either a size or ranges".into()),
        };
        let node = node.ok_or("a tier needs the guest's node: node=N")?;
        if let Some(host) = host_node.filter(|host| *host >= MAX_NODES) {
            return Err(format!(
                "host-node={host}: a host has at most {MAX_NODES} nodes"
            ));
        }
        Ok(Self {
            node,
            host_node,
            place,
        })
    }
}

fn number(key: &str, value: &str) -> Result<u32, String> {
    value.parse().map_err(|e| format!("{key} `{value}`: {e}"))
}

/// Bytes, also in hexadecimal.
fn bytes(text: &str) -> Result<u64, String> {
    if let Some(digits) = text.strip_prefix("0x") {
        return u64::from_str_radix(digits, 16).map_err(|e| format!("`{text}`: {e}"));
    }
    let size: ByteSize = text.parse().map_err(|e| format!("`{text}`: {e}"))?;
    Ok(size.as_u64())
}

/// Bytes of guest physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpaRange {
    /// First byte.
    pub start: u64,
    /// Length, bytes.
    pub len: u64,
}

/// A tier of the VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TierConfig {
    /// The guest's node.
    pub node: u32,
    /// The host's node that its memory shall come from.
    pub host_node: Option<u32>,
    /// The tier's guest memory, ascending.
    pub ranges: Vec<GpaRange>,
}

impl TierConfig {
    /// Number of the tier's pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.ranges.iter().map(|range| range.len / PAGE_BYTES).sum()
    }
}

/// Limits of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pages that the VM's owner pays for.
    pub total_pages: Option<u64>,
    /// Entries per second.
    pub entries_per_s: Option<u64>,
    /// Seconds between statistics, 0 for none.
    pub statistics_s: u32,
}

/// A device, valid by construction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    tiers: Vec<TierConfig>,
    orders: u32,
    limits: Limits,
    needs_leases: bool,
}

impl Config {
    /// A device that gives memory back without pin checks ([`Config::with_leases`]), with these tiers that takes these
    /// page orders (one bit each).
    ///
    /// # Errors
    /// If there are none or too many tiers, they overlap, or are not of whole pages of the smallest order.
    pub fn new(tiers: Vec<TierConfig>, orders: u32, limits: Limits) -> Result<Self, FlexError> {
        if tiers.is_empty() || tiers.len() > MAX_TIERS {
            let n = tiers.len();
            return Err(wrong(format!(
                "a device has 1 to {MAX_TIERS} tiers, not {n}"
            )));
        }
        let known = 1 << ORDER_4K | 1 << ORDER_2M;
        if orders == 0 || orders & !known != 0 {
            return Err(wrong("page sizes are 4KiB, 2MiB, or both".into()));
        }
        let page = PAGE_BYTES << orders.trailing_zeros();
        let mut all = Vec::new();
        for (i, tier) in tiers.iter().enumerate() {
            check_ranges(i, &tier.ranges, page)?;
            all.extend(tier.ranges.iter().copied());
        }
        all.sort_unstable_by_key(|range| range.start);
        if let Some(pair) = all.windows(2).find(|p| p[0].start + p[0].len > p[1].start) {
            let at = pair[1].start;
            return Err(wrong(format!(
                "two ranges of tiers overlap at {at:#x}: each page is of one tier"
            )));
        }
        let config = Self {
            tiers,
            orders,
            limits,
            needs_leases: false,
        };
        if config.pages() > MAX_VM_PAGES {
            return Err(wrong("a VM has at most 16 TiB".into()));
        }
        Ok(config)
    }

    /// The same configuration; if `needs_leases`, memory is given back only while a pin check finds that no other
    /// process has it.
    #[must_use]
    pub fn with_leases(self, needs_leases: bool) -> Self {
        Self {
            needs_leases,
            ..self
        }
    }

    /// Whether holes need leases.
    #[must_use]
    pub fn needs_leases(&self) -> bool {
        self.needs_leases
    }

    /// The VM's tiers, fastest first.
    #[must_use]
    pub fn tiers(&self) -> &[TierConfig] {
        &self.tiers
    }

    /// Page orders that are taken, one bit each.
    #[must_use]
    pub fn orders(&self) -> u32 {
        self.orders
    }

    /// The smallest page that is taken, bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        PAGE_BYTES << self.orders.trailing_zeros()
    }

    /// The VM's limits.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Pages of all tiers.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.tiers.iter().map(TierConfig::pages).sum()
    }

    /// Checks the sizes that the balloons shall have: each tier keeps at most the VM's total, all together twice of it.
    ///
    /// # Errors
    /// If a size is against a limit of the VM, which the error names.
    pub fn check_targets(&self, targets: &[u64]) -> Result<(), FlexError> {
        if targets.len() != self.tiers.len() {
            let (n, want) = (targets.len(), self.tiers.len());
            return Err(wrong(format!("{n} targets for {want} tiers")));
        }
        let mut sum = 0_u64;
        for (i, (tier, target)) in self.tiers.iter().zip(targets).enumerate() {
            let Some(size) = tier.pages().checked_sub(*target) else {
                let most = ByteSize(tier.pages() * PAGE_BYTES);
                return Err(wrong(format!("tier {i} has {most}")));
            };
            if let Some(total) = self.limits.total_pages.filter(|total| size > *total) {
                let total = ByteSize(total * PAGE_BYTES);
                return Err(wrong(format!("tier {i} may have {total}, the VM's total")));
            }
            sum += size;
        }
        match self.limits.total_pages {
            Some(total) if sum > total.saturating_mul(2) => {
                let most = ByteSize(total.saturating_mul(2) * PAGE_BYTES);
                Err(wrong(format!("all tiers together may have {most}")))
            }
            _ => Ok(()),
        }
    }
}

impl TryFrom<&Args> for Config {
    type Error = FlexError;

    fn try_from(args: &Args) -> Result<Self, FlexError> {
        let tiers = place_tiers(&args.tiers, args.below_4g.map(|size| size.as_u64()))?;
        let order = |page: &PageArg| match page {
            PageArg::Base => 1 << ORDER_4K,
            PageArg::Huge => 1 << ORDER_2M,
        };
        let limits = Limits {
            total_pages: args.total.map(|size| size.as_u64() / PAGE_BYTES),
            entries_per_s: Some(args.rate).filter(|rate| *rate > 0),
            statistics_s: args.statistics,
        };
        let orders = args.pages.iter().map(order).fold(0, |all, bit| all | bit);
        let config = Self::new(tiers, orders, limits)?;
        Ok(config.with_leases(!args.nobody_pins))
    }
}

fn place_tiers(args: &[TierArg], below_4g: Option<u64>) -> Result<Vec<TierConfig>, FlexError> {
    let sizes: Option<Vec<u64>> = args
        .iter()
        .map(|tier| match tier.place {
            PlaceArg::Size(size) => Some(size),
            PlaceArg::Ranges(_) => None,
        })
        .collect();
    let placed = match sizes {
        Some(sizes) => layout(&sizes, below_4g)?,
        None => args
            .iter()
            .map(|tier| match &tier.place {
                PlaceArg::Ranges(ranges) => Ok(ranges.clone()),
                PlaceArg::Size(_) => Err(wrong(
                    "give all tiers sizes, or give all of them ranges".into(),
                )),
            })
            .collect::<Result<_, _>>()?,
    };
    let tier = |(arg, mut ranges): (&TierArg, Vec<GpaRange>)| {
        ranges.sort_unstable_by_key(|range| range.start);
        TierConfig {
            node: arg.node,
            host_node: arg.host_node,
            ranges,
        }
    };
    Ok(args.iter().zip(placed).map(tier).collect())
}

/// Tiers one after the other from address 0 on, leaving out the addresses between `below_4g` and 4 GiB.
fn layout(sizes: &[u64], below_4g: Option<u64>) -> Result<Vec<Vec<GpaRange>>, FlexError> {
    let too_large = || wrong("a VM has at most 16 TiB".into());
    let total = sizes
        .iter()
        .try_fold(0_u64, |sum, size| sum.checked_add(*size))
        .filter(|total| *total <= MAX_VM_PAGES * PAGE_BYTES)
        .ok_or_else(too_large)?;
    // As QEMU's q35 does.
    let low = below_4g.unwrap_or(if total >= 11 * GIB / 4 {
        2 * GIB
    } else {
        total
    });
    if low > ABOVE_HOLE {
        return Err(wrong(
            "RAM below 4 GiB cannot be more than 4 GiB: give a smaller size".into(),
        ));
    }
    let mut at = 0;
    let mut placed = Vec::new();
    for size in sizes {
        let under = low.saturating_sub(at).min(*size);
        let over = size - under;
        let mut ranges = Vec::new();
        if under > 0 {
            ranges.push(GpaRange {
                start: at,
                len: under,
            });
        }
        if over > 0 {
            ranges.push(GpaRange {
                start: ABOVE_HOLE + (at + under - low),
                len: over,
            });
        }
        at += size;
        placed.push(ranges);
    }
    Ok(placed)
}

fn check_ranges(tier: usize, ranges: &[GpaRange], page: u64) -> Result<(), FlexError> {
    if ranges.is_empty() {
        return Err(wrong(format!("tier {tier} has no memory")));
    }
    for GpaRange { start, len } in ranges {
        let fits = start.checked_add(*len).is_some();
        if *len == 0 || !fits || start % page != 0 || len % page != 0 {
            return Err(wrong(format!(
                "tier {tier}: {start:#x}+{len:#x} is not made of whole pages of {}",
                ByteSize(page)
            )));
        }
    }
    Ok(())
}

fn wrong(why: String) -> FlexError {
    FlexError::Config(why)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn parse(options: &str) -> Result<Config, String> {
        let fixed = ["terrace-hyperflex", "--socket", "s", "--control", "c"];
        let args = Args::try_parse_from(fixed.into_iter().chain(options.split_whitespace()))
            .map_err(|e| e.to_string())?;
        Config::try_from(&args).map_err(|e| e.to_string())
    }

    fn ranges(config: &Config) -> Vec<Vec<(u64, u64)>> {
        let range = |r: &GpaRange| (r.start, r.len);
        let tier = |t: &TierConfig| t.ranges.iter().map(range).collect();
        config.tiers().iter().map(tier).collect()
    }

    #[test]
    fn sizes_are_placed_as_the_hypervisors_place_them() {
        let small = parse("--tier node=0,size=512MiB --tier node=1,size=512MiB").unwrap();
        let half = 512 << 20;
        assert_eq!(ranges(&small), [[(0, half)], [(half, half)]]);
        let large = parse("--tier node=0,size=3GiB --tier node=1,size=3GiB").unwrap();
        assert_eq!(
            ranges(&large),
            [vec![(0, 2 * GIB), (4 * GIB, GIB)], vec![(5 * GIB, 3 * GIB)]]
        );
        let said = parse("--tier node=1,range=4GiB+1GiB,range=0x100000+1MiB --pages 4KiB").unwrap();
        assert_eq!(ranges(&said), [[(0x10_0000, 1 << 20), (4 * GIB, GIB)]]);
        assert_eq!((said.tiers()[0].node, said.orders()), (1, 1));
        let placed = parse("--tier node=0,size=1GiB,host-node=3 --tier node=1,size=1GiB").unwrap();
        let hosts: Vec<_> = placed.tiers().iter().map(|tier| tier.host_node).collect();
        assert_eq!(hosts, [Some(3), None]);
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_the_reason() {
        for (options, want) in [
            ("--tier node=0,size=1GiB,range=0+1GiB", "either"),
            ("--tier size=1GiB", "node"),
            ("--tier node=0,size=1GiB,host-node=x", "host-node `x`"),
            ("--tier node=0,size=1GiB,host-node=1024", "at most 1024"),
            ("--tier node=0,size=1000", "whole pages"),
            ("--tier node=0,size=32TiB", "16 TiB"),
            ("--tier node=0,size=1GiB --tier node=1,range=0+1GiB", "all"),
            (
                "--tier node=0,range=0+1GiB --tier node=1,range=512MiB+1GiB",
                "overlap",
            ),
            (
                "--tier node=0,size=6MiB --pages 2MiB --below-4g 5MiB",
                "whole pages",
            ),
            ("--tier node=0,range=0xffffffffffe00000+4MiB", "whole pages"),
            ("--tier node=0,size=0", "no memory"),
            ("--tier node=0,size=8GiB --below-4g 5GiB", "more than 4 GiB"),
        ] {
            let error = parse(options).unwrap_err();
            assert!(error.contains(want), "{options}: {error}");
        }
        let five = "--tier node=0,size=1GiB ".repeat(5);
        assert!(parse(&five).unwrap_err().contains("1 to 4"));
    }

    #[test]
    fn targets_leave_each_tier_at_most_the_total() {
        let config = parse(
            "--total 1GiB --tier node=0,size=1GiB --tier node=1,size=2GiB --tier node=2,size=1GiB",
        )
        .unwrap();
        let gib = GIB / PAGE_BYTES;
        let check = |targets: &[u64]| config.check_targets(targets).map_err(|e| e.to_string());
        assert_eq!(check(&[gib, gib, 0]), Ok(()));
        assert_eq!(check(&[gib, 2 * gib, gib]), Ok(()));
        assert!(check(&[0, gib, 0]).unwrap_err().contains("together"));
        assert!(
            check(&[0, gib - 1, gib])
                .unwrap_err()
                .contains("tier 1 may")
        );
        assert!(
            check(&[gib + 1, gib, 0])
                .unwrap_err()
                .contains("tier 0 has")
        );
        assert!(check(&[0]).is_err());
    }
}
