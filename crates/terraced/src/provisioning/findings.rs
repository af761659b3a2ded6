//! The findings of `doctor` about a VM's elastic memory.

use terrace_api::elastic::Elastic;
use terrace_host::Finding;

use super::provider::size;

/// The share below which the guest did not give back what it claims to have given back.
const HONEST: f64 = 0.99;

/// The findings about one VM.
pub fn findings(elastic: &Elastic) -> Vec<Finding> {
    let mut findings = Vec::new();
    let by = match elastic.by_words.as_str() {
        "" => "by nothing that is known yet".to_owned(),
        words => format!("by {words} ({})", elastic.at),
    };
    let found = match &elastic.problem {
        Some(problem) => Finding::missing(
            "elastic-memory",
            format!("{by}: {problem}"),
            "see that its resize provider runs: `systemctl status`, or its log",
        ),
        None if !elastic.connected || !elastic.told => Finding::degraded(
            "elastic-memory",
            format!("{by}: the guest's driver does not know the targets"),
            "load the module hyperflex in the guest",
        ),
        None => Finding::ok("elastic-memory", by),
    };
    findings.push(found);
    findings.extend(holding(elastic));
    if let Some(device) = &elastic.pinned_by {
        findings.push(Finding::degraded(
            "elastic-pinned",
            format!("a device is passed through ({device}), which pins all of its memory: it cannot shrink"),
            "take the device out to shrink it",
        ));
    } else if let Some(why) = &elastic.pinning_unknown {
        findings.push(Finding::degraded(
            "elastic-pinned",
            format!("whether a device is passed through is not known: {why}"),
            "do not shrink it where one is; terraced needs CAP_SYS_PTRACE, or the hypervisor's user, to see it",
        ));
    }
    if elastic.age_s.is_none() {
        return findings;
    }
    let words = elastic.admission.clone();
    findings.push(if elastic.tiers.iter().any(|tier| !tier.inflated) {
        let advice = "other VMs are refused what it may still take; it counts less once its driver has inflated";
        Finding::degraded("elastic-admission", words, advice)
    } else {
        Finding::ok("elastic-admission", words)
    });
    findings.extend(honesty(elastic));
    findings
}

/// The finding about another process that has the VM's RAM.
fn holding(elastic: &Elastic) -> Option<Finding> {
    if let Some(who) = &elastic.held_by {
        return Some(Finding::degraded(
            "elastic-held",
            format!("{who}, may have pinned it: it cannot shrink"),
            "end that process to shrink the VM; if its program never pins memory, list it: do_not_pin under [vm.NAME]",
        ));
    }
    let why = elastic.holding_unknown.as_ref()?;
    Some(Finding::degraded(
        "elastic-held",
        format!("whether another process has its RAM is not known: {why}"),
        "it cannot shrink until terraced may see all processes: CAP_SYS_PTRACE and CAP_DAC_OVERRIDE",
    ))
}

fn honesty(elastic: &Elastic) -> Option<Finding> {
    let each = elastic.tiers.iter().filter_map(|tier| {
        let claimed = tier.claimed_bytes.filter(|claimed| *claimed > 0)?;
        Some((&tier.name, tier.kept_bytes?, claimed, tier.honesty?))
    });
    let each: Vec<_> = each.collect();
    if each.is_empty() {
        return None;
    }
    let words = each.iter().map(|(name, kept, claimed, honesty)| {
        format!(
            "{name}: {} of the {} that it gave back is still there (honesty {honesty:.2})",
            size(*kept),
            size(*claimed),
        )
    });
    let words = words.collect::<Vec<_>>().join("; ");
    Some(if each.iter().any(|(.., honesty)| *honesty < HONEST) {
        let advice = "the guest touches memory that it gave back, or never stopped: it is counted whole until that ends";
        Finding::degraded("elastic-honesty", words, advice)
    } else {
        Finding::ok("elastic-honesty", words)
    })
}
