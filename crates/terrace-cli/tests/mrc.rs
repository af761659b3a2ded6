//! `terrace mrc` as it is used: table, JSON, picture, comparison, messages and exit codes.

use std::path::Path;
use std::process::{Command, Output};

fn mrc(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .arg("mrc")
        .args(args)
        .output()
        .expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(args: &[&str]) -> String {
    let output = mrc(args);
    assert!(output.status.success(), "{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn json(args: &[&str]) -> serde_json::Value {
    serde_json::from_str(&printed(&[args, &["--json", "-"]].concat())).expect("JSON")
}

fn cut(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces");
    root.join(format!("{name}.trace.zst")).display().to_string()
}

/// A trace of so many loads, one line each.
fn lackey(folder: &Path, addresses: &[u64]) -> String {
    let lines = addresses.iter().map(|addr| format!(" L {addr:08x},8\n"));
    let file = folder.join("small.trace");
    std::fs::write(&file, lines.collect::<String>()).expect("a file");
    file.display().to_string()
}

#[test]
fn json_has_a_point_for_each_size_up_to_the_footprint() {
    let folder = tempfile::tempdir().expect("a folder");
    // Pages a, b, a, c, b, a: a again at distance 1, b at 2, a at 2. The last access crosses into a page of its own.
    let trace = lackey(
        folder.path(),
        &[0x1000, 0x2000, 0x1800, 0x8000, 0x2fff, 0x1ffc],
    );
    let found = json(&[&trace]);
    assert_eq!(found["source"], "exact");
    assert_eq!(
        (&found["accesses"], &found["footprint_pages"]),
        (&6.into(), &3.into())
    );
    let points = found["points"].as_array().expect("points");
    let misses: Vec<_> = points
        .iter()
        .map(|p| {
            (
                p["pages"].as_u64(),
                p["bytes"].as_u64(),
                p["miss_ratio"].as_f64(),
            )
        })
        .collect();
    let point = |pages: u64, misses: f64| (Some(pages), Some(pages * 4096), Some(misses / 6.0));
    assert_eq!(misses, [point(1, 6.0), point(2, 5.0), point(3, 3.0)]);
    let huge = json(&[&trace, "--page", "2MiB"]);
    assert_eq!(huge["points"].as_array().expect("points").len(), 1);
    assert_eq!(huge["points"][0]["bytes"], 2 << 20);
}

#[test]
fn a_table_says_which_sizes_are_enough() {
    let text = printed(&[&cut("redis")]);
    for part in [
        "redis.trace.zst: lackey, pages of 4 KiB\n",
        "accesses     60741; 0 broken records left out\n",
        "footprint    4836 pages (18.8 MiB); their first accesses, 8.0 % of all, miss at each size\n",
        "MISSES UP TO  EXACT",
        "50 %  13 pages (52 KiB)",
        "10 %  239 pages (956 KiB)",
        "1 %  no size (8.0 % are first accesses)",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

#[test]
fn a_comparison_has_three_curves_in_text_json_and_picture() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("sort.svg").display().to_string();
    let text = printed(&[&cut("sort"), "--compare", "--svg", &svg]);
    for part in [
        "hot set      642 pages (2.5 MiB); 28.1 % of the accesses were outside of it (tracked)\n",
        "below 1284 pages (5 MiB), twice the hot set, the restored curve is a guess\n",
        "EXACT",
        "RESTORED",
        "SAMPLED",
        "restored: from 1284 pages (5 MiB) on, off by 0.01 points in the mean and 0.12 at most",
        "sampled: from ",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let picture = std::fs::read_to_string(&svg).expect("a picture");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for name in [
        "exact",
        "restored",
        "sampled",
        "thin: a guess",
        "100 %",
        "size of memory",
        "50 %",
        "10 MiB",
    ] {
        assert!(picture.contains(&format!("{name}\n</text>")), "{name}");
    }
    assert!(picture.contains("sort.trace.zst: accesses that miss (logarithmic), pages of 4 KiB"));
    let found = json(&[&cut("sort"), "--compare", "--hot-set", "100"]);
    assert_eq!(
        (&found["source"], &found["hot_set_pages"]),
        (&"exact".into(), &100.into())
    );
    let sources: Vec<_> = found["compared"]
        .as_array()
        .expect("curves")
        .iter()
        .map(|c| &c["source"])
        .collect();
    assert_eq!(sources, ["restored", "sampled"]);
    assert_eq!(found["compared"][0]["guess_below_pages"], 200);
}

#[test]
fn misses_with_a_size_of_memory_are_told_in_text_and_json() {
    let folder = tempfile::tempdir().expect("a folder");
    // The same accesses as above: with two pages, five of six miss; with a hundred, the first accesses alone.
    let trace = lackey(
        folder.path(),
        &[0x1000, 0x2000, 0x1800, 0x8000, 0x2fff, 0x1ffc],
    );
    let sizes = ["--at", "8KiB,400KiB,1000B"];
    let text = printed(&[&[&trace[..]], &sizes[..]].concat());
    for part in [
        "\n\nMISSES WITH",
        "\n2 pages (8 KiB)      83.3 %\n",
        "\n100 pages (400 KiB)  50.0 %\n",
        "\n0 pages (0 B)        100.0 %\n",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    let found = json(&[&[&trace[..]], &sizes[..]].concat());
    assert_eq!(found["at"][0]["bytes"], 8192);
    assert_eq!(found["at"][0]["miss_ratio"], 5.0 / 6.0);
    assert_eq!(found["at"][1]["is_guess"], false);
    assert!(json(&[&trace]).get("at").is_none());
}

#[test]
fn samples_of_perf_are_cautioned_about() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("perf.txt");
    let line = "prog 12 [001] 5.000001: mem-loads: 7f0000001000 401000 f (prog)\n";
    std::fs::write(&file, line.repeat(3)).expect("a file");
    let trace = file.display().to_string();
    let text = printed(&[&trace, "--format", "perf-script"]);
    assert!(text.contains("samples in time"), "{text}");
    assert!(!printed(&[&cut("redis")]).contains("samples in time"));
}

#[test]
fn few_pages_are_all_sampled_and_a_small_hot_set_not_restored() {
    let ratio = |found: &serde_json::Value, pages: u64| {
        let points = found["points"].as_array().expect("points").iter();
        let point = points.rev().find(|p| p["pages"].as_u64() <= Some(pages));
        point.expect("a point")["miss_ratio"].as_f64()
    };
    let (exact, sampled) = (json(&[&cut("redis")]), json(&[&cut("redis"), "--sampled"]));
    assert_eq!(sampled["source"], "sampled");
    for pages in [1, 10, 100, 1_000] {
        assert_eq!(ratio(&exact, pages), ratio(&sampled, pages), "{pages}");
    }
    let text = printed(&[&cut("redis"), "--hot-set", "20"]);
    assert!(
        text.contains("a hot set of 20 pages or fewer is not restored"),
        "{text}"
    );
    assert!(text.contains("TRACKED"), "{text}");
}

#[test]
fn what_cannot_be_done_is_told_once() {
    let output = mrc(&["no.trace"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        said(&output),
        "terrace: no.trace: No such file or directory (os error 2)\n"
    );
    let folder = tempfile::tempdir().expect("a folder");
    let trace = lackey(folder.path(), &[0x1000]);
    let svg = folder.path().join("no/such.svg").display().to_string();
    assert!(said(&mrc(&[&trace, "--svg", &svg])).contains("such.svg.partial: No such file"));
    for wrong in [
        &["--page", "1GiB"][..],
        &["--hot-set", "0"],
        &["--at", "much"],
        &["--sampled", "--compare"],
    ] {
        let output = mrc(&[&[&trace[..]], wrong].concat());
        assert_eq!(
            output.status.code(),
            Some(2),
            "{wrong:?}: {}",
            said(&output)
        );
    }
    let size = said(&mrc(&[&trace, "--hot-set", "10MiB"]));
    assert!(size.contains("a number of pages"), "{size}");
}

fn refused(args: &[&str]) -> String {
    let output = mrc(args);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(output.stdout.is_empty(), "nothing is printed");
    said(&output)
}

fn files(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<_> = files
        .map(|file| {
            file.expect("a file")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    names
}

#[test]
fn an_output_that_is_the_trace_is_refused_and_the_trace_stays() {
    let folder = tempfile::tempdir().expect("a folder");
    let trace = lackey(folder.path(), &[0x1000, 0x2000]);
    let before = std::fs::read(&trace).expect("a trace");
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::hard_link(&trace, at("hard")).expect("a link");
    std::os::unix::fs::symlink(&trace, at("soft")).expect("a link");
    for out in [trace.clone(), at("hard"), at("soft")] {
        for option in ["--json", "--svg"] {
            let error = refused(&[&trace, option, &out]);
            assert!(error.contains("is the same file as the input"), "{error}");
        }
    }
    let error = refused(&[&trace, "--json", &at("out"), "--svg", &at("out")]);
    assert!(error.contains("is the same file as the output"), "{error}");
    assert_eq!(std::fs::read(&trace).expect("it stays"), before);
    assert_eq!(files(folder.path()), ["hard", "small.trace", "soft"]);
}

#[test]
fn no_output_is_left_if_one_of_them_cannot_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let svg = folder.path().join("x.svg").display().to_string();
    let error = refused(&[&cut("redis"), "--svg", &svg, "--json", "/dev/full"]);
    assert!(
        error.contains("cannot write /dev/full: No space"),
        "{error}"
    );
    assert!(files(folder.path()).is_empty());
    let json = folder.path().join("x.json").display().to_string();
    printed(&[&cut("redis"), "--svg", &svg, "--json", &json]);
    assert_eq!(files(folder.path()), ["x.json", "x.svg"]);
}

#[test]
fn a_picture_to_a_dash_is_printed_not_a_file_of_that_name() {
    let folder = tempfile::tempdir().expect("a folder");
    let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
        .current_dir(&folder)
        .args(["mrc", &cut("redis"), "--svg", "-"])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    assert!(files(folder.path()).is_empty());
    let error = refused(&[&cut("redis"), "--svg", "-", "--json", "-"]);
    assert!(error.contains("two outputs are -"), "{error}");
}

#[test]
fn a_device_without_lines_is_refused_and_not_read_for_ever() {
    for more in [&[][..], &["--skip-broken"]] {
        let args = [&["/dev/zero", "--format", "lackey"], more].concat();
        let error = refused(&args);
        assert!(error.contains("no end within 65536 bytes"), "{error}");
    }
}

#[test]
fn a_hot_set_of_which_twice_cannot_be_counted_is_refused() {
    let of = |pages: &str| mrc(&[&cut("redis"), "--hot-set", pages]);
    let output = of("2147483648");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let text = String::from_utf8_lossy(&of("2147483647").stdout).into_owned();
    assert!(text.contains("below 4294967294 pages"), "{text}");
}
