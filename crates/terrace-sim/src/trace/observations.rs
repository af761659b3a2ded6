//! Terrace's own log as a trace: the pages that each scan found accessed.
//!
//! A scan's answer has the pages that were touched since the answer before. Each such page is one record of one line
//! at the page's start: a store if the answer has `written`, else a load. The log has neither the number of touches
//! of a page within a window nor their location in it; pages under a huge leaf of the guest all count as touched when
//! one is. Spaces (VMs, processes) lie apart, in order of first sight.

use terrace_proto::log::{LogError, LogReader, Record as LogRecord};
use terrace_proto::{Event, PageBitmap, ScanAnswer, Space, Tick};

use crate::base::access::LINE;

use super::input::Input;
use super::{Op, Record};

/// Address bits of one space.
const SPACE_BITS: u32 = 48;

/// The result of a step.
pub(super) enum Step {
    /// A page that was touched.
    Access(Record),
    /// A record of the log without a touched page.
    Ignored,
    /// A scan whose pages cannot be given addresses.
    Broken(&'static str),
    /// The end of the log, in the middle of a record or not.
    End {
        /// Whether the log ends in the middle of a record.
        cut_off: bool,
    },
}

/// A log being read.
pub(super) struct Observations {
    log: LogReader<Input>,
    spaces: Vec<Space>,
    answer: Option<Answer>,
    ended: bool,
}

/// An answer of which some pages are still to be given.
struct Answer {
    at: Tick,
    base: u64,
    accessed: PageBitmap,
    written: Option<PageBitmap>,
    /// The word of `accessed` that is being given, and its bits that are left.
    word: usize,
    left: u64,
}

impl Observations {
    pub(super) fn new(input: Input) -> Result<Self, LogError> {
        Ok(Self {
            log: LogReader::new(input)?,
            spaces: Vec::new(),
            answer: None,
            ended: false,
        })
    }

    pub(super) fn step(&mut self) -> Result<Step, LogError> {
        if let Some(answer) = &mut self.answer {
            match answer.next() {
                Some(step) => return Ok(step),
                None => self.answer = None,
            }
        }
        if self.ended {
            return Ok(Step::End { cut_off: false });
        }
        match self.log.next_record()? {
            Some((at, LogRecord::Event(Event::Scanned(scan)))) => {
                let Some(base) = self.base(scan.space) else {
                    return Ok(Step::Broken(
                        "a scan of the 65,537th address space; 65,536 can be distinguished",
                    ));
                };
                self.answer = Some(Answer::new(at, base, *scan));
                Ok(Step::Ignored)
            }
            Some(_) => Ok(Step::Ignored),
            None => {
                self.ended = true;
                Ok(Step::End {
                    cut_off: self.log.cut_off(),
                })
            }
        }
    }

    /// The base of a space's addresses.
    fn base(&mut self, space: Space) -> Option<u64> {
        let number = match self.spaces.iter().position(|s| *s == space) {
            Some(number) => number,
            None if self.spaces.len() <= usize::from(u16::MAX) => {
                self.spaces.push(space);
                self.spaces.len() - 1
            }
            None => return None,
        };
        Some((number as u64) << SPACE_BITS)
    }
}

impl Answer {
    fn new(at: Tick, base: u64, scan: ScanAnswer) -> Self {
        Self {
            at,
            base,
            left: scan.accessed.words().first().copied().unwrap_or(0),
            accessed: scan.accessed,
            written: scan.written,
            word: 0,
        }
    }

    fn next(&mut self) -> Option<Step> {
        while self.left == 0 {
            self.word += 1;
            self.left = *self.accessed.words().get(self.word)?;
        }
        let page = self.word as u64 * 64 + u64::from(self.left.trailing_zeros());
        self.left &= self.left - 1;
        // A log's bodies are too short for a bitmap of 2^36 pages: the page fits into its space.
        let written = self.written.as_ref().is_some_and(|w| w.get(page));
        Some(Step::Access(Record {
            addr: self.base | page << 12,
            bytes: u32::try_from(LINE).unwrap_or(1),
            op: if written { Op::Store } else { Op::Load },
            time_ns: Some(self.at.0),
        }))
    }
}
