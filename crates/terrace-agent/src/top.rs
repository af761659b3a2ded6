//! The agent as people see it: `status` and `top`.

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use bytesize::ByteSize;

use crate::gather::GatherStatus;
use crate::status::{RangeStatus, Status, ask};

/// Most ranges in a frame.
const RANGES: usize = 16;
/// Most sentences in a frame.
const EVENTS: usize = 5;
/// Width of a bar, characters.
const BAR: usize = 20;

/// Shows one frame, or frame after frame until the program is ended.
///
/// # Errors
/// If no agent answers.
pub fn watch(socket: &Path, interval: Duration, once: bool) -> Result<()> {
    let mut out = std::io::stdout();
    let clear = out.is_terminal() && !once;
    loop {
        let frame = frame(&ask(socket)?);
        if clear {
            // Home, and what is below the frame is erased.
            write!(out, "\x1b[H\x1b[2J")?;
        }
        write!(out, "{frame}")?;
        out.flush()?;
        if once {
            return Ok(());
        }
        std::thread::sleep(interval);
    }
}

/// The text of one frame.
#[must_use]
pub fn frame(status: &Status) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = head(&mut text, status);
    let _ = body(&mut text, status);
    text
}

fn head(text: &mut String, status: &Status) -> std::fmt::Result {
    writeln!(
        text,
        "{}, epoch {}; {} epochs since anything moved",
        status.mode, status.epochs, status.quiet_epochs
    )?;
    writeln!(
        text,
        "samples  {} ({}); {} lost",
        status.sampler, status.sampler_reason, status.lost_samples
    )?;
    writeln!(
        text,
        "moved    {} up, {} down; {} in use, {} failed; {}",
        pages(status.promoted_pages),
        pages(status.demoted_pages),
        pages(status.busy_pages),
        pages(status.failed_pages),
        match status.no_swaps.as_str() {
            "" => format!("{} in place", pages(status.swapped_pages)),
            why => format!("none in place ({why})"),
        }
    )?;
    writeln!(
        text,
        "agent    {:.1} s of CPU, {} resident; host: {}{}",
        Duration::from_nanos(status.cpu_ns).as_secs_f64(),
        ByteSize(status.resident_bytes),
        status.channel.state,
        match status.channel.detail.as_str() {
            "" => String::new(),
            detail => format!(" ({detail})"),
        }
    )?;
    named(text, status)?;
    hot_by_host(text, status)?;
    gathering(text, &status.gather)?;
    for tier in &status.tiers {
        let used = tier.total_bytes.saturating_sub(tier.free_bytes);
        writeln!(
            text,
            "{:8} {} {} of {} used",
            tier.name,
            bar(used, tier.total_bytes),
            ByteSize(used),
            ByteSize(tier.total_bytes)
        )?;
    }
    Ok(())
}

/// Frames that the host named, the way in which they are moved, and the index; nothing if it names none.
fn named(text: &mut String, status: &Status) -> std::fmt::Result {
    let stay = status.frames_refused;
    if status.mode != "coordinated" && status.frames_taken + stay.all() == 0 {
        return Ok(());
    }
    writeln!(
        text,
        "named    {} frames moved for the host; {} of no managed process, {} gone by then, {} left or without room",
        status.frames_taken, stay.unknown, stay.stale, stay.left
    )?;
    match status.no_migrate.as_str() {
        "" => writeln!(
            text,
            "         by MIGRATE of the guest module; what it leaves, by move_pages"
        )?,
        why => writeln!(text, "         by move_pages ({why})")?,
    }
    let index = status.frames_index;
    if index.pages + index.left_out == 0 {
        return Ok(());
    }
    write!(
        text,
        "index    {} of managed processes in {} ({:.1} bytes and {} ns a page)",
        pages(index.pages),
        ByteSize(index.bytes),
        index.bytes as f64 / index.pages.max(1) as f64,
        index.pass_ns / index.pages.max(1)
    )?;
    match (index.left_out, index.limit_bytes) {
        (0, _) => writeln!(text),
        (left, 0) => writeln!(text, "; {} left out", pages(left)),
        (left, limit) => writeln!(
            text,
            "; {} left out: it may take {}, half of this unit's memory limit (MemoryMax)",
            pages(left),
            ByteSize(limit)
        ),
    }
}

