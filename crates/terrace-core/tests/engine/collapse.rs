//! Huge pages beside moves: pages of a VM stay where they are while huge pages are made of its memory.

use std::collections::BTreeSet;

use terrace_core::EngineConfig;
use terrace_proto::log::Record;
use terrace_proto::provision::{
    BlockOutcome, BlockStatus, CollapseReport, Collapsed, Mechanism, NodeMemory, OrderOutcome,
    Origin, OtherUsers, ProviderKind, ProviderReport, ProviderSpec, ProviderStatus, SizesWanted,
    TierStatus,
};
use terrace_proto::{Action, Event, MemoryRights, OrderId, ProviderId, ResizeId, Tick, VmId};
use terrace_testkit::engine::{Host, SECOND, draw, spec};

const GIB: u64 = 1 << 30;
const ID: ProviderId = ProviderId(1);
const VM: VmId = VmId(1);
/// Time between two looks at what the engine wants.
const LOOK: u64 = SECOND / 20;

/// A VM with a balloon whose pages move all the time, as its load changes with each scan.
struct Ballooned {
    host: Host,
    /// Records that were looked at.
    seen: usize,
    bytes: u64,
    order: OrderId,
    /// Looks until a step is answered.
    step_looks: u64,
    steps: Vec<(u64, Event)>,
}

impl Ballooned {
    fn new(step_looks: u64) -> Self {
        let mut config = EngineConfig {
            move_budget_bytes_per_s: 1 << 20,
            plan_max_bytes: 2 << 20,
            plan_max_pages: 64,
            ..EngineConfig::default()
        };
        config.provision.collapse_bytes_per_s = 4 << 20;
        let mut host = Host::new(config, &[8192, 16384]);
        host.arrive(
            spec(1, 8192, 2048),
            Box::new(|page, scan| (draw(page, scan / 8) < 64, false)),
        );
        host.after(
            0,
            Event::ProviderArrived(ProviderSpec {
                provider: ID,
                vm: "vm1".into(),
                is_configured: true,
                is_quiet: false,
                host_nodes: Vec::new(),
            }),
        );
        host.after(
            0,
            Event::MemoryRights(MemoryRights {
                provider: ID,
                vm: Some(VM),
                floor_bytes: 0,
                ceiling_bytes: u64::MAX,
                weight: 1000,
            }),
        );
        Self {
            host,
            seen: 0,
            bytes: GIB,
            order: OrderId(0),
            step_looks,
            steps: Vec::new(),
        }
    }

    fn run_for(&mut self, seconds: u64) {
        for _ in 0..seconds * SECOND / LOOK {
            self.host.run_until(Tick(self.host.now.0 + LOOK));
            let new: Vec<Record> = self.host.log()[self.seen..]
                .iter()
                .map(|(_, record)| record.clone())
                .collect();
            self.seen += new.len();
            for (looks, _) in &mut self.steps {
                *looks = looks.saturating_sub(1);
            }
            let steps = std::mem::take(&mut self.steps).into_iter();
            let (due, later): (Vec<_>, Vec<_>) = steps.partition(|(looks, _)| *looks == 0);
            self.steps = later;
            for (_, answer) in due {
                self.host.after(0, answer);
            }
            for record in new {
                self.act(record);
            }
        }
    }

    fn act(&mut self, record: Record) {
        match record {
            Record::Action(Action::QueryProvider(query)) => {
                let report = self.report(query.number, query.verify);
                self.host.after(0, Event::ProviderSeen(Box::new(report)));
            }
            Record::Action(Action::Resize(order)) => {
                self.order = order.order;
                self.bytes = order.size_bytes[0].unwrap_or(self.bytes);
                let outcome = OrderOutcome {
                    order: order.order,
                    provider: ID,
                    result: Ok(()),
                };
                self.host.after(0, Event::OrderOutcome(outcome));
            }
            Record::Action(Action::Collapse(request)) => {
                let made = BlockOutcome {
                    block: 1,
                    status: BlockStatus::Collapsed,
                };
                let done = Collapsed {
                    blocks: vec![made],
                    next: Some(2),
                    ..Collapsed::default()
                };
                let report = CollapseReport {
                    provider: ID,
                    number: request.number,
                    result: Ok(done),
                    elapsed_ns: 0,
                };
                let answer = Event::Collapsed(Box::new(report));
                self.steps.push((self.step_looks, answer));
            }
            _ => {}
        }
    }

    fn report(&self, number: u64, verify: bool) -> ProviderReport {
        let tier = TierStatus {
            whole_bytes: 4 * GIB,
            block_bytes: 4096,
            target_bytes: self.bytes,
            size_bytes: self.bytes,
            ..TierStatus::default()
        };
        let status = ProviderStatus {
            connected: true,
            targets_sent: true,
            tiers: vec![tier],
            ..ProviderStatus::default()
        };
        let node = NodeMemory {
            node: 0,
            tier: None,
            page_bytes: 0,
            free_bytes: 64 * GIB,
        };
        ProviderReport {
            provider: ID,
            number,
            mechanism: Some(Mechanism {
                kind: ProviderKind::Balloon,
                name: "the balloon".into(),
                at: "a test".into(),
            }),
            status: Ok(status),
            verify,
            resident: None,
            pinned_by: Ok(None),
            held_by: OtherUsers::Nobody,
            order: self.order,
            host: vec![node],
        }
    }

    fn grow(&mut self) {
        self.run_for(10);
        let wanted = SizesWanted {
            id: ResizeId(1),
            provider: ID,
            origin: Origin::Operator,
            size_bytes: vec![Some(2 * GIB)],
        };
        self.host.after(0, Event::SizesWanted(wanted));
    }
}

#[test]
fn moves_and_huge_pages_of_a_vm_keep_out_of_each_others_way() {
    let mut vm = Ballooned::new(10);
    vm.grow();
    vm.run_for(120);
    let mut plans = BTreeSet::new();
    let mut asked = false;
    let (mut steps, mut moves) = (0, 0);
    for (at, record) in vm.host.log() {
        match record {
            Record::Action(Action::Move(plan)) => {
                assert!(!asked, "a plan goes out during a step at {at:?}");
                plans.insert(plan.id);
                moves += u32::from(steps > 0);
            }
            Record::Event(Event::Moved(report)) => {
                plans.remove(&report.id);
            }
            Record::Action(Action::Collapse(_)) => {
                assert!(plans.is_empty(), "a step begins during a plan at {at:?}");
                asked = true;
                steps += 1;
            }
            Record::Event(Event::Collapsed(_)) => asked = false,
            _ => {}
        }
    }
    assert!(steps > 10 && moves > 10, "{steps} steps, {moves} moves");
}

#[test]
fn a_step_that_is_not_answered_holds_moves_up_for_a_while_alone() {
    let mut vm = Ballooned::new(u64::MAX);
    vm.grow();
    vm.run_for(120);
    let at = |is: fn(&Action) -> bool| {
        let log = vm.host.log().iter().rev();
        log.filter_map(|(at, record)| match record {
            Record::Action(action) if is(action) => Some(at.0),
            _ => None,
        })
        .next()
    };
    let step = at(|action| matches!(action, Action::Collapse(_))).unwrap();
    let last_move = at(|action| matches!(action, Action::Move(_))).unwrap();
    assert!(last_move > step + 10 * SECOND, "{step} {last_move}");
}
