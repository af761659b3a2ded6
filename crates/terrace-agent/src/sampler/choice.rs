//! Choice of the source of samples, and the replacement of one that fails.
//!
//! Sources are tried in the order of how much they show: the PMU's samples, the module's scan of accessed bits, DAMON. A source that fails is
//! dropped with its reason, and the next one that works takes over. If none works, all are tried again after a while.

use std::time::Duration;

use terrace_core::ranges::Params;
use terrace_proto::Tick;
use terrace_sys::{HostRoot, MonotonicClock};

use super::damon::DamonSampler;
use super::pmu::{self, Pmu, SampleKind};
use super::scan::ScanSampler;
use super::{Drained, Sample, Sampler, SamplerError, Target};
use crate::config::SamplerChoice;
use crate::module::ModuleParts;

/// Time after which sources are tried again if none works.
const RETRY: Duration = Duration::from_secs(5);

/// A function that starts a source.
pub type Start = Box<dyn Fn() -> Result<Box<dyn Sampler>, SamplerError> + Send>;

/// The source in use, and how to find another.
pub struct Samplers {
    /// The sources, in order of preference.
    starts: Vec<Start>,
    current: Option<Box<dyn Sampler>>,
    /// The reason why this source is in use, or none.
    reason: String,
    news: Option<String>,
    clock: MonotonicClock,
    retry_at: Tick,
}

impl Samplers {
    /// The sources that the configuration allows; none is started yet.
    #[must_use]
    pub fn new(
        root: &HostRoot,
        choice: SamplerChoice,
        epoch: Duration,
        module: &ModuleParts,
    ) -> Self {
        let mut starts: Vec<Start> = Vec::new();
        if !matches!(choice, SamplerChoice::Damon | SamplerChoice::Scan) {
            let root = root.clone();
            starts.push(Box::new(move || by_pmu(&root, choice)));
        }
        if matches!(choice, SamplerChoice::Auto | SamplerChoice::Scan) {
            let scan = module.scan.clone();
            starts.push(Box::new(move || {
                let module = scan
                    .clone()
                    .map_err(|why| SamplerError(format!("scan: {why}")))?;
                let sampler = ScanSampler::start(module)?;
                Ok(Box::new(sampler) as Box<dyn Sampler>)
            }));
        }
        if matches!(choice, SamplerChoice::Auto | SamplerChoice::Damon) {
            let root = root.clone();
            starts.push(Box::new(move || {
                let sampler = DamonSampler::start(&root, epoch)?;
                Ok(Box::new(sampler) as Box<dyn Sampler>)
            }));
        }
        Self::of(starts)
    }

    /// Sources that the caller gives, such as a test's.
    #[must_use]
    pub fn of(starts: Vec<Start>) -> Self {
        Self {
            starts,
            current: None,
            reason: "not started yet".into(),
            news: None,
            clock: MonotonicClock::start(),
            retry_at: Tick(0),
        }
    }

    /// The source's name; `None` if no source works.
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        self.current.as_ref().map(|sampler| sampler.name())
    }

    /// The reason why this source is in use, or why there is none.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The tree's parameters that fit the source's counts.
    #[must_use]
    pub fn params(&self, vcpus: u32) -> Params {
        match &self.current {
            Some(sampler) => sampler.params(vcpus),
            None => Params::paper(vcpus),
        }
    }

    /// The news since the last call, if any: another source is in use, or none.
    pub fn take_news(&mut self) -> Option<String> {
        self.news.take()
    }

    /// Whether the source in use clears accessed bits, so that others of their readers miss accesses.
    #[must_use]
    pub fn clears_accessed_bits(&self) -> bool {
        let current = self.current.as_ref();
        current.is_some_and(|sampler| sampler.clears_accessed_bits())
    }

    /// Stops sampling until [`Samplers::sample`] is called again.
    pub fn rest(&mut self) {
        if let Some(sampler) = &mut self.current
            && let Err(error) = sampler.watch(&[])
        {
            let text = format!("{} failed: {error}", sampler.name());
            self.current = None;
            self.tell(text);
        }
    }

    /// Samples these processes.
    pub fn sample(&mut self, targets: &[Target], sink: &mut dyn FnMut(Sample)) -> Drained {
        if self.current.is_none() && self.clock.now() >= self.retry_at {
            self.start();
        }
        let Some(sampler) = &mut self.current else {
            return Drained::default();
        };
        let drained = sampler.watch(targets).and_then(|()| sampler.drain(sink));
        match drained {
            Ok(drained) => drained,
            Err(error) => {
                let text = format!("{} failed: {error}", sampler.name());
                self.current = None;
                self.retry_at = self.clock.now();
                self.tell(text);
                Drained::default()
            }
        }
    }

    fn start(&mut self) {
        let mut refused = Vec::new();
        for start in &self.starts {
            match start() {
                Ok(sampler) => {
                    self.current = Some(sampler);
                    let text = match refused.is_empty() {
                        true => "the first choice".to_owned(),
                        false => refused.join("; "),
                    };
                    return self.tell(text);
                }
                Err(error) => refused.push(error.to_string()),
            }
        }
        self.retry_at = self.clock.now().after(RETRY);
        self.tell(format!("no source of samples: {}", refused.join("; ")));
    }

    fn tell(&mut self, text: String) {
        if self.reason != text {
            self.news = Some(match self.name() {
                Some(name) => format!("samples come from {name}: {text}"),
                None => text.clone(),
            });
            self.reason = text;
        }
    }
}