/// Hot pages that the host named; nothing if it did not.
fn hot_by_host(text: &mut String, status: &Status) -> std::fmt::Result {
    let channel = &status.channel;
    if channel.hot_taken + channel.hot_refused == 0 {
        return Ok(());
    }
    writeln!(
        text,
        "hot      {} named by the host so far, {} refused",
        pages(channel.hot_taken),
        channel.hot_refused
    )
}

/// Rounds, pages, and what stays by reason; nothing if no rounds go on.
fn gathering(text: &mut String, gather: &GatherStatus) -> std::fmt::Result {
    if matches!(gather.state.as_str(), "" | "off") {
        return Ok(());
    }
    let detail = match gather.detail.as_str() {
        "" => String::new(),
        detail => format!(" ({detail})"),
    };
    writeln!(text, "gather   {}{detail}", gather.state)?;
    let Some(last) = &gather.last else {
        return Ok(());
    };
    writeln!(
        text,
        "         {} by {} and the {}: {} together, {} home; hot blocks {} before, {} after",
        match gather.rounds {
            1 => "1 round".to_owned(),
            rounds => format!("{rounds} rounds"),
        },
        gather.heat,
        last.way,
        pages(gather.moved_pages),
        pages(gather.returned_pages),
        last.before.hot_blocks,
        last.after.hot_blocks
    )?;
    if let Some(named) = last.by_host {
        writeln!(
            text,
            "         {} by the host's word, {} of no selected process",
            pages(named.pages),
            named.unknown
        )?;
    }
    let staying = last.staying;
    let skips = [
        (staying.shared, "of files or shared"),
        (staying.huge, "in larger pages"),
        (staying.khugepaged, "where khugepaged works"),
        (staying.gone, "gone"),
        (
            staying.unreadable,
            "of processes that could not be looked at",
        ),
        (
            last.planned_pages.saturating_sub(last.moved_pages),
            "pinned or refused",
        ),
    ];
    let skips = skips.iter().filter(|(count, _)| *count > 0);
    let skips: Vec<String> = skips.map(|(count, why)| format!("{count} {why}")).collect();
    if !skips.is_empty() {
        writeln!(text, "         hot pages that stay: {}", skips.join(", "))?;
    }
    if let Some(why) = last.refused.first() {
        writeln!(text, "         refused: {why}")?;
    }
    Ok(())
}

fn body(text: &mut String, status: &Status) -> std::fmt::Result {
    if status.processes.is_empty() {
        writeln!(
            text,
            "\nno process is managed: none is large enough, or named"
        )?;
    } else {
        writeln!(
            text,
            "\n{:>8} {:16} {:>8} {:>10} {:>10}",
            "PID", "NAME", "RANGES", "FAST", "SLOW"
        )?;
    }
    for process in &status.processes {
        writeln!(
            text,
            "{:>8} {:16} {:>8} {:>10} {:>10}",
            process.pid,
            process.name,
            process.leaves,
            ByteSize(process.fast_bytes).to_string(),
            ByteSize(process.slow_bytes).to_string()
        )?;
    }
    let hot: Vec<&RangeStatus> = status
        .ranges
        .iter()
        .filter(|r| r.count > 0)
        .take(RANGES)
        .collect();
    if !hot.is_empty() {
        writeln!(text, "\nhottest ranges (accesses seen; # in fast memory)")?;
    }
    for range in hot {
        writeln!(
            text,
            "{:>8} {:#014x} {:>10} {:>8} {} {}",
            range.pid,
            range.start,
            ByteSize(range.end.saturating_sub(range.start)).to_string(),
            range.count,
            bar(range.fast_bytes, range.fast_bytes + range.slow_bytes),
            if range.fits {
                "belongs in fast memory"
            } else {
                ""
            }
        )?;
    }
    let first = status.events.len().saturating_sub(EVENTS);
    for event in &status.events[first..] {
        writeln!(text, "epoch {:>6}  {}", event.epoch, event.text)?;
    }
    Ok(())
}

