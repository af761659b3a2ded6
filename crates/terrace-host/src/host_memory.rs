//! The host's memory as a whole: how much of it is available, and whether tasks wait for it.

use terrace_proto::HostMemory;

use crate::HostRoot;

/// The host's memory now; `None` if the kernel does not say.
#[must_use]
pub fn host_memory(root: &HostRoot) -> Option<HostMemory> {
    let text = root.read("proc/meminfo").ok()?;
    Some(HostMemory {
        total_bytes: meminfo_bytes(&text, "MemTotal:")?,
        available_bytes: meminfo_bytes(&text, "MemAvailable:")?,
        waits_centi: root
            .read("proc/pressure/memory")
            .ok()
            .and_then(|text| waits_centi(&text)),
    })
}

/// Swap of the host, bytes; `None` if the kernel does not say.
#[must_use]
pub fn host_swap_bytes(root: &HostRoot) -> Option<u64> {
    meminfo_bytes(&root.read("proc/meminfo").ok()?, "SwapTotal:")
}

/// A line of /proc/meminfo, bytes.
pub(crate) fn meminfo_bytes(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// `some avg10` of a file of /proc/pressure, hundredths of a percent.
fn waits_centi(text: &str) -> Option<u32> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let mut values = line.split_whitespace();
    let percent = values.find_map(|value| value.strip_prefix("avg10="))?;
    let (whole, hundredths) = percent.split_once('.')?;
    let hundredths: u32 = hundredths.parse().ok().filter(|of| *of < 100)?;
    let whole: u32 = whole.parse().ok().filter(|of| *of <= 100)?;
    Some(whole * 100 + hundredths)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(meminfo: &str, pressure: Option<&str>) -> Option<HostMemory> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/pressure")).unwrap();
        std::fs::write(folder.path().join("proc/meminfo"), meminfo).unwrap();
        if let Some(pressure) = pressure {
            std::fs::write(folder.path().join("proc/pressure/memory"), pressure).unwrap();
        }
        host_memory(&HostRoot::new(folder.path()))
    }

    #[test]
    fn both_files_are_read() {
        let meminfo = "MemTotal:       16000 kB\nMemFree: 1 kB\nMemAvailable:    2000 kB\n";
        let pressure = "some avg10=12.05 avg60=1.00 avg300=0.00 total=5\nfull avg10=99.00 avg60=0.00 avg300=0.00 total=0\n";
        let expected = HostMemory {
            total_bytes: 16_000 << 10,
            available_bytes: 2_000 << 10,
            waits_centi: Some(1205),
        };
        assert_eq!(read(meminfo, Some(pressure)), Some(expected));
        let without = HostMemory {
            waits_centi: None,
            ..expected
        };
        assert_eq!(read(meminfo, None), Some(without));
    }

    #[test]
    fn files_of_another_form_say_nothing() {
        for meminfo in [
            "",
            "MemTotal: 5 kB\n",
            "MemTotal: 5 kB\nMemAvailable: -3 kB\n",
        ] {
            assert_eq!(read(meminfo, None), None, "{meminfo}");
        }
        let meminfo = "MemTotal: 5 kB\nMemAvailable: 3 kB\n";
        for pressure in [
            "",
            "some",
            "some avg10=x.1",
            "some avg10=101.00",
            "some avg10=1.999",
            "some avg10=5",
        ] {
            let waits = read(meminfo, Some(pressure)).unwrap().waits_centi;
            assert_eq!(waits, None, "{pressure}");
        }
    }
}
