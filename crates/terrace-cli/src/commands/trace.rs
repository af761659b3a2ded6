//! `terrace trace`: the figures of a recorded trace's program, and conversion to other formats.

use std::io::{BufWriter, IsTerminal};
use std::process::ExitCode;

use anyhow::{Context, Result};
use terrace_sim::LINE;
use terrace_sim::trace::{Cache, OnBroken, Reader, Record, Share, Summary, Tally, Tenths, Writer};

use crate::args::trace::{Convert, Info, Input, Trace};
use crate::output::files::{Partial, check_apart, put};
use crate::{output, render};

/// Runs the command.
pub fn run(command: &Trace) -> Result<ExitCode> {
    match command {
        Trace::Info(args) => info(args)?,
        Trace::Convert(args) => convert(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Input {
    fn open(&self) -> Result<Reader> {
        let on_broken = if self.skip_broken {
            OnBroken::Skip
        } else {
            OnBroken::Stop
        };
        Ok(Reader::open(&self.file, self.format, on_broken)?)
    }

    /// Calls `each` for every record, with progress on standard error. Returns the reader at its end.
    pub(super) fn each(
        &self,
        what: &str,
        mut each: impl FnMut(&Record) -> Result<bool>,
    ) -> Result<Reader> {
        const BETWEEN: u64 = 1 << 20;
        let mut reader = self.open()?;
        let shown = std::io::stderr().is_terminal();
        while let Some(record) = reader.next_record()? {
            if !each(&record)? {
                break;
            }
            if shown && reader.records().is_multiple_of(BETWEEN) {
                eprint!("\r{what}: {} million records", reader.records() / 1_000_000);
            }
        }
        if shown && reader.records() >= BETWEEN {
            eprint!("\r\x1b[K");
        }
        Ok(reader)
    }
}

fn info(args: &Info) -> Result<()> {
    let file = &args.input.file;
    check_apart([file.as_path()], args.json.as_deref())?;
    let mut tally = Tally::new(file.clone());
    let reader = args.input.each("reading", |record| {
        tally.add(record)?;
        Ok(true)
    })?;
    let mut tenths = Tenths::new(file.clone(), reader.records());
    args.input.each("reading again, for the tenths", |record| {
        tenths.add(record)?;
        Ok(true)
    })?;
    let summary = tally.summary(&reader, tenths.finish());
    match &args.json {
        Some(out) if output::is_standard(out) => return output::print_json(&summary),
        Some(out) => put(out, &(serde_json::to_string_pretty(&summary)? + "\n"))?,
        None => {}
    }
    output::print(text(&summary))?;
    Ok(())
}

fn text(s: &Summary) -> String {
    let percent = |part: u64| share(part as f64 / s.records.max(1) as f64);
    let mut lines = vec![
        format!("{}: {}", s.file, s.format.name()),
        format!(
            "records      {}: loads {} ({}), stores {} ({}), modifies {} ({})",
            s.records,
            s.loads,
            percent(s.loads),
            s.stores,
            percent(s.stores),
            s.modifies,
            percent(s.modifies)
        ),
        format!(
            "touched      {} pages of 4 KiB ({}) in {} regions of 2 MiB; {} pages are written, {} have one \
             record",
            s.touched_pages,
            render::bytes(s.touched_bytes),
            s.touched_regions,
            s.written_pages,
            s.single_pages
        ),
        format!(
            "left out     {} lines or records without an access, {} broken ones; {} records cross into \
             another page and count on their first",
            s.ignored, s.skipped, s.crossing
        ),
    ];
    if let Some(seconds) = s.duration_s {
        lines.push(format!("duration     {seconds:.3} s"));
    }
    lines.push(format!(
        "hottest page {} of the records; {} are not on the 16 hottest",
        share(s.hottest_page),
        share(s.without_16_share)
    ));
    lines.push(String::new());
    lines.push(popularity(&s.hottest, &s.without_16));
    lines.push("distinct pages in each tenth of the records:".to_owned());
    let most = s.tenths.iter().copied().max().unwrap_or(0);
    for (number, pages) in (1..).zip(&s.tenths) {
        let bar = bar(*pages as f64 / most.max(1) as f64);
        lines.push(format!("{number:>4} {pages:>9} {bar}"));
    }
    lines.join("\n").trim_end().to_owned() + "\n"
}

/// The shares of the hottest pages as a table with bars.
fn popularity(all: &[Share], without: &[Share]) -> String {
    let rows: Vec<Vec<String>> = all
        .iter()
        .zip(without)
        .map(|(all, without)| {
            vec![
                format!("{} %", all.percent),
                all.pages.to_string(),
                share(all.share),
                bar(all.share),
                share(without.share),
            ]
        })
        .collect();
    let header = ["HOTTEST", "PAGES", "RECORDS", "", "WITHOUT THE 16 HOTTEST"];
    render::table(&header, &[0, 1, 2, 4], &rows)
}

fn share(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// A bar of up to 30 characters.
fn bar(part: f64) -> String {
    const FULL: usize = 30;
    let filled = (1..=FULL).filter(|n| *n as f64 <= part * FULL as f64 + 0.5);
    let filled = filled.count();
    "█".repeat(filled) + &"·".repeat(FULL - filled)
}

fn convert(args: &Convert) -> Result<()> {
    let mut cache = match args.cache {
        Some(size) => Some(Cache::new(size.as_u64()).context("--cache")?),
        None => None,
    };
    check_apart([args.input.file.as_path()], [args.out.as_path()])?;
    let partial = Partial::beside(&args.out)?;
    let mut writer = Writer::new(BufWriter::new(&partial.file), args.to);
    let mut passed = 0;
    let writing = || format!("cannot write {}", partial.path.display());
    let reader = args.input.each("converting", |record| {
        let mut put = |record: &Record| -> Result<()> {
            let taken =
                args.every.is_none_or(|n| passed % n == 0) && args.first.is_none_or(|n| passed < n);
            passed += 1;
            if taken {
                writer.write(record).with_context(writing)?;
            }
            Ok(())
        };
        match &mut cache {
            None => put(record)?,
            Some(cache) => {
                for line in record.lines().filter(|line| cache.misses(*line)) {
                    put(&line_of(line, record))?;
                }
            }
        }
        Ok(args.first.is_none_or(|n| passed < n))
    })?;
    let (out, written) = writer.finish().with_context(writing)?;
    drop(out);
    partial.keep()?;
    output::print_line(format_args!(
        "{}: {} records read, {written} written as {}, {} broken ones left out",
        args.out.display(),
        reader.records(),
        args.to.name(),
        reader.skipped()
    ))
}

/// A record of one cache line, with the other properties of a record.
fn line_of(line: u64, record: &Record) -> Record {
    Record {
        addr: line * LINE,
        bytes: u32::try_from(LINE).unwrap_or(u32::MAX),
        ..*record
    }
}
