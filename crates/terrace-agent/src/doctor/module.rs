//! Findings about the guest's kernel module: which of its calls work, why others do not, and what to change.

use terrace_sys::guest_module::{CallState, GuestModule, ModuleError};
use terrace_sys::{Finding, HostRoot};

/// Name of the findings.
const NAME: &str = "guest-module";
/// The calls: each with the name of its finding, and its use, for people.
const USES: [(&str, &str, &str); 4] = [
    ("SCAN", "guest-module-scan", "accessed bits of base pages"),
    (
        "CONSOLIDATE",
        "guest-module-consolidate",
        "pages gathered into one block of 2 MiB",
    ),
    (
        "EXCHANGE",
        "guest-module-exchange",
        "pages exchanged where no tier has room",
    ),
    ("MIGRATE", "guest-module-migrate", "moves by frame number"),
];

const INSTALL: &str = "cp -r guest/modules/terrace_guest /usr/src/terrace-guest-0.1.0; dkms install terrace-guest/0.1.0";
const LOAD: &str = "modprobe terrace_guest";
const SIGN: &str = "this kernel takes signed modules only (Secure Boot), so first enrol the key with which DKMS signs: mokutil \
                    --import /var/lib/dkms/mok.pub, reboot and confirm; then ";

/// Examines the module, which is optional: what is missing is a loss at most.
pub fn inspect(root: &HostRoot, wanted: bool) -> Vec<Finding> {
    if !wanted {
        let text = "the configuration switches it off (module = false)";
        return vec![Finding::ok(NAME, text)];
    }
    match GuestModule::open(root) {
        Ok(module) => match module.states() {
            Ok(states) => states.iter().map(call).collect(),
            Err(error) => vec![Finding::degraded(NAME, error.to_string(), reload())],
        },
        Err(error) => vec![unusable(root, &error)],
    }
}

fn unusable(root: &HostRoot, error: &ModuleError) -> Finding {
    let change = match error {
        ModuleError::NotLoaded if root.join("sys/module/terrace_guest").exists() => {
            "the module is loaded, but there is no /dev/terrace_guest: in a container, pass the device in".into()
        }
        ModuleError::NotLoaded => loading(root),
        ModuleError::NotAllowed(_) => {
            "run as root; a unit needs CAP_SYS_ADMIN in CapabilityBoundingSet, which the agent drops once the device is \
             open, and DeviceAllow=/dev/terrace_guest rw (dist/terrace-agent.service)"
                .into()
        }
        ModuleError::OtherVersion(_) | ModuleError::Failed(_) => reload(),
    };
    let text = format!("{error}; it is optional: DAMON samples, and pages move through free ones");
    Finding::degraded(NAME, text, change)
}

fn reload() -> String {
    "load the module of the agent's release: rmmod terrace_guest, install it anew (guest/modules/README.md), modprobe \
     terrace_guest"
        .into()
}

