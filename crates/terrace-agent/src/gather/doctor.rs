//! Whether hot pages can be gathered here, and what to change.

use terrace_sys::guest_module::{GuestModule, ModuleError};
use terrace_sys::{Finding, HostRoot};

use super::by_host;
use super::heat::Source;
use super::node::NodeWay;
use super::way;
use crate::config::Config;
use crate::gathering::HeatChoice;

const NAME: &str = "gather";
/// The lines that give a VM a small second node.
const NODE: &str = "gather.node takes a small node without processors. QEMU: -object memory-backend-memfd,id=gather,size=1G,share=on \
                    -numa node,nodeid=1,memdev=gather (and 1G more in -m); libvirt: <numa><cell id='1' memory='1' unit='GiB'/> beside the \
                    guest's own cell; then [gather] node = 1. Or load the guest module (guest-module, above)";

/// The way by which `terrace-agent gather` would work; it is optional.
#[must_use]
pub fn inspect(root: &HostRoot, config: &Config) -> Finding {
    if let Some(node) = config.gather.node {
        return match NodeWay::open(root, node, &config.tiers) {
            Ok(_) => with_source(
                root,
                config,
                &format!("hot pages come together on node {node}"),
            ),
            Err(error) => Finding::missing(
                NAME,
                format!("{error:#}"),
                "docs/gather.md: Two ways, and What stands in the way",
            ),
        };
    }
    let loaded = config.module && !matches!(GuestModule::open(root), Err(ModuleError::NotLoaded));
    match way::choose(root, config) {
        Ok(_) => with_source(root, config, "the guest module brings hot pages together"),
        Err(error) if config.gather.rounds || config.gather.heat == HeatChoice::Host => {
            Finding::missing(NAME, format!("[gather] asks for it, but {error:#}"), NODE)
        }
        Err(error) if loaded => Finding::degraded(NAME, format!("{error:#}; it is optional"), NODE),
        Err(_) => Finding::ok(
            NAME,
            format!("not set up; it is optional, for hosts that move pages of 2 MiB. {NODE}"),
        ),
    }
}

/// A way that works, with the source of hot pages; without one only lists of another tool can be gathered.
fn with_source(root: &HostRoot, config: &Config, way: &str) -> Finding {
    match Source::choose(root, config, None) {
        Ok(Source::Host) => by_the_host(root, way),
        Ok(source) => Finding::ok(NAME, format!("{way}, found by {}", source.name())),
        Err(error) => Finding::degraded(
            NAME,
            format!("{way}, but {error:#}"),
            "load the guest module (guest-module, above), which has SCAN; without any source `gather --pages FILE` alone works",
        ),
    }
}

/// The same by the host's word.
fn by_the_host(root: &HostRoot, way: &str) -> Finding {
    match by_host::last_word(root) {
        Ok(word) => Finding::ok(NAME, format!("{way}, found by the host ({word})")),
        Err(why) => Finding::degraded(
            NAME,
            format!("{way}, but gather.heat = \"host\" and {why}"),
            "set gather = true under [vm.NAME] on the host, and let terrace-agent run go on here: it hears the host's word, over the port \
             of host.port",
        ),
    }
}

#[cfg(test)]
mod tests {
    use terrace_sys::Health;

    use super::*;

    #[test]
    fn a_heat_without_a_way_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let root = HostRoot::new(dir.path());
        for asked in ["heat = \"host\"", "rounds = true"] {
            let config = Config::parse(&format!("module = false\n[gather]\n{asked}")).unwrap();
            let finding = inspect(&root, &config);
            assert_eq!(
                finding.health,
                Health::Missing,
                "{asked}: {}",
                finding.found
            );
        }
        let none = Config::parse("module = false").unwrap();
        assert_eq!(inspect(&root, &none).health, Health::Ok);
    }

    #[test]
    fn a_way_without_a_source_of_hot_pages_is_weak() {
        let dir = tempfile::tempdir().unwrap();
        let config = Config::parse("module = false").unwrap();
        let finding = with_source(&HostRoot::new(dir.path()), &config, "a way");
        assert_eq!(finding.health, Health::Degraded);
        let begins = "a way, but no source of hot base pages: module = false";
        assert!(finding.found.starts_with(begins), "{}", finding.found);
    }
}
