//! `terrace doctor` without a daemon: the findings that this command can make by itself, with the privileges that it
//! has.

use std::io::ErrorKind;
use std::path::Path;

use terrace_api::client::ClientError;
use terrace_api::types::{Doctor, Finding};
use terrace_config::{Config, DEFAULT_FILE, Sources};
use terrace_host::qemu::who::{HypervisorConfig, Rules};
use terrace_host::topology::{TierSource, Topology};
use terrace_host::{HostRoot, doctor};
use terrace_proto::printable::excerpt;

/// The findings about the host and about QEMU processes that are not asked, as the daemon would report them; and the
/// reason why it does not report them itself.
pub fn inspect(error: &ClientError, socket: &Path, file: Option<&Path>) -> (Doctor, Finding) {
    let root = HostRoot::default();
    let (config, mut findings) = read(file);
    let (rules, of_rules) = match &config {
        Some(config) => Rules::read(&root, &config.hypervisors),
        None => Rules::read(&root, &HypervisorConfig::default()),
    };
    let (topology, mut host) = host(&root, config.as_ref());
    host.append(&mut findings);
    host.extend(of_rules);
    let processes = doctor::processes(&root, &topology, &rules);
    host.extend(processes.others);
    let vms = processes.vms;
    let doctor = Doctor { host, vms };
    (doctor, daemon(error, socket, config.as_ref()))
}

/// The configuration, if it is there and valid; without it the defaults count, and that is reported.
fn read(file: Option<&Path>) -> (Option<Config>, Vec<Finding>) {
    let name = "configuration";
    let read = Sources::read(file).and_then(|sources| Ok((Config::new(&sources)?, sources.text())));
    match read {
        Ok((config, text)) => (Some(config), vec![Finding::ok(name, text)]),
        Err(problem) => {
            let file = file.unwrap_or(Path::new(DEFAULT_FILE)).display();
            let finding = Finding::missing(
                name,
                format!("{problem}: this report uses the defaults"),
                format!("`terrace config check {file}` as root shows the error"),
            );
            (None, vec![finding])
        }
    }
}

fn host(root: &HostRoot, config: Option<&Config>) -> (Topology, Vec<Finding>) {
    let defined = config.map(Config::tier_definitions).unwrap_or_default();
    let (topology, unread) = match Topology::read(root, &defined) {
        Ok(topology) => (topology.or_observed(), None),
        Err(error) => {
            let none = Topology {
                nodes: Vec::new(),
                tiers: Vec::new(),
                source: TierSource::Operator,
                findings: Vec::new(),
            };
            (none, Some(error))
        }
    };
    let mut findings = doctor::host(root, &topology);
    if let Some(error) = unread {
        findings.retain(|finding| finding.name != "topology");
        findings.push(Finding::missing(
            "topology",
            format!("the memory tiers could not be read: {error}"),
            "mount sysfs; correct the [[tier]] sections of the configuration",
        ));
    }
    findings.push(Finding::ok(
        "privileges",
        "cap-sys-nice and cap-sys-ptrace are this command's; the daemon needs both, and its systemd unit grants them",
    ));
    (topology, findings)
}

/// The reason why the daemon does not answer, and what to do.
fn daemon(error: &ClientError, socket: &Path, config: Option<&Config>) -> Finding {
    let shown = excerpt(&socket.to_string_lossy(), 255);
    let other = config
        .filter(|config| config.socket != socket)
        .map(|config| {
            let named = excerpt(&config.socket.to_string_lossy(), 255);
            format!("; by its configuration it listens at {named}: use --socket {named}")
        });
    let other = other.unwrap_or_default();
    let start = format!("systemctl start terraced, or terraced --config FILE{other}");
    let (found, advice) = match error {
        ClientError::Connect { why, .. }
            if matches!(
                why.kind(),
                ErrorKind::NotFound | ErrorKind::ConnectionRefused
            ) =>
        {
            (
                format!("the daemon is not running: nothing listens at {shown} ({why})"),
                start,
            )
        }
        ClientError::NotAllowed { .. } => (
            format!(
                "the daemon could not be reached: permission denied at {shown}, which is for its owner and \
                 group alone"
            ),
            "run this as root (sudo), or as a member of the socket's group".to_owned(),
        ),
        other_error => (
            format!("the daemon could not be reached: {other_error}"),
            "read its log (journalctl -u terraced), and restart it".to_owned(),
        ),
    };
    Finding::missing("daemon", found, advice)
}
