//! Hot pages that are named to guests that gather: after each ranking of a VM's pages, to an agent that is believed.

use terrace_host::agent::Verdict;
use terrace_proto::VmId;
use terrace_proto::agent::MAX_HOT;

use super::Daemon;

impl Daemon {
    /// Names the hot pages of a VM whose pages were ranked just now, if its guest gathers.
    pub(super) fn name_hot(&mut self, id: VmId) {
        let Some(vm) = self.vms.of_id(id) else {
            return;
        };
        let now = self.session.now();
        let Some(agent) = self.vms.agent_mut(vm) else {
            return;
        };
        let trusted = agent.view.as_ref();
        let trusted = trusted.is_some_and(|view| view.verdict == Verdict::Trusted);
        let Some(gathers) = agent
            .gathers
            .as_mut()
            .filter(|said| trusted && said.is_due(now))
        else {
            return;
        };
        let Some(hot) = self.session.engine().hot_pages(id, MAX_HOT) else {
            return;
        };
        let set = gathers.name(now, &mut self.hot_sets, &hot);
        if !set.is_empty() {
            self.agents.gather(vm, set);
        }
    }
}
