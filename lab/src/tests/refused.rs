//! System calls that threads of the product were refused, by the log of the kernel that they run on.
//!
//! A list of calls that lacks one which is needed often shows nowhere else: libraries continue without the call, or
//! in another way.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Result, bail};

use crate::control::lab::Lab;
use crate::progress::say;
use crate::{host, programs};

/// The kernel's word for a record of a filter of system calls.
const RECORD: &str = "type=1326 ";

/// The calls that L1's kernel refused to the product so far.
///
/// # Errors
/// If L1 does not send its log.
pub fn in_l1(lab: &mut Lab) -> Result<Refusals> {
    let log = lab.check("dmesg")?;
    Ok(Refusals::in_log(&log, |path| {
        let name = path.rsplit('/').next().unwrap_or(path);
        programs::PRODUCT_NAMES.contains(&name)
    }))
}

/// A position in the log of this machine's kernel, if that can be read.
pub struct Here {
    last_line: Option<String>,
}

impl Here {
    /// The end of the log.
    pub fn now() -> Self {
        let log = Self::log();
        if log.is_none() {
            say(
                "the log of this machine's kernel cannot be read: no test sees a refused system call",
            );
        }
        let last = |log: String| log.lines().last().unwrap_or_default().to_owned();
        Self {
            last_line: log.map(last),
        }
    }

    /// The calls refused since then to the programs that this tree built for the lab.
    ///
    /// # Errors
    /// If the folder of these programs is not known.
    pub fn since(&self) -> Result<Refusals> {
        let (Some(last), Some(log)) = (&self.last_line, Self::log()) else {
            return Ok(Refusals::default());
        };
        let built = programs::folder()?.display().to_string();
        // All of it, if so much came that the line is gone.
        let new = log
            .split_once(last.as_str())
            .map_or(log.as_str(), |(_, new)| new);
        Ok(Refusals::in_log(new, |path| path.starts_with(&built)))
    }

    fn log() -> Option<String> {
        host::output(&mut Command::new("dmesg")).ok()
    }
}

/// Refused calls: for each thread's name and call, how often it was refused, and a line of the log.
#[derive(Debug, Default)]
pub struct Refusals(BTreeMap<(String, String), (usize, String)>);

impl Refusals {
    /// The refusals of programs that are the product's by their paths; workers run `terraced` too.
    fn in_log(log: &str, is_ours: impl Fn(&str) -> bool) -> Self {
        let mut all = BTreeMap::new();
        for line in log.lines().filter(|line| line.contains(RECORD)) {
            let path = value(line, "exe").unwrap_or_default();
            if !is_ours(path.trim_end_matches(" (deleted)")) {
                continue;
            }
            let field = |name| value(line, name).unwrap_or_else(|| "?".to_owned());
            let key = (field("comm"), field("syscall"));
            all.entry(key).or_insert((0, line.trim().to_owned())).0 += 1;
        }
        Self(all)
    }

    /// The result of a test during which they came: an error, whatever the test itself said.
    pub fn judge(&self, result: Result<()>) -> Result<()> {
        if self.0.is_empty() {
            return result;
        }
        let lines = self.0.iter().map(|((thread, call), (count, line))| {
            format!("thread {thread} was refused system call {call} ({count} times): {line}")
        });
        let lines = lines.collect::<Vec<_>>().join("\n");
        match result {
            Ok(()) => bail!("{lines}"),
            Err(error) => Err(error.context(lines)),
        }
    }
}

/// A field of a record. A value with blanks is written in hexadecimal digits, without quotes.
fn value(line: &str, name: &str) -> Option<String> {
    let (_, rest) = line.split_once(&format!(" {name}="))?;
    if let Some(quoted) = rest.strip_prefix('"') {
        return quoted.split_once('"').map(|(value, _)| value.to_owned());
    }
    let word = rest.split_whitespace().next()?;
    let is_text = matches!(name, "comm" | "exe");
    let text = is_text.then(|| from_hexadecimal(word)).flatten();
    Some(text.unwrap_or_else(|| word.to_owned()))
}

fn from_hexadecimal(word: &str) -> Option<String> {
    let digits: Option<Vec<u8>> = word
        .chars()
        .map(|c| c.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
        .collect();
    let digits = digits.filter(|digits| digits.len().is_multiple_of(2))?;
    let bytes = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]);
    String::from_utf8(bytes.collect()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(comm: &str, exe: &str, call: u32) -> String {
        format!(
            "[   12.5] audit: type=1326 audit(1.0:7): auid=4294967295 uid=0 gid=0 ses=4294967295 pid=9 comm={comm} \
             exe={exe} sig=0 arch=c000003e syscall={call} compat=0 ip=0x1 code=0x50000\n"
        )
    }

    fn judged(log: &str, result: Result<()>) -> String {
        let refused = Refusals::in_log(log, |path| path.starts_with("/bin/terrace"));
        refused
            .judge(result)
            .map_or_else(|error| format!("{error:#}"), |()| "ok".to_owned())
    }

    #[test]
    fn a_refused_call_of_the_product_fails_a_test_by_name() {
        let log = line("\"scan-vm1\"", "\"/bin/terraced\"", 257).repeat(2)
            + &line("\"terraced\"", "\"/bin/terraced\"", 9)
            + "[   13.0] something else of comm=\"terraced\" exe=\"/bin/terraced\" syscall=1\n";
        let said = judged(&log, Ok(()));
        let first =
            "thread scan-vm1 was refused system call 257 (2 times): [   12.5] audit: type=1326";
        assert!(said.contains(first), "{said}");
        assert!(said.contains("refused system call 9 (1 times)"), "{said}");
        assert!(!said.contains("system call 1 "), "{said}");
        let said = judged(&log, Err(anyhow::anyhow!("the guest is slow")));
        assert!(
            said.contains("call 257") && said.contains("the guest is slow"),
            "{said}"
        );
    }

    #[test]
    fn a_program_that_was_replaced_is_ours_still() {
        // "/bin/terrace-hyperflex (deleted)"
        let path = "2F62696E2F746572726163652D6879706572666C6578202864656C6574656429";
        let said = judged(&line("\"flex\"", path, 41), Ok(()));
        assert!(
            said.contains("thread flex was refused system call 41"),
            "{said}"
        );
    }

    #[test]
    fn what_others_are_refused_fails_nothing() {
        let log = line("\"terraced\"", "\"/usr/bin/other\"", 1) + &line("\"x\"", "(null)", 2);
        assert_eq!(judged(&log, Ok(())), "ok");
        assert_eq!(judged("", Ok(())), "ok");
    }
}
