//! Every test of the lab, in the order in which they run.

use super::test::Test;
use super::{flex, l1, module, stock};

/// Tests that are selected alike.
struct Suite {
    tests: &'static [Test],
    /// The word of `--only` that selects them all.
    word: Option<&'static str>,
    /// Whether they take minutes.
    is_long: bool,
}

impl Suite {
    const fn of(tests: &'static [Test]) -> Self {
        Self {
            tests,
            word: None,
            is_long: false,
        }
    }

    fn chosen(&self, only: Option<&str>) -> Vec<&'static Test> {
        let is_all = only.is_none() || self.word == only;
        let wanted = |test: &&Test| is_all || test.name.contains(only.unwrap_or_default());
        self.tests.iter().filter(wanted).collect()
    }
}

fn long(tests: &'static [Test]) -> Suite {
    Suite {
        is_long: true,
        ..Suite::of(tests)
    }
}

fn suites() -> impl Iterator<Item = Suite> {
    let flex = Suite {
        word: Some(flex::WORD),
        ..Suite::of(flex::TESTS)
    };
    let l1_long = l1::LONG_TESTS.iter().map(|tests| long(tests));
    let figures = module::GATHER_FIGURES.iter().map(|tests| long(tests));
    [
        flex,
        Suite::of(stock::TESTS),
        Suite::of(module::TESTS),
        Suite::of(module::HARDWARE_TESTS),
        Suite::of(module::GATHER_FAULTS),
        Suite::of(module::GATHER_ROUNDS),
        Suite::of(module::NAMED),
    ]
    .into_iter()
    .chain(l1::TESTS.iter().map(|tests| Suite::of(tests)))
    .chain(l1_long)
    .chain([long(module::LONG_TESTS)])
    .chain(figures)
    .chain([long(module::NAMED_FIGURES)])
    .chain([long(stock::LONG_TESTS)])
}

/// The tests whose names contain `only`; those that take minutes only if `long` is set.
pub fn chosen(only: Option<&str>, long: bool) -> Vec<&'static Test> {
    suites()
        .filter(|suite| long || !suite.is_long)
        .flat_map(|suite| suite.chosen(only))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn names(only: Option<&str>, long: bool) -> Vec<&'static str> {
        chosen(only, long).iter().map(|test| test.name).collect()
    }

    #[test]
    fn each_test_has_a_name_of_its_own() {
        let all = names(None, true);
        let different: BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(different.len(), all.len());
    }

    #[test]
    fn a_part_of_a_name_selects_and_a_suites_word_selects_all_of_it() {
        assert_eq!(
            names(Some("soft_dirty"), true),
            ["soft_dirty_bits_separate_written_from_read_within_budget"]
        );
        let flex: Vec<&str> = flex::TESTS.iter().map(|test| test.name).collect();
        assert!(names(Some("hyperflex"), true).starts_with(&flex));
        assert_eq!(
            names(Some("hyperflex_shrinks"), false),
            flex[flex.len() - 1..]
        );
        assert!(names(Some("twenty_moving"), false).is_empty());
        assert!(names(Some("no such test"), true).is_empty());
    }
}
