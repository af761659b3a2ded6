//! Elastic memory over the API, with a device that a test plays on its control socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use terrace_api::flex::Resize;
use terrace_api::types::{Done, VmDetail};

use crate::scout::State;
use crate::served_tests::{Served, serve_with};

const GIB: u64 = 1 << 30;

/// Requests that the device saw.
type Seen = Arc<Mutex<Vec<Value>>>;

fn status() -> Value {
    let tier = |node: u64, target: u64, honesty: f64| {
        json!({
            "node": node, "whole_bytes": 4 * GIB, "target_bytes": target, "size_bytes": 3 * GIB,
            "verified": {
                "claimed_pages": 262_144, "absent_pages": 131_072, "present_bytes": 3 * GIB + GIB / 2,
                "file_bytes": 4 * GIB,
            },
            "honesty": honesty,
            "guest": terrace_hyperflex::control::GuestTier { is_stuck: Some(false), ..Default::default() },
        })
    };
    let counters = terrace_hyperflex::Counters {
        refused_outside: 7,
        ..Default::default()
    };
    json!({"status": {
        "connected": true, "generation": 9, "told": true, "resets": 1, "total_bytes": 4 * GIB,
        "tiers": [tier(0, 2 * GIB, 0.5), tier(1, 3 * GIB, 1.0)], "counters": counters,
    }})
}

/// A device that stands as [`status`] and refuses more than 4 GiB.
fn play_device(control: &Path) -> Seen {
    let listener = UnixListener::bind(control).unwrap();
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line).unwrap();
            let request: Value = serde_json::from_str(&line).unwrap();
            let reply = match &request["resize"]["size_bytes"] {
                Value::Null => status(),
                sizes if sizes[0].as_u64() > Some(4 * GIB) => {
                    json!({"error": {"message": "tier 0 of this VM has 4294967296 bytes at most"}})
                }
                _ => json!({"accepted": {"generation": 10}}),
            };
            noted.lock().unwrap().push(request);
            // A client that gives up is its own affair.
            let _ = writeln!(&stream, "{reply}");
        }
    });
    seen
}

/// A daemon with VMs `flex`, which has a device by the configuration, and `plain`.
fn serve() -> Served {
    let served = serve_with(|folder| {
        let control = folder.join("control");
        format!("[vm.flex]\nhyperflex = \"{}\"\n", control.display())
    });
    for name in ["flex", "plain"] {
        served.find(name, None, State::Unscannable("its RAM is private".into()));
    }
    served
}

fn resize(served: &Served, vm: &str, sizes: [Option<u64>; 2]) -> Result<Done, String> {
    let [fast_bytes, slow_bytes] = sizes;
    let sizes = Resize {
        fast_bytes,
        slow_bytes,
    };
    served.post_body(&format!("/v1/vms/{vm}/resize"), &sizes)
}

#[test]
fn a_resize_reaches_the_device_and_leaves_the_other_tier_alone() {
    let served = serve();
    let seen = play_device(&served.folder.path().join("control"));
    let done = resize(&served, "flex", [None, Some(6 * GIB)]).unwrap();
    assert!(done.done.contains("slow 6.0 GiB is ordered"), "{done:?}");
    let ordered = json!({"resize": {"size_bytes": [null, 6 * GIB]}});
    assert_eq!(seen.lock().unwrap().last(), Some(&ordered));
    let refused = resize(&served, "flex", [Some(5 * GIB), None]).unwrap_err();
    assert!(refused.contains("4294967296 bytes at most"), "{refused}");
    let empty = resize(&served, "flex", [None, None]).unwrap_err();
    assert!(empty.contains("say what to resize"), "{empty}");
}

#[test]
fn a_vm_shows_how_far_its_device_is_and_whether_the_guest_is_honest() {
    let served = serve();
    let _seen = play_device(&served.folder.path().join("control"));
    let detail: VmDetail = served.get("/v1/vms/flex").unwrap();
    let flex = detail.hyperflex.unwrap();
    assert_eq!((flex.problem, flex.refused_entries), (None, 7));
    let tier = flex.tiers[0];
    assert_eq!((tier.size_bytes, tier.target_bytes), (3 * GIB, 2 * GIB));
    assert_eq!(tier.honesty, Some(0.5));
    assert_eq!(tier.present_bytes, Some(3 * GIB + GIB / 2));
    let plain: VmDetail = served.get("/v1/vms/plain").unwrap();
    assert_eq!(plain.hyperflex, None);
}

#[test]
fn without_a_device_the_answer_says_what_to_do() {
    let served = serve();
    let none = resize(&served, "plain", [Some(GIB), None]).unwrap_err();
    for has in ["[vm.plain]", "hyperflex =", "Not yet by virtio-mem"] {
        assert!(none.contains(has), "no {has:?} in {none}");
    }
    let gone = resize(&served, "flex", [Some(GIB), None]).unwrap_err();
    assert!(gone.contains("terrace-hyperflex running?"), "{gone}");
    // A device that is not there hides nothing else of its VM.
    let detail: VmDetail = served.get("/v1/vms/flex").unwrap();
    let problem = detail.hyperflex.unwrap().problem.unwrap();
    assert!(problem.contains("terrace-hyperflex running?"), "{problem}");
    let unknown = resize(&served, "nobody", [Some(GIB), None]).unwrap_err();
    assert!(unknown.contains("nobody"), "{unknown}");
}