fn pages(pages: u64) -> ByteSize {
    ByteSize(pages.saturating_mul(terrace_proto::PAGE_SIZE))
}

fn bar(part: u64, whole: u64) -> String {
    let whole = u128::from(whole.max(1));
    let filled = u128::from(part) * BAR as u128 / whole;
    let filled = usize::try_from(filled).unwrap_or(BAR).min(BAR);
    format!("[{}{}]", "#".repeat(filled), ".".repeat(BAR - filled))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gather::Round;
    use crate::status::{ProcessStatus, TierStatus};

    #[test]
    fn a_frame_says_what_is_sampled_moved_and_where_memory_is() {
        let status = Status {
            sampler: "damon".into(),
            sampler_reason: "no PMU".into(),
            mode: "placing".into(),
            promoted_pages: 512,
            tiers: vec![TierStatus {
                name: "fast".into(),
                nodes: vec![0],
                total_bytes: 4096,
                free_bytes: 1024,
            }],
            processes: vec![ProcessStatus {
                pid: 42,
                name: "redis-server".into(),
                leaves: 9,
                ..ProcessStatus::default()
            }],
            ..Status::default()
        };
        let text = frame(&status);
        for part in [
            "damon (no PMU)",
            "2.0 MiB up",
            "[###############.....]",
            "redis-server",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        assert!(frame(&Status::default()).contains("no process is managed"));
        assert!(!frame(&Status::default()).contains("gather"));
    }

    #[test]
    fn a_frame_says_how_named_frames_move_and_what_the_index_lacks() {
        let mut status = Status {
            mode: "coordinated".into(),
            no_migrate: "no module".into(),
            frames_taken: 9,
            ..Status::default()
        };
        let index = &mut status.frames_index;
        (index.pages, index.bytes, index.pass_ns) = (1 << 18, 1 << 20, 30 << 18);
        (index.left_out, index.limit_bytes) = (256, 1 << 20);
        let text = frame(&status);
        for part in [
            "named    9 frames moved for the host",
            "by move_pages (no module)",
            "index    1.0 GiB of managed processes in 1.0 MiB (4.0 bytes and 30 ns a page)",
            "; 1.0 MiB left out: it may take 1.0 MiB, half of this unit's memory limit",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        status.no_migrate.clear();
        status.frames_index.left_out = 0;
        let text = frame(&status);
        assert!(text.contains("by MIGRATE of the guest module"), "{text}");
        assert!(!text.contains("left out"), "{text}");
        assert!(!frame(&Status::default()).contains("named  "));
    }

    #[test]
    fn a_frame_says_what_was_gathered_and_why_pages_stay() {
        let mut gather = GatherStatus {
            heat: "SCAN".into(),
            ..GatherStatus::default()
        };
        let mut round = Round {
            way: "node".into(),
            planned_pages: 384,
            moved_pages: 380,
            refused: vec!["process 7: no".into()],
            ..Round::default()
        };
        round.before.hot_blocks = 96;
        round.after.hot_blocks = 2;
        round.staying.shared = 12;
        gather.count(&round);
        gather.enter("resting", "60 s".into());
        let status = Status {
            gather,
            ..Status::default()
        };
        let text = frame(&status);
        for part in [
            "gather   resting (60 s)",
            "1 round by SCAN and the node: 1.5 MiB together, 0 B home; hot blocks 96 before, 2 after",
            "stay: 12 of files or shared, 4 pinned or refused",
            "refused: process 7: no",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
    }
}
