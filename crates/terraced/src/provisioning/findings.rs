//! The findings of `doctor` about a VM's resizable memory.

use terrace_api::provision::ProvisioningStatus;
use terrace_host::Finding;

use super::provider::size;

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
