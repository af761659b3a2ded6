//! The control socket's JSON: daemon, command and device may be of different builds, so its keys stay.

use serde_json::{Value, json};
use terrace_hyperflex::control::{Reply, Request};

/// Every request and reply, with a value for each key and with none.
fn lines() -> Value {
    serde_json::from_str(include_str!("control.json")).expect("JSON")
}

fn status() -> Value {
    lines()["replies"][0].clone()
}

fn reply(line: Value) -> Result<Reply, String> {
    serde_json::from_value(line).map_err(|error| error.to_string())
}

/// Each key of the file is known, as none may be unknown, and each that is written is in the file.
#[test]
fn the_control_sockets_json_keeps_its_keys() {
    for line in lines()["requests"].as_array().unwrap() {
        let request: Request = serde_json::from_value(line.clone()).unwrap();
        assert_eq!(&serde_json::to_value(&request).unwrap(), line);
    }
    for line in lines()["replies"].as_array().unwrap() {
        let reply = reply(line.clone()).unwrap();
        assert_eq!(&serde_json::to_value(&reply).unwrap(), line);
    }
}

#[test]
fn a_status_with_an_unknown_key_is_refused() {
    for place in ["", "/leases", "/tiers/0", "/tiers/0/guest", "/counters"] {
        let mut line = status();
        let object = line.pointer_mut(&format!("/status{place}")).unwrap();
        object["newer"] = json!(1);
        let why = reply(line).unwrap_err();
        assert!(why.contains("unknown field `newer`"), "{place}: {why}");
    }
}

#[test]
fn an_older_devices_status_is_accepted_unless_sizes_lack() {
    let without = |key: &str| {
        let mut line = status();
        let tier = line.pointer_mut("/status/tiers/0").unwrap();
        let tier = tier.as_object_mut().unwrap();
        tier.remove(key).unwrap();
        reply(line)
    };
    for key in [
        "host_node",
        "node_policy",
        "problem",
        "block_bytes",
        "page_bytes",
        "unproven_bytes",
        "withheld_bytes",
        "verified",
        "honesty",
        "verified_age_s",
    ] {
        assert!(without(key).is_ok(), "{key}");
    }
    for key in ["node", "whole_bytes", "target_bytes", "size_bytes", "guest"] {
        let why = without(key).unwrap_err();
        assert!(why.contains(&format!("missing field `{key}`")), "{why}");
    }
}
