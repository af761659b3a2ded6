//! `terrace trace` as it is used: figures, conversion there and back, messages and exit codes.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn terrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .arg("trace")
        .args(args)
        .output()
        .expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{}", said(output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn cut(name: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces");
    root.join(format!("{name}.trace.zst")).display().to_string()
}

/// A file name in a new folder.
fn file(name: &str) -> (tempfile::TempDir, PathBuf, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join(name);
    let text = path.display().to_string();
    (folder, path, text)
}

fn info(file: &str) -> serde_json::Value {
    serde_json::from_str(&printed(&terrace(&["info", file, "--json", "-"]))).expect("JSON")
}

#[test]
fn a_file_that_is_not_there_is_told_once() {
    let output = terrace(&["info", "no.trace"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        said(&output),
        "terrace: no.trace: No such file or directory (os error 2)\n"
    );
}

#[test]
fn info_says_what_a_cut_holds_in_words_and_in_json() {
    let (_folder, path, json) = file("info.json");
    let message = printed(&terrace(&["info", &cut("redis"), "--json", &json]));
    for part in [
        "redis.trace.zst: lackey\n",
        "records      60741: loads 41753 (68.7 %), stores 18988 (31.3 %), modifies 0 (0.0 %)\n",
        "touched      4836 pages of 4 KiB (18.8 MiB) in 108 regions of 2 MiB; 671 pages are written",
        "0 broken ones; 13 records cross",
        "hottest page 31.6 % of the records; 33.2 % are not on the 16 hottest\n",
        "████",
        "\n   1       697 ",
    ] {
        assert!(message.contains(part), "{part} is not in\n{message}");
    }
    let value = info(&cut("redis"));
    assert_eq!(value["touched_pages"], 4836);
    assert_eq!(value["format"], "lackey");
    assert_eq!(value["tenths"][0], 697);
    let written = std::fs::read(path).expect("a file");
    let written: serde_json::Value = serde_json::from_slice(&written).expect("JSON");
    assert_eq!(written, value);
}

#[test]
fn a_trace_converted_there_and_back_has_the_same_pages() {
    let (_folder, _, objects) = file("objects");
    let (_other, _, back) = file("back.zst");
    printed(&terrace(&[
        "convert",
        &cut("gap-pr"),
        &objects,
        "--to",
        "oraclegeneral",
    ]));
    printed(&terrace(&[
        "convert",
        &objects,
        &back,
        "--to",
        "lackey-zst",
    ]));
    let (before, after) = (info(&cut("gap-pr")), info(&back));
    for key in [
        "records",
        "touched_pages",
        "hottest",
        "without_16",
        "tenths",
    ] {
        assert_eq!(before[key], after[key], "{key}");
    }
    assert_eq!(info(&objects)["format"], "oraclegeneral");
}

#[test]
fn parts_and_a_cache_are_taken_as_asked() {
    let (_folder, path, out) = file("part");
    for (args, records) in [
        (&["--every", "1000"][..], 61),
        (&["--first", "77"], 77),
        (&["--cache", "1MiB"], 8312),
        (&["--cache", "1MiB", "--every", "3"], 2771),
    ] {
        let source = cut("redis");
        let args = [&["convert", &source, &out, "--to", "lackey"], args].concat();
        let report = printed(&terrace(&args));
        assert!(
            report.contains(&format!("{records} written as lackey")),
            "{report}"
        );
        let text = std::fs::read_to_string(&path).expect("a trace");
        assert_eq!(text.lines().count(), records, "{args:?}");
    }
}

#[test]
fn a_broken_trace_gives_one_message_and_leaves_the_output() {
    let (folder, broken, name) = file("broken.trace");
    std::fs::write(&broken, " L 10,8\n S zz,1\n S 20,1\n").expect("a file");
    let out = folder.path().join("out");
    let out_name = out.display().to_string();
    std::fs::write(&out, "as it was").expect("a file");
    let failed = terrace(&["convert", &name, &out_name, "--to", "lackey"]);
    assert_eq!(failed.status.code(), Some(1));
    assert_eq!(said(&failed).lines().count(), 1, "{}", said(&failed));
    let place = format!("terrace: {name}:2: \" S zz,1\": expected lackey's");
    assert!(said(&failed).starts_with(&place), "{}", said(&failed));
    assert_eq!(std::fs::read_to_string(&out).expect("a file"), "as it was");
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        2
    );

    let skipping = terrace(&[
        "convert",
        &name,
        &out_name,
        "--to",
        "lackey",
        "--skip-broken",
    ]);
    assert!(
        printed(&skipping).contains("2 records read, 2 written as lackey, 1 broken ones left out")
    );
    assert_eq!(
        std::fs::read_to_string(&out).expect("a file"),
        " L 10,8\n S 20,1\n"
    );
    assert_eq!(terrace(&["info", &name]).status.code(), Some(1));
    let counted = printed(&terrace(&["info", &name, "--skip-broken"]));
    assert!(counted.contains("1 broken ones"), "{counted}");
}

#[test]
fn wrong_usage_is_2_and_says_what_may_be_given() {
    let source = cut("sort");
    for (args, hint) in [
        (&["convert", &source, "x", "--to", "csv"][..], "lackey-zst"),
        (&["info", &source, "--format", "csv"], "perf-script"),
        (
            &[
                "convert", &source, "x", "--to", "lackey", "--first", "1", "--every", "2",
            ],
            "--every",
        ),
        (
            &["convert", &source, "x", "--to", "lackey", "--every", "0"],
            "1..",
        ),
    ] {
        let output = terrace(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(said(&output).contains(hint), "{}", said(&output));
    }
    let output = terrace(&["convert", &source, "x", "--to", "lackey", "--cache", "100B"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said(&output).contains("1 KiB to 1 GiB"),
        "{}",
        said(&output)
    );
}
