//! Exit codes and messages of `terrace`: 0 success, 1 failure with one message, 2 wrong usage.

use std::process::{Command, Output};

fn terrace(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_terrace"))
        .args(args)
        .output()
        .expect("the program starts")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn without_a_daemon_one_message_says_where_it_was_looked_for() {
    let output = terrace(&["--socket", "/nonexistent/terraced.sock", "vms"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
    assert!(said(&output).contains("/nonexistent/terraced.sock"));
    let why = said(&output).matches("No such file").count();
    assert_eq!(why, 1, "the reason is said once: {}", said(&output));
}

#[test]
fn wrong_usage_is_2() {
    for args in [
        &["frobnicate"][..],
        &["explain", "vm1", "--page", "zzz"],
        &["set", "vm1", "moves"],
        &["sim", "replay", LOG, "--window", "1200ms"],
    ] {
        assert_eq!(terrace(args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn figures_of_a_debug_build_are_refused() {
    if cfg!(debug_assertions) {
        let output = terrace(&["bench", "--json"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(said(&output).contains("--release"), "{}", said(&output));
    }
}

#[test]
fn standard_output_without_room_is_an_error_and_no_panic() {
    let trace = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/traces/redis.trace.zst"
    );
    for args in [
        &["--help"][..],
        &["--version"],
        &["completions", "bash"],
        &["mrc", trace],
        &["mrc", trace, "--json", "-"],
        &["trace", "info", trace],
        &["sim", "list"],
        &["sim", "list", "--json"],
        &["sim", "repro", "--list"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
            .args(args)
            .stdout(full.expect("a device"))
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let said = said(&output);
        assert!(
            said.starts_with("terrace: standard output cannot be written"),
            "{args:?}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{args:?}: {said}");
    }
}

#[test]
fn standard_error_without_room_changes_no_result() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("warned.toml").display().to_string();
    std::fs::write(&file, "[engine]\nscan_parts = 16\n").expect("a file");
    let wrong = format!("{file}.wrong");
    for (file, code) in [(&file, 0), (&wrong, 1)] {
        let full = std::fs::File::options().write(true).open("/dev/full");
        let output = Command::new(env!("CARGO_BIN_EXE_terrace"))
            .args(["config", "check", file])
            .stderr(full.expect("a device"))
            .output()
            .expect("the program starts");
        assert_eq!(output.status.code(), Some(code), "{file}");
        assert_eq!(output.stdout.starts_with(b"valid: "), code == 0);
    }
}

#[test]
fn no_result_overwrites_what_it_is_made_of() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(at("s.toml"), include_str!("../../../scenarios/demo.toml")).expect("a file");
    let before = std::fs::read(at("s.toml")).expect("a file");
    std::fs::write(at("log"), " L 1000,8\n").expect("a file");
    let load = "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\n[[vm]]\nname = \"v\"\nfast = \"8MiB\"\n\
                slow = \"16MiB\"\nworkload = { kind = \"trace\", file = \"log\" }\n";
    std::fs::write(at("load.toml"), load).expect("a file");
    for args in [
        &["sim", "run", &at("s.toml"), "--json", &at("s.toml")][..],
        &["sim", "run", &at("s.toml"), "--html", &at("s.toml")],
        &[
            "sim",
            "run",
            &at("s.toml"),
            "--json",
            &at("x"),
            "--html",
            &at("x"),
        ],
        &["sim", "run", &at("load.toml"), "--json", &at("log")],
        &["sim", "replay", &at("log"), "--json", &at("log")],
        &["trace", "info", &at("log"), "--json", &at("log")],
        &["trace", "convert", &at("log"), &at("log"), "--to", "lackey"],
    ] {
        let output = terrace(args);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(
            said(&output).contains("is the same file as"),
            "{args:?}: {}",
            said(&output)
        );
    }
    assert_eq!(std::fs::read(at("s.toml")).expect("it stays"), before);
    assert_eq!(std::fs::read(at("log")).expect("it stays"), b" L 1000,8\n");
}

#[test]
fn completions_are_printed_for_every_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = terrace(&["completions", shell]);
        assert!(output.status.success());
        assert!(String::from_utf8_lossy(&output.stdout).contains("explain"));
    }
}

#[test]
fn every_command_has_a_manual_page() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("share/man/man1");
    let output = terrace(&["man", folder.to_str().expect("a name")]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let page = |name: &str| std::fs::read_to_string(folder.join(name)).expect(name);
    for name in ["terrace.1", "terrace-show.1", "terrace-sim-run.1"] {
        assert!(page(name).contains(".SH SYNOPSIS"), "{}", page(name));
    }
    let resize = page("terrace-resize.1");
    assert!(
        resize.contains("terrace resize web1"),
        "no example: {resize}"
    );
    assert!(resize.contains("512MiB"), "no units: {resize}");
}

#[test]
fn manual_pages_replace_links_and_pipes_of_their_names() {
    let dir = tempfile::tempdir().expect("a folder");
    let (other, page) = (dir.path().join("other"), dir.path().join("terrace.1"));
    std::fs::write(&other, "untouched").expect("a file");
    std::os::unix::fs::symlink(&other, &page).expect("a link");
    let pipe = dir.path().join("terrace-show.1");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "no pipe");
    let output = terrace(&["man", dir.path().to_str().expect("a name")]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(
        std::fs::read_to_string(&other).expect("a file"),
        "untouched"
    );
    for page in [page, pipe] {
        let kind = std::fs::symlink_metadata(&page)
            .expect("a page")
            .file_type();
        assert!(kind.is_file(), "{}", page.display());
    }
}

#[test]
fn a_configuration_is_checked_without_a_daemon() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("terrace.toml");
    let name = file.to_str().expect("a name");
    std::fs::write(&file, "[engine]\nwindows = 4\n").expect("a file");
    let good = terrace(&["config", "check", name, "--effective"]);
    assert_eq!(good.status.code(), Some(0), "{}", said(&good));
    let printed = String::from_utf8_lossy(&good.stdout).into_owned();
    assert!(
        printed.contains(&format!("engine.windows = 4  # {name}:2")),
        "{printed}"
    );
    assert!(printed.contains(&format!("# valid: {name}")), "{printed}");

    std::fs::write(&file, "[engine]\nwindows = 99\n").expect("a file");
    let bad = terrace(&["config", "check", name, "--json"]);
    assert_eq!(bad.status.code(), Some(1));
    assert_eq!(said(&bad).lines().count(), 1, "{}", said(&bad));
    assert!(
        said(&bad).contains(&format!("{name}:2: engine.windows = 99")),
        "{}",
        said(&bad)
    );
    let report: serde_json::Value = serde_json::from_slice(&bad.stdout).expect("JSON");
    assert_eq!(report["valid"], false);
    assert_eq!(report["problem"]["line"], 2);
    assert_eq!(report["problem"]["key"], "engine.windows");
}

/// The sample log that is replayed for ever.
const LOG: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../terrace-core/tests/logs/v1-sample.trlog"
);

#[test]
fn a_log_is_replayed_with_its_own_policy_and_with_another_one() {
    let output = terrace(&["sim", "replay", LOG]);
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("All actions are equal"), "{text}");
    let output = terrace(&["sim", "replay", LOG, "--policy", "random", "--json", "-"]);
    assert!(output.status.success(), "{}", said(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON alone");
    assert_eq!(report["vms"][0]["other"]["rounds"], 3);
    assert!(report["vms"][0]["coverage"].as_f64() < Some(1.0));
}

#[test]
fn an_old_name_of_a_policy_is_accepted_and_the_new_one_said() {
    for (old, now) in [("all-fast", "prefer-fast"), ("all-slow", "prefer-slow")] {
        let renamed = format!("\"{old}\" is called \"{now}\" now");
        let output = terrace(&["sim", "replay", LOG, "--policy", old]);
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains(&renamed), "{}", said(&output));
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("terrace.toml");
        std::fs::write(&file, format!("[engine]\npolicy = \"{old}\"\n")).expect("a file");
        let file = file.to_str().expect("a name");
        let output = terrace(&["config", "check", file]);
        assert!(output.status.success(), "{}", said(&output));
        assert!(said(&output).contains(&renamed), "{}", said(&output));
        assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
    }
}

#[test]
fn a_log_that_differs_or_cannot_be_replayed_exits_with_1() {
    let dir = tempfile::tempdir().expect("a folder");
    let changed = dir.path().join("changed.trlog");
    let mut bytes = std::fs::read(LOG).expect("the sample");
    // The first record's configuration: the number of windows in a round.
    let key = b"\"windows\":8";
    let at = bytes.windows(key.len()).position(|w| w == key);
    bytes[at.expect("the configuration is text") + key.len() - 1] = b'7';
    std::fs::write(&changed, bytes).expect("a file");
    let changed = changed.to_str().expect("a name");
    let ept = r#"{ base = "vtmm", observe = "ept-scan" }"#;
    for (args, says) in [
        (&[changed][..], "but the engine decides"),
        (&[LOG, "--policy", "lru"], "allowed is vtmm"),
        (&[LOG, "--policy", ept], "second-stage tables"),
        (&["/nonexistent.trlog"], "/nonexistent.trlog"),
    ] {
        let output = terrace(&[&["sim", "replay"], args].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(said(&output).contains(says), "{}", said(&output));
        assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
    }
}
