//! Memory that was taken is judged after a while: if giver and taker together lose more time than before, the giver gets it
//! back, and that is not tried again for long. What was taken for the reserve has no taker yet: each giver is judged by itself.

use std::collections::BTreeMap;

use terrace_proto::{ProviderId, Tick};

use super::member::{Member, WAITS_NS};
use crate::config::ArbiterConfig;

/// Lost time that says nothing, ns a second: a thousandth of a vCPU.
pub(super) const NOISE_NS: u64 = 1_000_000;

/// Memory that was taken from some VMs because others lacked it, or from one for the reserve.
#[derive(Clone, Debug)]
struct Trial {
    at: Tick,
    /// Who gave, the size before, and the lost time then.
    givers: Vec<(ProviderId, u64, u64)>,
    /// All whose lost time counts, the givers among them.
    involved: Vec<ProviderId>,
    /// Lost time of these then, ns a second.
    lost: u64,
}

/// The trials under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Trials(Vec<Trial>);

/// A trial that did harm.
pub(super) struct Failed {
    /// Who gets the memory back.
    pub giver: ProviderId,
    /// Lost time before and now, ns a second.
    pub lost: (u64, u64),
    /// Whether others got it; if not, the reserve did.
    pub is_shared: bool,
}

type Members = BTreeMap<ProviderId, Member>;

fn lost(members: &Members, of: &[ProviderId]) -> u64 {
    let lost = of.iter().filter_map(|id| Some(members.get(id)?.lost()));
    lost.fold(0, u64::saturating_add)
}

impl Trials {
    /// Remembers what is taken now.
    pub fn begin(
        &mut self,
        now: Tick,
        members: &Members,
        givers: Vec<(ProviderId, u64)>,
        takers: &[ProviderId],
    ) {
        if takers.is_empty() {
            for giver in givers {
                self.push(now, members, vec![giver], takers);
            }
        } else if !givers.is_empty() {
            self.push(now, members, givers, takers);
        }
    }

    fn push(
        &mut self,
        now: Tick,
        members: &Members,
        givers: Vec<(ProviderId, u64)>,
        takers: &[ProviderId],
    ) {
        let mut involved: Vec<ProviderId> = givers.iter().map(|(id, _)| *id).collect();
        involved.extend(takers);
        let givers = givers.into_iter();
        let givers = givers.map(|(id, size)| (id, size, lost(members, &[id])));
        let givers = givers.collect();
        self.0.push(Trial {
            at: now,
            lost: lost(members, &involved),
            givers,
            involved,
        });
    }

    /// When the next one is judged.
    pub fn due(&self, config: &ArbiterConfig) -> Option<Tick> {
        let review = ArbiterConfig::ns(config.review_ms);
        self.0
            .first()
            .map(|trial| Tick(trial.at.0.saturating_add(review)))
    }

    /// Judges those whose time has come: a giver of one that did harm is held at its size before.
    pub fn judge(
        &mut self,
        now: Tick,
        members: &mut Members,
        config: &ArbiterConfig,
    ) -> Vec<Failed> {
        let mut failed = Vec::new();
        while self.due(config).is_some_and(|due| due <= now) {
            let trial = self.0.remove(0);
            let after = lost(members, &trial.involved);
            let is_worse = after > trial.lost.saturating_add(NOISE_NS);
            let until = now.0.saturating_add(config.pause_ns());
            let is_shared = trial.involved.len() > trial.givers.len();
            for (giver, from, before) in trial.givers {
                let Some(member) = members.get_mut(&giver) else {
                    continue;
                };
                // Others give it back to one that lost by it. Where a taker alone lacks more, it has use for it.
                let now_lost = member.lost();
                let is_harmed = now_lost > before.saturating_add(NOISE_NS);
                // What live takers say that they lost before is no reason to leave it with a loss of its own.
                let is_robbed = config.live && now_lost > before.saturating_add(WAITS_NS);
                if !is_worse && !is_robbed {
                    continue;
                }
                let is_news = match is_harmed {
                    true => member.owe(now, from, Tick(until)),
                    false => member.hold_at(now, from, Tick(until)),
                };
                // Of several steps the first one says it.
                failed.extend(is_news.then_some(Failed {
                    giver,
                    lost: match is_worse {
                        true => (trial.lost, after),
                        false => (before, now_lost),
                    },
                    is_shared: is_shared && is_worse,
                }));
            }
        }
        failed
    }
}