/// The step that loads the module.
fn loading(root: &HostRoot) -> String {
    let release = root.read("proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let folder = root.join(format!("lib/modules/{release}"));
    let is_built = ["updates/dkms", "updates", "extra"].iter().any(|place| {
        let files = std::fs::read_dir(folder.join(place)).into_iter().flatten();
        let mut names = files.flatten().map(|file| file.file_name());
        names.any(|name| name.to_string_lossy().starts_with("terrace_guest.ko"))
    });
    let step = if is_built {
        LOAD.to_owned()
    } else if folder.join("build").exists() {
        format!("{INSTALL}; {LOAD}")
    } else {
        format!(
            "install dkms and the headers of this kernel (Debian and Ubuntu: linux-headers-{release}); {INSTALL}; {LOAD}"
        )
    };
    let signed = takes_signed_modules_only(root);
    let sign = if signed { SIGN } else { "" };
    format!("{sign}{step}; restart the agent (docs/agent.md, The guest module)")
}

fn takes_signed_modules_only(root: &HostRoot) -> bool {
    let says = |file: &str, text: &str| root.read(file).is_ok_and(|said| said.contains(text));
    let lockdown = "sys/kernel/security/lockdown";
    says("sys/module/module/parameters/sig_enforce", "Y")
        || says(lockdown, "[integrity]")
        || says(lockdown, "[confidentiality]")
}

fn call(state: &CallState) -> Finding {
    let of = USES.iter().find(|(call, ..)| *call == state.name);
    let (name, what) = of.map_or((NAME, state.name), |(_, name, what)| (*name, *what));
    let Some(why) = &state.missing else {
        return Finding::ok(name, format!("works: {what}"));
    };
    let text = format!("does not work ({what}): {why}");
    Finding::degraded(name, text, remedy(why))
}

/// Remedy by the module's reason (`guest/modules/terrace_guest`).
fn remedy(why: &str) -> &'static str {
    let known = [
        (
            "untested=1",
            "nothing is lost without it; to try it on this kernel, in a guest that may crash: options terrace_guest \
             untested=1 in /etc/modprobe.d/terrace_guest.conf, and load it anew",
        ),
        (
            "ibt=1",
            "nothing is lost without it; to try it, in a guest that may crash: options terrace_guest ibt=1 in \
             /etc/modprobe.d/terrace_guest.conf, and load it anew",
        ),
        (
            "locked down",
            "boot without lockdown=confidentiality, or leave it: other sources of samples work",
        ),
        (
            "kprobes",
            "a kernel with CONFIG_KPROBES and CONFIG_KALLSYMS",
        ),
        (
            "one node",
            "nothing: pages can be exchanged between nodes only (docs/agent.md says how a guest gets two)",
        ),
        (
            "reserve",
            "load it with reserve=64, or leave the parameter out: it is the default",
        ),
    ];
    let found = known.iter().find(|(part, _)| why.contains(part));
    found.map_or(
        "another kernel: guest/modules/README.md lists those that were tried",
        |(_, change)| change,
    )
}

#[cfg(test)]
mod tests {
    use terrace_sys::Health;

    use super::*;

    fn advice(root: &HostRoot) -> String {
        let findings = inspect(root, true);
        assert_eq!((findings.len(), findings[0].health), (1, Health::Degraded));
        assert!(findings[0].found.contains("terrace_guest is not loaded"));
        findings[0].advice.clone().unwrap()
    }

    #[test]
    fn each_step_that_a_module_lacks_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let root = HostRoot::new(dir.path());
        put("proc/sys/kernel/osrelease", "6.12.1-amd64\n");
        assert!(advice(&root).contains("linux-headers-6.12.1-amd64"));
        put("lib/modules/6.12.1-amd64/build/Makefile", "");
        assert!(advice(&root).starts_with("cp -r guest/modules/terrace_guest /usr/src"));
        put(
            "lib/modules/6.12.1-amd64/updates/dkms/terrace_guest.ko.xz",
            "",
        );
        assert!(advice(&root).starts_with("modprobe terrace_guest; restart"));
        put(
            "sys/kernel/security/lockdown",
            "none [integrity] confidentiality\n",
        );
        assert!(advice(&root).contains("mokutil --import"));
        assert_eq!(inspect(&root, false)[0].health, Health::Ok);
    }

    #[test]
    fn each_call_is_named_with_its_reason_and_what_to_change() {
        let state = |name, missing: Option<&str>| CallState {
            name,
            missing: missing.map(str::to_owned),
            pages: 0,
        };
        let works = call(&state("MIGRATE", None));
        assert_eq!(
            (&works.name[..], works.health),
            ("guest-module-migrate", Health::Ok)
        );
        let reasons = [
            (
                "not tested on this kernel (module parameter untested=1)",
                "untested=1 in",
            ),
            ("the kernel is locked down", "lockdown=confidentiality"),
            ("this guest has one node", "nothing"),
            (
                "no pages are kept for it (module parameter reserve)",
                "reserve=64",
            ),
            ("the kernel has no flush_tlb_mm_range", "another kernel"),
        ];
        for (why, change) in reasons {
            let finding = call(&state("SCAN", Some(why)));
            assert!(finding.found.contains(why) && finding.health == Health::Degraded);
            let advice = finding.advice.unwrap();
            assert!(advice.contains(change), "{why}: {advice}");
        }
    }
}
