//! Tests of files and texts that are not scenarios at all.

use proptest::prelude::*;
use terrace_sim::Scenario;

use super::{FULL, MINIMAL, parse};

#[test]
fn a_text_that_is_no_toml_is_refused() {
    let error = parse("[machine]\ntiers = = 3\n").expect_err("no TOML");
    assert!(error.starts_with("/s/test.toml:2: "), "{error}");
    let deep = format!("x = {}", "[".repeat(100_000));
    parse(&deep).expect_err("too deep");
    let dotted = format!("{} = 1", vec!["a"; 50_000].join("."));
    parse(&dotted).expect_err("too deep");
}

#[test]
fn a_file_that_cannot_be_read_is_refused() {
    let dir = std::env::temp_dir().join(format!("terrace-scenario-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let load = |name: &str| Scenario::load(&dir.join(name)).map_err(|e| e.to_string());
    assert!(
        load("none.toml")
            .expect_err("none")
            .contains("none.toml: cannot be read: No such file")
    );
    assert!(load("").expect_err("a folder").contains("cannot be read"));
    std::fs::write(dir.join("latin.toml"), b"# caf\xe9\n").expect("a file");
    assert!(
        load("latin.toml")
            .expect_err("latin")
            .contains("not UTF-8 at byte 5")
    );
    std::fs::write(dir.join("long.toml"), "#".repeat(10 << 20)).expect("a file");
    assert!(
        load("long.toml")
            .expect_err("long")
            .contains("longer than 1 MiB")
    );
    std::fs::write(dir.join("good.toml"), MINIMAL).expect("a file");
    let good = load("good.toml").expect("valid");
    assert_eq!(
        (good.name.as_str(), good.folder.as_path()),
        ("good", dir.as_path())
    );
    std::fs::remove_dir_all(&dir).expect("removed");
}

/// Values that often break parsers.
const NASTY: [&str; 14] = [
    "nan",
    "-inf",
    "-1",
    "0",
    "9223372036854775807",
    "1e308",
    "\"\"",
    "\"-1GiB\"",
    "\"16777215TiB\"",
    "\"0.5B\"",
    "[]",
    "{}",
    "\"\\u0000\"",
    "[[[]]]",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_text_panics(
        full: bool,
        edits in prop::collection::vec((0.0..1.0_f64, 0usize..NASTY.len() + 3), 1..5),
    ) {
        let mut text = (if full { FULL } else { MINIMAL }).to_owned();
        for (place, what) in edits {
            let lines: Vec<&str> = text.lines().collect();
            let last = f64::from(u32::try_from(lines.len().max(1) - 1).expect("few"));
            let at = (0..lines.len()).find(|i| f64::from(u32::try_from(*i).expect("few")) >= place * last);
            let Some(at) = at else { continue };
            let mut out: Vec<String> = lines.iter().map(|l| (*l).to_owned()).collect();
            match what.checked_sub(NASTY.len()) {
                None => if let Some((key, _)) = lines[at].split_once('=') {
                    out[at] = format!("{key}= {}", NASTY[what]);
                },
                Some(0) => { out.remove(at); }
                Some(1) => out.insert(at, lines[at].to_owned()),
                Some(_) => { let half = out[at].chars().count() / 2; out[at] = out[at].chars().take(half).collect(); }
            }
            text = out.join("\n");
        }
        if let Err(error) = parse(&text) {
            prop_assert_eq!(error.lines().count(), 1);
            prop_assert!(error.starts_with("/s/test.toml:"), "{}", error);
        }
    }
}
