//! Replaying a log with the policy that it was recorded with: the same must be decided again.
//!
//! Responsible for: feeding a log's events to the engine, or to a guest's ranges, built from the log's own
//! configuration, and comparing each action. It leaves to others: opening files, and replays with another policy
//! ([`super::other`]).

use std::collections::VecDeque;
use std::io::Read;

use serde::Serialize;
use terrace_proto::Tick;
use terrace_proto::log::{LogError, LogReader, RangesRecord, Record};

use crate::config::EngineConfig;
use crate::engine::Engine;
use crate::error::ConfigError;
use crate::ranges::Ranges;

use super::{Controller, Part, Session};

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Replayed {
    /// Known records, the start record included.
    pub records: u64,
    /// Events among them.
    pub events: u64,
    /// Actions among them, all equal to the engine's.
    pub actions: u64,
    /// Records of unknown kinds.
    pub skipped: u64,
    /// The log ended in the middle of a record.
    pub cut_off: bool,
    /// Why the recording was given up before its time, if the log has it.
    pub given_up: Option<String>,
    /// Actions that the engine gave after the last record: more than none if the log stopped, at its
    /// size limit say, between an event and its actions.
    pub unrecorded_actions: u64,
}

/// A log that cannot be replayed, or was not decided the same way.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// The log cannot be read.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log does not start with the configuration.
    #[error("the log does not start with a start record, so its configuration is not known")]
    NoStart,
    /// The log is of a guest's ranges.
    #[error(
        "this is the log of a guest's agent, which has one policy: replay it without naming one"
    )]
    OfRanges,
    /// The configuration is not one of this version.
    #[error("the log's configuration cannot be read")]
    Config(#[from] serde_json::Error),
    /// The policy that it shall be replayed with is none.
    #[error("the policy to replay it with")]
    Policy(#[source] ConfigError),
    /// The configuration is not valid.
    #[error("the log's configuration is not valid")]
    Invalid(#[from] ConfigError),
    /// The engine decided otherwise.
    #[error("record {record} (tick {}): recorded {recorded}, but the engine decides {decided}", .at.0)]
    Differs {
        /// Number of the record, from 0.
        record: u64,
        /// The action's tick.
        at: Tick,
        /// The recorded action.
        recorded: String,
        /// The action that the engine gave.
        decided: String,
    },
}

/// Opens a log: its records after the first, and the configuration that the first one has.
///
/// # Errors
/// If it is not a log, or its configuration cannot be read.
pub fn open<R: Read>(input: R) -> Result<(LogReader<R>, EngineConfig), ReplayError> {
    let mut reader = LogReader::new(input)?;
    match reader.next_record()? {
        Some((_, Record::Start(start))) => Ok((reader, recorded_config(&start.config)?)),
        Some((_, Record::Ranges(RangesRecord::Start(_)))) => Err(ReplayError::OfRanges),
        _ => Err(ReplayError::NoStart),
    }
}

/// The configuration that a log was recorded with. A rule that a later version changed has the old
/// one if the log does not name it.
fn recorded_config(text: &str) -> Result<EngineConfig, serde_json::Error> {
    let mut config: serde_json::Value = serde_json::from_str(text)?;
    if let Some(keys) = config.as_object_mut() {
        keys.entry("fair_shares").or_insert(false.into());
        keys.entry("tables").or_insert("stay".into());
    }
    serde_json::from_value(config)
}

/// Replays a log, of the engine or of a guest's ranges.
///
/// # Errors
/// If it cannot be read, and at the first action that differs.
pub fn replay(input: impl Read) -> Result<Replayed, ReplayError> {
    let mut reader = LogReader::new(input)?;
    match reader.next_record()? {
        Some((_, Record::Start(start))) => {
            compare(reader, Engine::new(recorded_config(&start.config)?)?)
        }
        Some((_, Record::Ranges(RangesRecord::Start(start)))) => {
            compare(reader, Ranges::new(serde_json::from_str(&start.config)?))
        }
        _ => Err(ReplayError::NoStart),
    }
}

/// Gives a controller a log's events, and compares what it decides.
fn compare<C: Controller>(
    mut reader: LogReader<impl Read>,
    controller: C,
) -> Result<Replayed, ReplayError> {
    let mut session = Session::new(controller, ());
    let mut decided = VecDeque::new();
    let mut sum = Replayed {
        records: 1,
        ..Replayed::default()
    };
    while let Some((at, record)) = reader.next_record()? {
        let number = sum.records + reader.skipped();
        let differs = |recorded: String, decided: String| ReplayError::Differs {
            record: number,
            at,
            recorded,
            decided,
        };
        sum.records += 1;
        match C::part(record) {
            None => return Err(differs("a second start".into(), "nothing".into())),
            Some(Part::Event(event)) => {
                if let Some(action) = decided.front() {
                    return Err(differs("an event".into(), brief(action)));
                }
                sum.events += 1;
                decided.extend(session.hear(at, event));
            }
            Some(Part::Action(recorded)) => {
                sum.actions += 1;
                match decided.pop_front() {
                    Some(action) if C::is_same(&action, &recorded) => {}
                    Some(action) => return Err(differs(brief(&recorded), brief(&action))),
                    None => return Err(differs(brief(&recorded), "nothing".into())),
                }
            }
        }
    }
    sum.skipped = reader.skipped();
    sum.cut_off = reader.cut_off();
    sum.given_up = reader.given_up().map(str::to_owned);
    sum.unrecorded_actions = decided.len() as u64;
    Ok(sum)
}

/// An action in at most 400 characters.
fn brief(action: &impl std::fmt::Debug) -> String {
    let mut text = format!("{action:?}");
    if let Some((cut, _)) = text.char_indices().nth(400) {
        text.truncate(cut);
        text += " …";
    }
    text
}
