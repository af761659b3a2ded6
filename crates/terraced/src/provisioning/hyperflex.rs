//! A VM's HyperFlex device as its provider.

use std::path::{Path, PathBuf};
use std::time::Duration;

use terrace_host::HostRoot;
use terrace_host::qemu::who::{self, HypervisorConfig, Refusal, Rules, SocketFacts};
use terrace_host::sharers::Holders;
use terrace_hyperflex::control::{
    Client, ClientError, Lease, PinCheckResult, Status, TierStatus as DeviceTier,
};
use terrace_hyperflex::lease;
use terrace_hyperflex::policy::NodePolicy;
use terrace_proto::PAGE_SIZE;
use terrace_proto::provision::{
    MAX_TIERS, Mechanism, ProviderError, ProviderKind, ProviderStatus, TierStatus, Verified,
};
use terrace_sys::FileId;

use super::provider::{Provider, Wanted, plain, size};

/// Most files that a device may name: a hypervisor has at most so many memory regions.
const MAX_FILES: usize = 512;

/// The device with one control socket.
pub struct Device {
    control: PathBuf,
    client: Client,
    /// The host's node behind each tier, if the operator set it.
    nodes: Vec<u32>,
    root: HostRoot,
    hypervisors: HypervisorConfig,
}

impl Device {
    /// A device to which no connection is open yet.
    pub fn new(
        control: &Path,
        nodes: &[u32],
        root: &HostRoot,
        hypervisors: &HypervisorConfig,
    ) -> Self {
        Self {
            control: control.to_owned(),
            client: Client::new(control),
            nodes: nodes.to_vec(),
            root: root.clone(),
            hypervisors: hypervisors.clone(),
        }
    }

    /// Checks the socket before any message is sent over it: it is of root or a user that may run VMs, in a folder in
    /// which no other user can put another one in its place.
    fn check(&self) -> Result<(), ProviderError> {
        // If the socket does not exist, the client reports that.
        let Ok(facts) = SocketFacts::read(&self.control) else {
            return Ok(());
        };
        let (rules, _) = Rules::read(&self.root, &self.hypervisors);
        who::may_be_device(&facts, &rules).map_err(|refusal| {
            let Refusal { why, change } = refusal;
            ProviderError::Gone(plain(&format!("{why}: {change}")))
        })
    }

    fn status_of(&self, status: &Status) -> ProviderStatus {
        let tiers = status.tiers.iter().take(MAX_TIERS).enumerate();
        ProviderStatus {
            connected: status.connected,
            targets_sent: status.targets_sent,
            hypervisor_pid: status.hypervisor_pid.filter(|pid| *pid > 0),
            resets: status.resets,
            total_bytes: status.total_bytes,
            refused_entries: status.counters.refused(),
            reports: Some(status.counters.statistics),
            tiers: tiers
                .map(|(i, tier)| tier_status(tier, self.nodes.get(i).copied()))
                .collect(),
        }
    }
}

impl Provider for Device {
    fn mechanism(&self) -> Mechanism {
        Mechanism {
            kind: ProviderKind::HyperFlex,
            name: "HyperFlex".into(),
            at: self.control.display().to_string(),
        }
    }

    fn query(&mut self, verify: bool) -> Result<ProviderStatus, ProviderError> {
        self.check()?;
        let status = self.client.status(verify).map_err(trouble)?;
        Ok(self.status_of(&status))
    }

    fn order(&mut self, size_bytes: &[Option<u64>]) -> Result<(), ProviderError> {
        self.check()?;
        self.client.resize(size_bytes).map(drop).map_err(trouble)
    }

    fn lease(
        &mut self,
        pin_checked: Option<(u64, Holders)>,
    ) -> Result<Option<Wanted>, ProviderError> {
        self.check()?;
        let pin_checked = pin_checked.map(|(number, found)| PinCheckResult {
            number,
            found: lease_found(found),
        });
        let Lease { asked, process } = self.client.lease(pin_checked).map_err(trouble)?;
        let files = asked.files.into_iter().take(MAX_FILES);
        let files = files.map(|(dev, inode)| FileId { dev, inode }).collect();
        Ok(Some(Wanted {
            number: asked.number,
            waits: asked.waits,
            files,
            process,
        }))
    }
}

fn lease_found(found: Holders) -> lease::Holders {
    match found {
        Holders::Nobody => lease::Holders::Nobody,
        Holders::Somebody(who) => lease::Holders::Somebody(who),
        Holders::Unknown(why) => lease::Holders::Unknown(why),
    }
}

