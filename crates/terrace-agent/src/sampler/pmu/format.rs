//! The kernel's description of a PMU below `/sys/bus/event_source/devices`
//! (`Documentation/ABI/testing/sysfs-bus-event_source-devices-format`).

use terrace_sys::perf::EventAttr;

/// Puts a value into the bits that a format such as `config:0-7,32-35` names, lowest bits first. `None` if the format
/// makes no sense or has too few bits.
pub fn put_field(format: &str, value: u64, attr: &mut EventAttr) -> Option<()> {
    let (word, ranges) = format.trim().split_once(':')?;
    let mut bits = 0;
    let mut rest = value;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        let width = last.checked_sub(first)?.checked_add(1)?;
        if last > 63 {
            return None;
        }
        let mask = u64::MAX >> (64 - width);
        bits |= (rest & mask) << first;
        rest = rest.checked_shr(width).unwrap_or(0);
    }
    let target = match word {
        "config" => &mut attr.config,
        "config1" => &mut attr.config1,
        "config2" => &mut attr.config2,
        _ => return None,
    };
    *target |= bits;
    (rest == 0).then_some(())
}

/// Names and values of an event such as `event=0x03,umask=0x82`; a name alone is 1.
pub fn terms(event: &str) -> Option<Vec<(&str, u64)>> {
    let term = |term: &'_ str| -> Option<(usize, u64)> {
        let (name, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16),
            None => value.parse(),
        };
        Some((name.len(), value.ok()?))
    };
    let mut found = Vec::new();
    for part in event.trim().split(',') {
        let (name, value) = term(part)?;
        found.push((&part[..name], value));
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(format: &str, value: u64) -> Option<EventAttr> {
        let mut attr = EventAttr::default();
        put_field(format, value, &mut attr).map(|()| attr)
    }

    #[test]
    fn values_go_where_the_format_says() {
        assert_eq!(placed("config:0-7\n", 0xcd).unwrap().config, 0xcd);
        assert_eq!(placed("config:8-15", 0x82).unwrap().config, 0x8200);
        assert_eq!(placed("config1:0-15", 80).unwrap().config1, 80);
        assert_eq!(placed("config:19", 1).unwrap().config, 1 << 19);
        let split = placed("config:0-7,32-35", 0xa76).unwrap();
        assert_eq!(split.config, 0xa_0000_0076);
        let whole = placed("config2:0-63", u64::MAX).unwrap();
        assert_eq!(whole.config2, u64::MAX);
    }

    #[test]
    fn formats_that_make_no_sense_or_are_too_narrow_are_refused() {
        for format in [
            "",
            "config",
            "config:",
            "config:7-0",
            "config:0-64",
            "config:x",
            "config9:0-7",
            "config:0-7,",
            "config:4294967295-4294967295",
        ] {
            assert_eq!(placed(format, 1), None, "{format}");
        }
        assert_eq!(placed("config:0-7", 0x100), None);
    }

    #[test]
    fn an_event_is_taken_apart() {
        let aux = terms("event=0x03,umask=0x82\n");
        assert_eq!(aux, Some(vec![("event", 3), ("umask", 0x82)]));
        assert_eq!(terms("edge,inv=0"), Some(vec![("edge", 1), ("inv", 0)]));
        assert_eq!(terms("event=0xzz"), None);
        assert_eq!(terms("event="), None);
    }
}
