//! HyperFlex: a device that a test plays on its control socket.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use terrace_api::provision::{Ordered, ProvisioningStatus, Resize};
use terrace_api::types::VmDetail;

use crate::messages::State;
use crate::played::{Served, serve_with};

use super::GIB;
use super::qemu::Qemu;
use super::script::live;

/// Requests that the device saw.
type Seen = Arc<Mutex<Vec<Value>>>;

fn status() -> Value {
    let tier = |node: u64, target: u64, verified_ratio: f64| {
        json!({
            "node": node, "whole_bytes": 4 * GIB, "target_bytes": target, "size_bytes": 3 * GIB,
            "verified": {
                "claimed_pages": 262_144, "absent_pages": 131_072, "present_bytes": 3 * GIB + GIB / 2,
                "file_bytes": 4 * GIB,
            },
            "honesty": verified_ratio,
            "guest": terrace_hyperflex::control::GuestReport { is_stuck: Some(false), ..Default::default() },
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

/// A device with the status [`status`] that refuses sizes of no whole pages.
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
                sizes if sizes[0].as_u64().is_some_and(|n| n % 4096 != 0) => {
                    json!({"error": {"message": "tier 0: 2147483649 bytes are no whole 4 KiB pages"}})
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
        format!(
            "[vm.flex]\nhyperflex = \"{}\"\nhyperflex_nodes = [1, 0]\n",
            control.display()
        )
    });
    for (pid, name) in [(100, "flex"), (101, "plain")] {
        live(served.folder.path(), pid);
        served.find(
            name,
            Some(pid),
            State::Unscannable("its RAM is private".into()),
        );
    }
    served
}

fn resize(served: &Served, vm: &str, sizes: [Option<u64>; 2]) -> Result<Ordered, String> {
    let [fast_bytes, slow_bytes] = sizes;
    let sizes = Resize {
        fast_bytes,
        slow_bytes,
        ..Resize::default()
    };
    served.post_body(&format!("/v1/vms/{vm}/resize"), &sizes)
}

/// The view of the VM's resizable memory, once `so` is true of it.
fn heard(served: &Served, so: impl Fn(&ProvisioningStatus) -> bool) -> ProvisioningStatus {
    for _ in 0..6000 {
        let detail: VmDetail = served.get("/v1/vms/flex").unwrap();
        if let Some(provisioning) = detail.provisioning.filter(&so) {
            return provisioning;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("nothing was heard of the device");
}

#[test]
fn a_resize_reaches_the_device_and_leaves_the_other_tier_alone() {
    let served = serve();
    let seen = play_device(&served.folder.path().join("control"));
    let ordered = resize(&served, "flex", [None, Some(2 * GIB)]).unwrap();
    let text = "slow 3 GiB → 2 GiB ordered by HyperFlex";
    assert!(ordered.done.contains(text), "{ordered:?}");
    let order = json!({"resize": {"size_bytes": [null, 2 * GIB]}});
    assert!(seen.lock().unwrap().contains(&order));
    let refused = resize(&served, "flex", [Some(2 * GIB + 1), None]).unwrap_err();
    assert!(refused.contains("no whole 4 KiB pages"), "{refused}");
    let empty = resize(&served, "flex", [None, None]).unwrap_err();
    assert!(empty.contains("give the sizes"), "{empty}");
}

#[test]
fn a_vm_shows_its_devices_progress_and_the_verified_ratio() {
    let served = serve();
    let _seen = play_device(&served.folder.path().join("control"));
    let _ = resize(&served, "flex", [None, Some(2 * GIB)]);
    let provisioning = heard(&served, |provisioning| provisioning.age_s.is_some());
    assert_eq!(
        (&provisioning.problem, provisioning.refused_entries),
        (&None, 7)
    );
    let tier = &provisioning.tiers[0];
    assert_eq!((tier.size_bytes, tier.target_bytes), (3 * GIB, 2 * GIB));
    assert_eq!(
        (tier.verified_ratio, tier.retained_bytes),
        (Some(0.5), Some(GIB / 2))
    );
    assert_eq!(tier.present_bytes, Some(3 * GIB + GIB / 2));
    assert_eq!(tier.host_nodes, [1], "as it is configured");
    let plain: VmDetail = served.get("/v1/vms/plain").unwrap();
    assert_eq!(plain.provisioning, None);
}

#[test]
fn without_a_device_the_answer_says_what_to_do() {
    let served = serve();
    // A QEMU with neither virtio-mem nor a balloon.
    Qemu::default().play(&served.folder.path().join("plain.sock"));
    let none = resize(&served, "plain", [Some(GIB), None]).unwrap_err();
    for has in ["[vm.plain]", "hyperflex ="] {
        assert!(none.contains(has), "no {has:?} in {none}");
    }
    let gone = resize(&served, "flex", [Some(GIB), None]).unwrap_err();
    assert!(gone.contains("terrace-hyperflex running?"), "{gone}");
    // A device that is not there hides nothing else of its VM.
    let problem = heard(&served, |provisioning| provisioning.problem.is_some()).problem;
    assert!(problem.unwrap().contains("terrace-hyperflex running?"));
    let unknown = resize(&served, "nobody", [Some(GIB), None]).unwrap_err();
    assert!(unknown.contains("nobody"), "{unknown}");
}