/// The PMU's samples, if it gives any and they are of the wanted kind.
///
/// # Errors
/// If the PMU gives none, or of another kind.
pub fn by_pmu(root: &HostRoot, choice: SamplerChoice) -> Result<Box<dyn Sampler>, SamplerError> {
    let found = pmu::choose(root);
    let recipe = found.recipe.ok_or(SamplerError(found.finding.found))?;
    let wanted = match choice {
        SamplerChoice::Pebs => Some(SampleKind::Pebs),
        SamplerChoice::Ibs => Some(SampleKind::Ibs),
        SamplerChoice::Auto | SamplerChoice::Scan | SamplerChoice::Damon => None,
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted != recipe.kind) {
        let (wanted, there) = (wanted.name(), recipe.kind.name());
        return Err(SamplerError(format!(
            "this processor samples by {there} and not by {wanted}"
        )));
    }
    let pmu = Pmu::open(root.clone(), recipe, pmu::Settings::default())?;
    Ok(Box::new(pmu))
}

impl std::fmt::Debug for Samplers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Samplers")
            .field("current", &self.name())
            .field("reason", &self.reason)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    struct Fake(&'static str, Arc<AtomicBool>);

    impl Sampler for Fake {
        fn name(&self) -> &'static str {
            self.0
        }

        fn params(&self, vcpus: u32) -> Params {
            Params::paper(vcpus)
        }

        fn watch(&mut self, _: &[Target]) -> Result<(), SamplerError> {
            Ok(())
        }

        fn drain(&mut self, _: &mut dyn FnMut(Sample)) -> Result<Drained, SamplerError> {
            match self.1.load(Ordering::Relaxed) {
                true => Ok(Drained::default()),
                false => Err(SamplerError("taken".into())),
            }
        }
    }

    fn start(name: &'static str, works: &Arc<AtomicBool>) -> Start {
        let works = Arc::clone(works);
        Box::new(move || match works.load(Ordering::Relaxed) {
            true => Ok(Box::new(Fake(name, Arc::clone(&works))) as Box<dyn Sampler>),
            false => Err(SamplerError(format!("{name} is in use"))),
        })
    }

    #[test]
    fn a_failed_source_is_replaced_by_the_next_with_its_reason() {
        let (first, second) = (AtomicBool::new(true), AtomicBool::new(true));
        let (first, second) = (Arc::new(first), Arc::new(second));
        let mut samplers = Samplers::of(vec![start("pebs", &first), start("damon", &second)]);
        let sample = |samplers: &mut Samplers| {
            samplers.sample(&[], &mut |_| ());
        };
        sample(&mut samplers);
        assert_eq!(samplers.name(), Some("pebs"));
        assert!(samplers.take_news().is_some() && samplers.take_news().is_none());
        first.store(false, Ordering::Relaxed);
        sample(&mut samplers);
        assert_eq!(samplers.name(), None);
        assert!(samplers.reason().contains("pebs failed: taken"));
        sample(&mut samplers);
        assert_eq!(samplers.name(), Some("damon"));
        assert!(samplers.reason().contains("pebs is in use"));
    }

    #[test]
    fn without_a_working_source_one_line_says_so() {
        let never = Arc::new(AtomicBool::new(false));
        let mut samplers = Samplers::of(vec![start("damon", &never)]);
        samplers.sample(&[], &mut |_| ());
        assert!(
            samplers
                .take_news()
                .unwrap()
                .contains("no source of samples: damon is in use")
        );
        samplers.sample(&[], &mut |_| ());
        assert_eq!(samplers.take_news(), None);
    }
}
