//! The findings of `doctor` about a VM's resizable memory.

use terrace_api::provision::{BalanceStatus, ProvisioningStatus};
use terrace_host::Finding;
use terrace_host::qemu::BalloonSetup;

use super::provider::size;
use crate::messages::GuestSetup;

/// The share below which the guest did not give back the memory that it claims to have given back.
const MIN_VERIFIED_RATIO: f64 = 0.99;

/// The findings about one VM.
pub fn findings(provisioning: &ProvisioningStatus) -> Vec<Finding> {
    let mut findings = Vec::new();
    let by = match provisioning.by_name.as_str() {
        "" => "by a provider that is not known yet".to_owned(),
        text => format!("by {text} ({})", provisioning.at),
    };
    let found = match &provisioning.problem {
        Some(problem) => Finding::missing(
            "provisioning",
            format!("{by}: {problem}"),
            "check that its provider runs: `systemctl status`, or its log",
        ),
        None if !provisioning.connected || !provisioning.targets_sent => Finding::degraded(
            "provisioning",
            format!("{by}: the guest's driver does not know the targets"),
            "load the module hyperflex in the guest",
        ),
        None => Finding::ok("provisioning", by),
    };
    findings.push(found);
    findings.extend(holding(provisioning));
    if let Some(device) = &provisioning.pinned_by {
        findings.push(Finding::degraded(
            "provisioning-pinned",
            format!("a device is passed through ({device}), which pins all of its memory: it cannot shrink"),
            "take the device out to shrink it",
        ));
    } else if let Some(why) = &provisioning.pinning_unknown {
        findings.push(Finding::degraded(
            "provisioning-pinned",
            format!("terraced does not know whether a device is passed through: {why}"),
            "do not shrink it if one is; terraced needs CAP_SYS_PTRACE, or the hypervisor's user, to see it",
        ));
    }
    if provisioning.age_s.is_none() {
        return findings;
    }
    let text = provisioning.admission.clone();
    findings.push(if provisioning.tiers.iter().any(|tier| !tier.inflated) {
        let advice = "other VMs are refused what it may still take; it counts less once its driver has inflated";
        Finding::degraded("provisioning-admission", text, advice)
    } else {
        Finding::ok("provisioning-admission", text)
    });
    findings.extend(verification(provisioning));
    findings
}

/// The findings about a VM that is to be balanced.
pub fn balance(
    provisioning: Option<&ProvisioningStatus>,
    setup: Option<&GuestSetup>,
) -> Vec<Finding> {
    let Some(provisioning) = provisioning else {
        return vec![Finding::missing(
            "balance",
            "it has a memory_floor, but neither a balloon nor virtio-mem or HyperFlex: its memory is not balanced",
            "start QEMU with -device virtio-balloon-pci,deflate-on-oom=on,free-page-reporting=on",
        )];
    };
    let Some(balance) = provisioning.balance.as_ref() else {
        return Vec::new();
    };
    let mut findings = vec![taking_part(balance)];
    if balance.is_swapping {
        findings.push(Finding::degraded(
            "balance-short",
            "its guest swaps now: it has less memory than it needs",
            "`terrace plan --dry-run` says whether it gets more, and why not",
        ));
    }
    findings.extend(swapping(balance));
    findings.extend(phases(balance, setup));
    let balloon = setup.and_then(|setup| setup.balloon);
    findings.extend(balloon.into_iter().flat_map(settings));
    findings
}

/// How it is found that a guest begins to use other memory.
fn phases(balance: &BalanceStatus, setup: Option<&GuestSetup>) -> Option<Finding> {
    let missing = setup.and_then(|setup| setup.walks_missing.as_ref());
    let found = match missing {
        None if balance.phase.as_ref()?.source == "page-walks" => {
            "phases of its use of memory are found by page walks".to_owned()
        }
        None => return None,
        Some(why) => format!(
            "phases of its use of memory are found by its statistics; page walks would show sooner that it begins to use \
             other memory, but are not counted: {why}"
        ),
    };
    Some(Finding::ok("balance-phases", found))
}

/// Whether the VM takes part now.
fn taking_part(balance: &BalanceStatus) -> Finding {
    match (&balance.left_alone, &balance.statistics_missing) {
        (Some(why), _) => Finding::degraded(
            "balance",
            format!("its memory is left as it is: {why}"),
            "nothing, if that is to be so; docs/balancing.md says what ends it",
        ),
        (None, Some(why)) => Finding::degraded(
            "balance",
            format!("its guest's need is not known: {why}"),
            "load virtio_balloon in the guest; a VM with virtio-mem needs a balloon too, for its statistics",
        ),
        (None, None) => Finding::ok("balance", format!("takes part (mode {})", balance.mode)),
    }
}

