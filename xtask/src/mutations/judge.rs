//! The verdict on a mutation, from a test's output.

/// The outcome of a mutation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The test failed, by its own assertion.
    Noticed,
    /// The test passed.
    Survived,
    /// The test was not run: the code does not compile, a guest is missing, no such test.
    NotRun,
    /// The test did not end.
    Hung,
    /// The test fails without the mutation too.
    FailsAnyway,
}

impl Verdict {
    /// The verdict in words, for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Noticed => "noticed",
            Self::Survived => "SURVIVED",
            Self::NotRun => "THE TEST DID NOT RUN",
            Self::Hung => "THE TEST DID NOT END",
            Self::FailsAnyway => "THE TEST FAILS WITHOUT IT TOO",
        }
    }
}

/// The verdict on a run of `test`, from cargo's output and whether it succeeded.
pub fn judge(said: &str, test: &str, succeeded: bool) -> Verdict {
    let results: Vec<bool> = said.lines().filter_map(|line| result(line, test)).collect();
    match (succeeded, &results[..]) {
        (true, [true, ..]) if results.iter().all(|passed| *passed) => Verdict::Survived,
        (false, [..]) if results.contains(&false) && said.contains("panicked at") => {
            Verdict::Noticed
        }
        _ => Verdict::NotRun,
    }
}

/// Whether the test passed, if a line says so: `test MODULE::NAME ... ok`, or `FAILED`. The test's own output may
/// stand before the word.
fn result(line: &str, test: &str) -> Option<bool> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    if name.rsplit("::").next() != Some(test) {
        return None;
    }
    match result.split(' ').next()? {
        "ok" => Some(true),
        "FAILED" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PANIC: &str = "thread 'a' panicked at src/a.rs:1:2:\n";

    #[test]
    fn a_test_that_failed_by_an_assertion_noticed() {
        let said = format!("{PANIC}test a::keeps ... FAILED\n");
        assert_eq!(judge(&said, "keeps", false), Verdict::Noticed);
        let on_guests = format!("{PANIC}test keeps ... FAILED (3.1 s)\n");
        assert_eq!(judge(&on_guests, "keeps", false), Verdict::Noticed);
        let ok = "test a::keeps ... ok\n";
        assert_eq!(judge(ok, "keeps", true), Verdict::Survived);
    }

    #[test]
    fn what_kept_a_test_from_running_is_no_failure_of_it() {
        let other = format!("{PANIC}test a::keeps_more ... FAILED\n");
        for said in [
            "error: could not compile `a`",
            "running 0 tests",
            &other,
            PANIC,
        ] {
            assert_eq!(judge(said, "keeps", false), Verdict::NotRun, "{said}");
        }
        assert_eq!(judge("running 0 tests", "keeps", true), Verdict::NotRun);
        let ignored = "test keeps ... ignored\n";
        assert_eq!(judge(ignored, "keeps", true), Verdict::NotRun);
    }
}
