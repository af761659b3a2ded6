//! Pictures of sizes over time, as docs/sharing.md shows them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::*;

/// Seconds of a picture.
const SECONDS: u64 = 900;
/// Pixels of a picture.
const SIZE: (u64, u64) = (760, 300);
/// Pixels from the picture's edges to those of the plot: left, top, right, bottom.
const MARGINS: (u64, u64, u64, u64) = (60, 40, 20, 40);
/// Most MiB that a picture shows.
const MOST_MIB: u64 = 3072;
/// Colours of what the first VM uses, of its size and of the other one's: told apart by people who do not tell red from
/// green, too.
const COLOURS: [&str; 3] = ["#777777", "#08519c", "#c84614"];

/// File, title and the memory in use.
type Picture = (&'static str, &'static str, fn(u64) -> u64);

/// The pictures. Each pattern begins after a minute and a half.
const PICTURES: [Picture; 6] = [
    ("step", "a step", |s| if s < 90 { 1000 } else { 2500 }),
    ("ramp", "a ramp of ten minutes", |s| {
        1000 + s.saturating_sub(90).min(600) * 5 / 2
    }),
    ("sine-2500ms", "a sine of 2.5 s", |s| from_low(s, 25)),
    ("sine-40s", "a sine of 40 s", |s| from_low(s, 400)),
    ("sine-5min", "a sine of 5 minutes", |s| from_low(s, 3000)),
    ("noise", "noise of a quarter", |s| 1700 + noise(s) % 500),
];

/// A sine after a minute and a half, from its lowest place on.
fn from_low(s: u64, period: u64) -> u64 {
    let since = s.saturating_sub(90);
    sine(since + period * 3 / 40, period)
}

fn x(second: u64) -> u64 {
    MARGINS.0 + second * (SIZE.0 - MARGINS.0 - MARGINS.2) / SECONDS
}

fn y(mib: u64) -> u64 {
    let height = SIZE.1 - MARGINS.1 - MARGINS.3;
    MARGINS.1 + height - mib.min(MOST_MIB) * height / MOST_MIB
}

/// The corners of a line that keeps each value for its second.
fn line(values: &[u64]) -> String {
    let mut path = String::new();
    let mut last = None;
    for (second, mib) in (0..).zip(values) {
        let (x, y) = (x(second), y(*mib));
        match last {
            None => write!(path, "M{x} {y}").unwrap(),
            Some(before) if before != y => write!(path, "H{x}V{y}").unwrap(),
            Some(_) => {}
        }
        last = Some(y);
    }
    path + &format!("H{}", x(SECONDS))
}

fn svg(title: &str, uses: fn(u64) -> u64) -> String {
    let mut host = Host::new(ArbiterConfig::default(), &[2 * GIB, 2 * GIB], 512 * MIB);
    let mut values = [Vec::new(), Vec::new(), Vec::new()];
    let mut dots = String::new();
    for second in 0..SECONDS {
        host.uses(1, uses(second) * MIB);
        let orders = host.orders().len();
        host.second();
        let sizes = [1, 2].map(|id| host.size(id) / MIB);
        for (value, line) in [uses(second), sizes[0], sizes[1]].iter().zip(&mut values) {
            line.push(*value);
        }
        for (id, size) in &host.orders()[orders..] {
            let (x, y, colour) = (x(second), y(size / MIB), COLOURS[*id as usize]);
            let _ = writeln!(
                dots,
                "<circle cx=\"{x}\" cy=\"{y}\" r=\"3\" fill=\"{colour}\"/>"
            );
        }
    }
    let mut lines = String::new();
    let names = [
        "used by the first VM",
        "its size",
        "size of an idle one beside it",
    ];
    for (at, ((values, colour), name)) in (0..).zip(values.iter().zip(COLOURS).zip(names)) {
        let (path, x) = (line(values), MARGINS.0 + at * 190);
        let _ = writeln!(
            lines,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n\
             <path d=\"M{x} 28h20\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{}\" y=\"32\">{name}</text>",
            x + 26
        );
    }
    let (width, height) = SIZE;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n\
         <text x=\"10\" y=\"14\">Sizes over time: {title}; a dot is an order</text>\n{}{lines}{dots}</svg>\n",
        grid()
    )
}

/// The lines of the axes, and what stands at them.
fn grid() -> String {
    let (left, right, bottom) = (x(0), x(SECONDS), y(0));
    let mut out = String::new();
    for mib in (0..=MOST_MIB).step_by(512) {
        let y = y(mib);
        let gib = format!("{}.{} GiB", mib / 1024, mib % 1024 * 10 / 1024);
        let _ = writeln!(
            out,
            "<path d=\"M{left} {y}H{right}\" stroke=\"#d7d7d7\"/><text x=\"6\" y=\"{}\">{gib}</text>",
            y + 4
        );
    }
    for second in (0..=SECONDS).step_by(100) {
        let x = x(second);
        let _ = writeln!(
            out,
            "<path d=\"M{x} {bottom}v5\" stroke=\"#777777\"/><text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{second}</text>",
            bottom + 18
        );
    }
    let _ = writeln!(
        out,
        "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">time, s</text>",
        bottom + 34
    );
    out
}

fn file(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join(format!("docs/pictures/sizes-{name}.svg"))
}

/// With `TERRACE_WRITE_PAGES=1` the pictures are drawn anew instead.
#[test]
fn the_committed_pictures_are_those_of_now() {
    for (name, title, uses) in PICTURES {
        let now = svg(title, uses);
        if std::env::var_os("TERRACE_WRITE_PAGES").is_some() {
            std::fs::write(file(name), now).unwrap();
            continue;
        }
        let there = std::fs::read_to_string(file(name)).unwrap();
        assert!(there == now, "{name}: draw anew with TERRACE_WRITE_PAGES=1");
    }
}