/// A guest without swap shows that it lacks memory only once it kills programs.
fn swapping(balance: &BalanceStatus) -> Option<Finding> {
    let is_known = balance.used_swap_bytes? > 0 || balance.is_swapping;
    (!is_known).then(|| {
        Finding::ok(
            "balance-swap",
            "has not swapped so far: give it a swap device if it has none, as its want of memory is seen by that",
        )
    })
}

/// Settings of a balloon that balancing would rather have.
fn settings(balloon: BalloonSetup) -> Vec<Finding> {
    let mut findings = Vec::new();
    if balloon.deflates_on_oom == Some(false) {
        findings.push(Finding::degraded(
            "balance-oom",
            "its balloon keeps what it took when its guest is out of memory: a program may be killed",
            "start QEMU with deflate-on-oom=on on its balloon",
        ));
    }
    if balloon.reports_free_pages == Some(false) {
        findings.push(Finding::degraded(
            "balance-reporting",
            "its guest does not report free pages: what it frees and keeps stays with QEMU",
            "start QEMU with free-page-reporting=on on its balloon",
        ));
    }
    findings
}

/// The finding about another process that has the VM's RAM.
fn holding(provisioning: &ProvisioningStatus) -> Option<Finding> {
    if let Some(who) = &provisioning.held_by {
        return Some(Finding::degraded(
            "provisioning-held",
            format!("{who}, may have pinned it: it cannot shrink"),
            "end that process to shrink the VM; if its program never pins memory, list it: do_not_pin under \
             [vm.NAME]",
        ));
    }
    let why = provisioning.holding_unknown.as_ref()?;
    Some(Finding::degraded(
        "provisioning-held",
        format!("terraced does not know whether another process has its RAM: {why}"),
        "it cannot shrink until terraced may see all processes: CAP_SYS_PTRACE and CAP_DAC_OVERRIDE",
    ))
}

fn verification(provisioning: &ProvisioningStatus) -> Option<Finding> {
    let each = provisioning.tiers.iter().filter_map(|tier| {
        let claimed = tier.claimed_bytes.filter(|claimed| *claimed > 0)?;
        Some((
            &tier.name,
            tier.retained_bytes?,
            claimed,
            tier.verified_ratio?,
        ))
    });
    let each: Vec<_> = each.collect();
    if each.is_empty() {
        return None;
    }
    let text = each.iter().map(|(name, retained, claimed, verified_ratio)| {
        format!(
            "{name}: {} of the {} that it gave back is still there (verified: {verified_ratio:.2})",
            size(*retained),
            size(*claimed),
        )
    });
    let text = text.collect::<Vec<_>>().join("; ");
    Some(
        if each
            .iter()
            .any(|(.., verified_ratio)| *verified_ratio < MIN_VERIFIED_RATIO)
        {
            let advice = "the guest touches memory that it gave back, or never stopped: it is counted whole \
            until that ends";
            Finding::degraded("provisioning-verified", text, advice)
        } else {
            Finding::ok("provisioning-verified", text)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|found| found.name.as_ref()).collect()
    }

    fn balanced() -> ProvisioningStatus {
        ProvisioningStatus {
            balance: Some(BalanceStatus {
                used_swap_bytes: Some(4096),
                ..BalanceStatus::default()
            }),
            ..ProvisioningStatus::default()
        }
    }

    #[test]
    fn what_balancing_lacks_is_named() {
        assert_eq!(names(&balance(None, None)), ["balance"]);
        let with = |set| GuestSetup {
            balloon: Some(BalloonSetup {
                deflates_on_oom: set,
                reports_free_pages: set,
            }),
            walks_missing: None,
        };
        for good in [with(Some(true)), with(None)] {
            assert_eq!(names(&balance(Some(&balanced()), Some(&good))), ["balance"]);
        }
        let bare = GuestSetup {
            walks_missing: Some("this host has no PMU".into()),
            ..with(Some(false))
        };
        let mut view = balanced();
        view.balance.as_mut().unwrap().used_swap_bytes = Some(0);
        assert_eq!(
            names(&balance(Some(&view), Some(&bare))),
            [
                "balance",
                "balance-swap",
                "balance-phases",
                "balance-oom",
                "balance-reporting"
            ]
        );
    }

    #[test]
    fn a_vm_that_is_not_balanced_says_why() {
        let text = |view: &ProvisioningStatus| balance(Some(view), None)[0].found.clone();
        assert!(text(&balanced()).contains("takes part"));
        let mut view = balanced();
        let balance = view.balance.as_mut().unwrap();
        balance.statistics_missing = Some("its statistics are 40 s old".into());
        assert!(text(&view).contains("40 s old"));
        view.balance.as_mut().unwrap().left_alone = Some("it migrates".into());
        assert!(text(&view).contains("it migrates"));
    }
}