/// A tier's status. `configured`: the host's node behind it by the operator's word, which goes before the device's.
fn tier_status(tier: &DeviceTier, configured: Option<u32>) -> TierStatus {
    let refused = tier.node_policy == Some(NodePolicy::Refused);
    let host_node = configured.or(tier.host_node.filter(|_| !refused));
    let verified = tier.verified.map(|seen| {
        let bytes = |pages: u64| pages.saturating_mul(PAGE_SIZE);
        let retained = seen.claimed_pages.saturating_sub(seen.absent_pages);
        Verified {
            present_bytes: seen.present_bytes,
            claimed_bytes: bytes(seen.claimed_pages),
            retained_bytes: bytes(retained),
        }
    });
    TierStatus {
        node: Some(tier.node),
        host_nodes: host_node.into_iter().collect(),
        whole_bytes: tier.whole_bytes,
        least_bytes: 0,
        block_bytes: tier.block_bytes,
        page_bytes: tier.page_bytes,
        target_bytes: tier.target_bytes,
        size_bytes: tier.size_bytes,
        verified,
        verified_age_ns: tier.verified_age_s.map_or(0, nanoseconds),
        withheld_bytes: tier.withheld_bytes,
        stuck: stuck(tier),
        guest: tier.guest.statistics,
    }
}

/// An age in ns, saturating; 0 for a value that is no age.
fn nanoseconds(age_s: f64) -> u64 {
    let age = Duration::try_from_secs_f64(age_s).unwrap_or_default();
    u64::try_from(age.as_nanos()).unwrap_or(u64::MAX)
}

/// The reason why the tier cannot reach its target: by the device's word, or by the guest's.
fn stuck(tier: &DeviceTier) -> Option<String> {
    if let Some(problem) = &tier.problem {
        return Some(plain(problem));
    }
    if tier.withheld_bytes > 0 {
        return Some(format!(
            "{} are withheld, because another process came as they were given back: it shrinks no more until the guest \
             starts anew",
            size(tier.withheld_bytes)
        ));
    }
    let said = &tier.guest;
    let free = said.statistics.free_bytes.map(|free| {
        let free = size(free);
        format!(" ({free} of its node are free)")
    });
    let free = free.unwrap_or_default();
    let why = format!("the guest says that it cannot reach the target for now{free}");
    (said.is_stuck == Some(true)).then_some(why)
}

fn trouble(error: ClientError) -> ProviderError {
    match error {
        ClientError::Refused(why) => ProviderError::Refused(plain(&why)),
        error => ProviderError::Gone(plain(&error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use terrace_hyperflex::control::GuestReport;

    use super::super::provider::MAX_REASON_CHARS;
    use super::*;

    #[test]
    fn a_compromised_device_steers_no_terminal_and_fills_no_memory() {
        let said = format!("\x1b]0;owned\x07{}", "x".repeat(60_000));
        let ProviderError::Refused(why) = trouble(ClientError::Refused(said)) else {
            panic!("a refusal stays one");
        };
        assert_eq!(why.chars().count(), MAX_REASON_CHARS);
        assert!(!why.contains(char::is_control), "{why:?}");
    }

    /// Any process could listen in a folder that others may write.
    #[test]
    fn a_control_socket_that_others_can_replace_is_not_connected_to() {
        use std::os::unix::fs::PermissionsExt as _;
        use std::os::unix::net::UnixListener;

        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("control");
        let listener = UnixListener::bind(&control).unwrap();
        listener.set_nonblocking(true).unwrap();
        let others = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(folder.path(), others).unwrap();
        let root = HostRoot::new(folder.path());
        let mut device = Device::new(&control, &[], &root, &HypervisorConfig::default());
        let somebody = Holders::Somebody("process 7".into());
        for trouble in [
            device.query(false).map(drop),
            device.order(&[Some(0)]),
            device.lease(Some((1, somebody))).map(drop),
        ] {
            let why = trouble.unwrap_err().to_string();
            assert!(why.contains("which others write"), "{why}");
        }
        let nobody = listener.accept().unwrap_err().kind();
        assert_eq!(nobody, std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_tiers_node_is_the_operators_before_the_devices() {
        let nodes = |node_policy, configured| {
            let status = DeviceTier {
                node: 1,
                host_node: Some(3),
                node_policy,
                problem: None,
                block_bytes: 4096,
                page_bytes: 4096,
                whole_bytes: 0,
                target_bytes: 0,
                size_bytes: 0,
                unproven_bytes: 0,
                withheld_bytes: 0,
                verified: None,
                verified_ratio: None,
                verified_age_s: None,
                guest: GuestReport::default(),
            };
            tier_status(&status, configured).host_nodes
        };
        assert_eq!(nodes(Some(NodePolicy::Set), None), [3]);
        assert_eq!(nodes(Some(NodePolicy::Waiting), None), [3]);
        assert_eq!(nodes(Some(NodePolicy::Set), Some(2)), [2]);
        assert!(nodes(Some(NodePolicy::Refused), None).is_empty());
    }
}
