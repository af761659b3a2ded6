//! The reader of traces: recognises the format, gives one record after the other, and names broken ones.

use std::io::Read;
use std::path::{Path, PathBuf};

use super::error::shortened;
use super::input::{Input, Line, MAX_LINE};
use super::observations::{Observations, Step};
use super::oracle_general::{self, Fields, Objects, RECORD};
use super::{Format, OnBroken, Record, TraceError, lackey, perf};

/// A trace being read.
pub struct Reader {
    file: PathBuf,
    format: Format,
    on_broken: OnBroken,
    kind: Kind,
    records: u64,
    ignored: u64,
    skipped: u64,
}

/// The parser of a line.
type Parse = fn(&[u8]) -> Result<Option<Record>, &'static str>;

enum Kind {
    Text {
        input: Input,
        line: u64,
        parse: Parse,
    },
    Objects {
        input: Input,
        record: u64,
        objects: Objects,
    },
    Log {
        log: Box<Observations>,
        record: u64,
    },
}

impl Reader {
    /// Opens a trace; if the format is not given, it is recognised by content.
    ///
    /// # Errors
    /// If the file cannot be read, is empty, or is not a trace.
    pub fn open(
        file: &Path,
        format: Option<Format>,
        on_broken: OnBroken,
    ) -> Result<Self, TraceError> {
        Self::of(file, Input::open(file), format, on_broken)
    }

    /// Reads a trace from bytes that are not a file's; `name` stands for the file in errors.
    ///
    /// # Errors
    /// As [`Reader::open`].
    pub fn from_bytes(
        name: &str,
        bytes: Box<dyn Read + Send>,
        format: Option<Format>,
        on_broken: OnBroken,
    ) -> Result<Self, TraceError> {
        Self::of(Path::new(name), Input::new(bytes), format, on_broken)
    }

    fn of(
        file: &Path,
        input: std::io::Result<Input>,
        format: Option<Format>,
        on_broken: OnBroken,
    ) -> Result<Self, TraceError> {
        let io = |why| TraceError::Io {
            file: file.to_owned(),
            why,
        };
        let mut input = input.map_err(io)?;
        let (start, whole) = input.peek().map_err(io)?;
        if start.is_empty() {
            return Err(TraceError::Empty {
                file: file.to_owned(),
            });
        }
        let format = match format.or_else(|| recognised(start, whole)) {
            Some(format) => format,
            None => {
                return Err(TraceError::Unknown {
                    file: file.to_owned(),
                    start: shortened(start),
                });
            }
        };
        Ok(Self {
            file: file.to_owned(),
            format,
            on_broken,
            kind: Kind::new(file, format, input)?,
            records: 0,
            ignored: 0,
            skipped: 0,
        })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The format in which the file is read.
    #[must_use]
    pub fn format(&self) -> Format {
        self.format
    }

    /// Number of records given so far.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.records
    }

    /// Number of whole lines or records so far that have no access: instructions, comments, other events.
    #[must_use]
    pub fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Number of broken records so far that were left out ([`OnBroken::Skip`]).
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    /// If reading fails, if a record is broken and must not be skipped, or if the trace ends without a record.
    pub fn next_record(&mut self) -> Result<Option<Record>, TraceError> {
        loop {
            match self.kind.step(&self.file) {
                Ok(Next::Access(record)) => {
                    self.records += 1;
                    return Ok(Some(record));
                }
                Ok(Next::Ignored) => self.ignored += 1,
                Ok(Next::End) if self.records == 0 => {
                    return Err(TraceError::NoAccess {
                        file: self.file.clone(),
                        format: self.format.name(),
                        ignored: self.ignored,
                        skipped: self.skipped,
                    });
                }
                Ok(Next::End) => return Ok(None),
                Err(e) if e.is_broken_record() && self.on_broken == OnBroken::Skip => {
                    self.skipped += 1;
                }
                Err(e) => return Err(e),
            }
        }
    }
}

enum Next {
    Access(Record),
    Ignored,
    End,
}

impl Kind {
    fn new(file: &Path, format: Format, input: Input) -> Result<Self, TraceError> {
        Ok(match format {
            Format::Lackey => Self::Text {
                input,
                line: 0,
                parse: lackey::parse,
            },
            Format::PerfScript => Self::Text {
                input,
                line: 0,
                parse: perf::parse,
            },
            Format::OracleGeneral => Self::Objects {
                input,
                record: 0,
                objects: Objects::default(),
            },
            Format::TerraceLog => Self::Log {
                log: Box::new(Observations::new(input).map_err(|why| TraceError::Log {
                    file: file.to_owned(),
                    why,
                })?),
                record: 0,
            },
        })
    }

