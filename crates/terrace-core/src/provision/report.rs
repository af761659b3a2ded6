//! The effects of a report on a provider's state, and the changes that are worth a sentence.

use terrace_proto::provision::{ProviderError, ProviderReport, ProviderStatus};
use terrace_proto::{OrderId, Tick};

use super::config::ProvisionConfig;
use super::guest::Speaker;
use super::provider::{Provider, Seen};
use super::verdicts::Verdicts;

impl Provider {
    /// Takes in a report whose query was asked for at `asked`.
    pub fn take(
        &mut self,
        now: Tick,
        report: &ProviderReport,
        asked: Tick,
        config: &ProvisionConfig,
    ) {
        // A monitor that does not answer does not change what resizes the VM.
        self.mechanism = report.mechanism.clone().or(self.mechanism.take());
        let is_gone = matches!(report.status, Err(ProviderError::Gone(_)));
        if self.liveness.is_quiet() && self.mechanism.is_none() && is_gone {
            // No request asked for this VM's size and nothing was ever found: a monitor that another program holds is
            // no problem that people should see.
            self.queries.not_found();
            return;
        }
        self.queries.found();
        self.answers(now);
        let is_safe = self.kind().frees_pinned();
        let device = self.pins.device_seen(report.pinned_by.as_ref(), is_safe);
        let sharer = self.pins.sharer_seen(&report.held_by);
        for said in device.into_iter().chain(sharer) {
            self.reasons.say(now, said);
        }
        // Pins and resident memory come from the host, so they count even if the provider itself is silent.
        self.resident = report.resident;
        match &report.status {
            Err(trouble) => {
                // The device that comes back may be another one.
                self.verdicts = Verdicts::default();
                // Reported once: the trouble of each further query is shown, not recorded.
                if self.trouble.is_none() {
                    let said = format!("{} does not answer: {trouble}", self.asked());
                    self.reasons.say(now, said);
                }
                self.trouble = Some(trouble.to_string());
                self.guest.distrust();
            }
            Ok(status) => {
                let mut status = status.clone();
                self.queries.was_met = status.is_met();
                let is_fresh = self.verdicts.take(now, &mut status, asked);
                if report.verify {
                    self.verdicts.tried = Some(now);
                }
                self.status_seen(now, status, &is_fresh, report.order, config);
            }
        }
    }

    fn status_seen(
        &mut self,
        now: Tick,
        status: ProviderStatus,
        is_fresh: &[bool],
        given: OrderId,
        config: &ProvisionConfig,
    ) {
        if self.trouble.take().is_some() {
            let said = format!("{} answers", self.asked());
            self.reasons.say(now, said);
        }
        let kind = self.kind();
        // The first status is no reset, whatever its count.
        let before = self.status().map_or(status.resets, |s| s.resets);
        let is_tried = self.verdicts.tried.is_some();
        let mut speaker = Speaker {
            now,
            kind,
            reasons: &mut self.reasons,
        };
        let guest = &mut self.guest;
        guest.restarts(before, status.resets, &mut speaker);
        guest.take(&status, is_fresh, is_tried, config, &mut speaker);
        self.orders.seen(given, |order, was| {
            guest.progress(kind, order, &status, was)
        });
        self.seen = Some(Seen { at: now, status });
    }
}
