//! Numbers and names as a page shows them.

use terrace_sim::number::float;

/// The text in place of a number that is missing or not finite.
pub const NONE: &str = "–";

/// A name as the text of an element or the value of an attribute.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c if c.is_control() && c != '\n' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// A length as a float.
pub fn length(n: usize) -> f64 {
    float(u64::try_from(n).unwrap_or(u64::MAX))
}

/// A number with so many digits after the point; [`NONE`] if it is not finite.
pub fn fixed(x: f64, digits: usize) -> String {
    if x.is_finite() {
        format!("{x:.digits$}")
    } else {
        NONE.into()
    }
}

/// Three digits or so: `0.42`, `7.35`, `152`, `12.3 k`, `4.56 M`.
pub fn short(x: f64) -> String {
    if !x.is_finite() {
        return NONE.into();
    }
    let size = x.abs();
    let units = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    let unit = units.into_iter().find(|(least, _)| size >= *least);
    let (divisor, name) = unit.unwrap_or((1.0, ""));
    let shown = x / divisor;
    let digits = match shown.abs() {
        a if a >= 100.0 => 0,
        a if a >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{shown:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{}{name}", if text == "-0" { "0" } else { text })
}

/// `83.4 %` of a share.
pub fn percent(share: f64) -> String {
    if share.is_finite() {
        format!("{:.1} %", share * 100.0)
    } else {
        NONE.into()
    }
}

/// The binary unit that fits a size: its name and bytes.
pub fn unit(bytes: u64) -> (&'static str, f64) {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let fits = |(_, shift): &(&str, u32)| bytes >= 2 << shift || bytes == 1 << shift;
    let found = units.into_iter().find(fits);
    found.map_or(("B", 1.0), |(name, shift)| (name, float(1 << shift)))
}

/// `1.5 GiB`, `48 MiB`.
pub fn bytes(n: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let found = units.into_iter().find(|(_, shift)| n >= 1 << shift);
    let (name, divisor) = found.map_or(("B", 1.0), |(name, shift)| (name, float(1 << shift)));
    format!("{} {name}", short(float(n) / divisor))
}

/// A coordinate: a tenth of a pixel is enough.
pub fn at(x: f64) -> String {
    let text = format!("{x:.1}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    if text == "-0" {
        "0".into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_become_markup() {
        let text = escaped("<b a=\"1\" c='2'>&\u{0}\n");
        assert_eq!(
            text,
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;\u{fffd}\n"
        );
    }

    #[test]
    fn numbers_are_short_and_keep_their_size() {
        let shown = [
            0.0, 0.416, 7.0, 99.96, 152.4, 12_340.0, 4.56e6, 3e13, -2500.0,
        ]
        .map(short);
        let want = [
            "0", "0.42", "7", "100", "152", "12.3 k", "4.56 M", "30 T", "-2.5 k",
        ];
        assert_eq!(shown, want);
        assert_eq!(short(f64::NAN), NONE);
        assert_eq!(fixed(f64::INFINITY, 2), NONE);
        assert_eq!(percent(0.8341), "83.4 %");
        assert_eq!(percent(f64::NAN), NONE);
    }

    #[test]
    fn sizes_have_binary_units() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(bytes(100), "100 B");
        assert_eq!(unit(40 << 30).0, "GiB");
        assert_eq!(unit(1 << 30).0, "GiB");
        assert_eq!(unit(3 << 29).0, "MiB", "axes avoid fractions");
    }
}