    fn step(&mut self, file: &Path) -> Result<Next, TraceError> {
        match self {
            Self::Text { input, line, parse } => text(file, input, line, *parse),
            Self::Objects {
                input,
                record,
                objects,
            } => object(file, input, record, objects),
            Self::Log { log, record } => observation(file, log, record),
        }
    }
}

fn text(file: &Path, input: &mut Input, line: &mut u64, parse: Parse) -> Result<Next, TraceError> {
    let got = input.line().map_err(|why| TraceError::Io {
        file: file.to_owned(),
        why,
    })?;
    let broken = |text: &[u8], expected: &str| TraceError::Line {
        file: file.to_owned(),
        line: *line + 1,
        text: shortened(text),
        expected: expected.to_owned(),
    };
    let next = match got {
        None => return Ok(Next::End),
        Some(Line::TooLong(start)) => Err(TraceError::EndlessLine {
            file: file.to_owned(),
            line: *line + 1,
            text: shortened(start),
            limit: MAX_LINE,
        }),
        Some(Line::Whole(text)) => match parse(text) {
            Ok(Some(record)) => Ok(Next::Access(record)),
            Ok(None) => Ok(Next::Ignored),
            Err(expected) => Err(broken(text, expected)),
        },
    };
    *line += 1;
    next
}

fn object(
    file: &Path,
    input: &mut Input,
    record: &mut u64,
    objects: &mut Objects,
) -> Result<Next, TraceError> {
    let mut bytes = [0; RECORD];
    let mut got = 0;
    while got < RECORD {
        let more = input
            .read(&mut bytes[got..])
            .map_err(|why| TraceError::Io {
                file: file.to_owned(),
                why,
            })?;
        if more == 0 {
            break;
        }
        got += more;
    }
    if got == 0 {
        return Ok(Next::End);
    }
    let broken = |what: String| TraceError::Record {
        file: file.to_owned(),
        record: *record + 1,
        offset: *record * RECORD as u64,
        what,
    };
    let next = if got < RECORD {
        Err(broken(format!(
            "the file ends after {got} of its {RECORD} bytes; a record was cut off"
        )))
    } else {
        let access = objects.access(&Fields::of(&bytes));
        access
            .map(Next::Access)
            .map_err(|what| broken(what.to_owned()))
    };
    *record += 1;
    next
}

fn observation(file: &Path, log: &mut Observations, record: &mut u64) -> Result<Next, TraceError> {
    let broken = |record: u64, what| TraceError::LogRecord {
        file: file.to_owned(),
        record: record + 1,
        what,
    };
    match log.step() {
        Ok(Step::Access(access)) => Ok(Next::Access(access)),
        Ok(Step::Ignored) => {
            *record += 1;
            Ok(Next::Ignored)
        }
        Ok(Step::Broken(what)) => Err(broken(*record, what)),
        Ok(Step::End { cut_off: false }) => Ok(Next::End),
        Ok(Step::End { cut_off: true }) => Err(broken(
            *record,
            "the log ends in the middle of it (its writer was stopped)",
        )),
        Err(why) => Err(TraceError::Log {
            file: file.to_owned(),
            why,
        }),
    }
}

/// The format of a file with these first bytes; `whole`: they are all of the file.
fn recognised(start: &[u8], whole: bool) -> Option<Format> {
    if start.starts_with(&terrace_proto::log::MAGIC) {
        return Some(Format::TerraceLog);
    }
    if start.contains(&0) {
        return oracle_general::is_likely(start).then_some(Format::OracleGeneral);
    }
    let end = match start.iter().rposition(|b| *b == b'\n') {
        Some(end) if !whole => end,
        _ => start.len(),
    };
    let mut chatter = false;
    for line in start[..end].split(|b| *b == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if lackey::is_typical(line) {
            return Some(Format::Lackey);
        }
        if matches!(perf::parse(line), Ok(Some(_))) {
            return Some(Format::PerfScript);
        }
        chatter |= !line.is_empty() && lackey::is_chatter(line);
    }
    chatter.then_some(Format::Lackey)
}
