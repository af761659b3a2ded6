//! The messages of one source.

use anyhow::Result;

use super::tokens::{Token, tokens};
use Token::{Group, Mark, Text, Word};

/// The kinds of messages, in the page's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A log line of level `error`.
    LogError,
    /// A log line of level `warn`.
    LogWarn,
    /// A log line of level `info`.
    LogInfo,
    /// A log line of level `debug`.
    LogDebug,
    /// The text of an error type, or one that is made where it happens.
    Error,
    /// A line of `doctor`: name, what was found, what to change.
    Finding,
    /// A metric: name and help.
    Metric,
    /// A text that goes to standard output or standard error as it is.
    Printed,
    /// Any other text of two words or more: of events, reasons and reports.
    Sentence,
}

/// The messages of a source.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Source {
    /// The messages in the source's order, with placeholders as they are.
    pub messages: Vec<(Kind, String)>,
    /// The modules in files of their own that only tests have.
    pub test_modules: Vec<String>,
}

impl Source {
    /// Reads a source. In one of metrics, all texts are of metrics.
    ///
    /// # Errors
    /// If the source is not Rust.
    pub fn parse(text: &str, has_metrics: bool) -> Result<Self> {
        let kind = if has_metrics {
            Kind::Metric
        } else {
            Kind::Sentence
        };
        let mut source = Self::default();
        source.walk(&tokens(text)?, kind);
        Ok(source)
    }

    /// Collects messages; those that nothing else says the kind of are of the one given.
    fn walk(&mut self, mut rest: &[Token], kind: Kind) {
        while !rest.is_empty() {
            rest = self.step(rest, kind);
        }
    }

    /// Collects the messages of the first tokens, and returns the others.
    fn step<'a>(&mut self, tokens: &'a [Token], kind: Kind) -> &'a [Token] {
        match tokens {
            [Mark('#'), Group('[', attribute), rest @ ..] if is_of_tests(attribute) => {
                self.skip_item(rest)
            }
            [Mark('#'), Group('[', attribute), rest @ ..] => {
                self.attribute(attribute);
                rest
            }
            [Mark('#'), Mark('!'), Group('[', _), rest @ ..] => rest,
            [Word(name), Mark('!'), Group(_, arguments), rest @ ..] => {
                self.called(name, arguments, kind);
                rest
            }
            [Mark('.'), Word(name), Group('(', arguments), rest @ ..] => {
                self.method(name, arguments, kind);
                rest
            }
            [
                Word(name),
                Mark(':'),
                Mark(':'),
                Word(_),
                Group('(', arguments),
                rest @ ..,
            ] if name == "Finding" => {
                self.finding(arguments);
                rest
            }
            [Text(name), Mark(','), Text(help), rest @ ..] if kind == Kind::Metric => {
                self.add(kind, format!("{name}: {help}"));
                rest
            }
            [Text(text), rest @ ..] => {
                // Elsewhere one word beside placeholders is a cell of a table rather than a message.
                let is_part = matches!(kind, Kind::Error | Kind::Finding);
                let least = if is_part { 1 } else { 2 };
                if words(text) >= least && text.trim().contains(' ') {
                    self.add(kind, text.clone());
                }
                rest
            }
            [Group(_, inner), rest @ ..] => {
                self.walk(inner, kind);
                rest
            }
            [_, rest @ ..] => rest,
            [] => tokens,
        }
    }

    /// Leaves out an item of tests, and keeps its name if it is a module in another file.
    fn skip_item<'a>(&mut self, item: &'a [Token]) -> &'a [Token] {
        let ends = |token: &Token| matches!(token, Mark(';') | Group('{', _));
        let end = item.iter().position(ends).unwrap_or(item.len());
        if let [.., Word(module), Word(name)] = &item[..end]
            && module == "mod"
            && item.get(end) == Some(&Mark(';'))
        {
            self.test_modules.push(name.clone());
        }
        item.get(end + 1..).unwrap_or_default()
    }

    fn attribute(&mut self, attribute: &[Token]) {
        if let [Word(name), Group('(', arguments)] = attribute
            && name == "error"
        {
            self.called("anyhow", arguments, Kind::Error);
        }
    }

    /// A macro's call.
    fn called(&mut self, name: &str, arguments: &[Token], kind: Kind) {
        let (kind, before_format) = match name {
            "error" => (Kind::LogError, 0),
            "warn" => (Kind::LogWarn, 0),
            "info" => (Kind::LogInfo, 0),
            "debug" => (Kind::LogDebug, 0),
            "anyhow" | "bail" => (Kind::Error, 0),
            "ensure" => (Kind::Error, 1),
            "print" | "println" | "eprint" | "eprintln" => (Kind::Printed, 0),
            // They are for who reads a backtrace.
            "panic" | "unreachable" => return,
            name if name.contains("assert") => return,
            _ => return self.walk(arguments, kind),
        };
        let mut is_found = false;
        for (i, argument) in split(arguments).into_iter().enumerate() {
            match argument {
                [Text(format)] if i >= before_format && !is_found => {
                    is_found = true;
                    if words(format) > 0 {
                        self.add(kind, format.clone());
                    }
                }
                _ => self.walk(argument, Kind::Sentence),
            }
        }
    }

    fn method(&mut self, name: &str, arguments: &[Token], kind: Kind) {
        match (name, arguments) {
            ("context", [Text(text)]) => self.add(Kind::Error, text.clone()),
            ("context" | "with_context", _) => self.walk(arguments, Kind::Error),
            ("expect", [Text(_)]) => {}
            _ => self.walk(arguments, kind),
        }
    }

    /// Collects a finding as one message if each of its parts is one text; `…` stands for a part that is made
    /// elsewhere.
    fn finding(&mut self, arguments: &[Token]) {
        let mut parts = Vec::new();
        for argument in split(arguments) {
            let mut part = Self::default();
            part.walk(argument, Kind::Finding);
            match (argument, part.messages.as_slice()) {
                ([Text(text)], _) | (_, [(_, text)]) => parts.push(text.clone()),
                (_, messages) => {
                    parts.push("…".into());
                    self.messages.extend_from_slice(messages);
                }
            }
        }
        if let Some((name, rest)) = parts.split_first()
            && rest.iter().any(|part| part != "…")
        {
            self.add(Kind::Finding, format!("{name}: {}", rest.join(" → ")));
        }
    }

    fn add(&mut self, kind: Kind, text: String) {
        self.messages.push((kind, text));
    }
}

/// Whether an attribute is `cfg(test)` or a test's own.
fn is_of_tests(attribute: &[Token]) -> bool {
    match attribute {
        [Word(name)] => name == "test",
        [Word(name), Group('(', what)] => {
            name == "cfg" && matches!(what.as_slice(), [Word(what)] if what == "test")
        }
        _ => false,
    }
}

/// The arguments of a call.
fn split(arguments: &[Token]) -> Vec<&[Token]> {
    let parts = arguments.split(|token| *token == Mark(','));
    parts.filter(|part| !part.is_empty()).collect()
}

/// The number of words outside of placeholders and of a report's markup.
fn words(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut outside = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        let opens_tag = c == '<'
            && rest
                .peek()
                .is_some_and(|next| "/!".contains(*next) || next.is_alphabetic());
        match c {
            '{' => depth += 1,
            _ if opens_tag => depth += 1,
            '}' | '>' if depth > 0 => depth -= 1,
            _ if depth == 0 => outside.push(c),
            _ => {}
        }
    }
    let is_word = |word: &&str| word.chars().any(char::is_alphabetic);
    outside.split_whitespace().filter(is_word).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The messages of a source, in its order.
    fn of(source: &str) -> Vec<(Kind, String)> {
        Source::parse(source, false).unwrap().messages
    }

    /// One message.
    fn one(kind: Kind, text: &str) -> Vec<(Kind, String)> {
        vec![(kind, text.to_owned())]
    }

    #[test]
    fn log_lines_have_their_level() {
        let source = r#"fn f() {
            tracing::error!("the API ended: {error}");
            warn!(vm, count = "two words", "no thread");
            tracing::info!(vm, "{text}");
            tracing::debug!(%error, "fewer threads");
        }"#;
        let wanted = [
            (Kind::LogError, "the API ended: {error}"),
            (Kind::Sentence, "two words"),
            (Kind::LogWarn, "no thread"),
            (Kind::LogDebug, "fewer threads"),
        ];
        assert_eq!(of(source), wanted.map(|(k, t)| (k, t.to_owned())));
    }

    #[test]
    fn errors_are_found_in_types_macros_and_contexts() {
        let source = r#"
            #[derive(Error)]
            enum E { #[error("broken: {0}")] Broken(u8), #[error("{0}")] Other(Io), #[error(transparent)] Same(Io) } fn f() -> Result<()> {
                ensure!(name != "an old name", "unknown: {name}");
                g().context("opening")?;
                g().with_context(|| format!("reading {}", path.join("x").display()))?;
                Err(anyhow!("no VM"))?;
                bail!("out of range: {least} to {}", most(1, 2))
            }"#;
        let errors: Vec<String> = of(source)
            .into_iter()
            .filter_map(|(kind, text)| (kind == Kind::Error).then_some(text))
            .collect();
        let wanted = [
            "broken: {0}",
            "unknown: {name}",
            "opening",
            "reading {}",
            "no VM",
            "out of range: {least} to {}",
        ];
        assert_eq!(errors, wanted);
    }

    #[test]
    fn a_finding_is_one_message() {
        let source = r#"fn f() -> Finding {
            Finding::missing("moves", format!("no {what}"), "run it as root",)
        }"#;
        let wanted = one(Kind::Finding, "moves: no {what} → run it as root");
        assert_eq!(of(source), wanted);
        let source = r#"fn f() { Finding::degraded(NAME, if a { "too few" } else { "too many" }, "add one") }"#;
        let wanted = ["too few", "too many", "…: … → add one"];
        assert_eq!(of(source), wanted.map(|t| (Kind::Finding, t.to_owned())));
    }

    #[test]
    fn a_metric_is_its_name_and_help() {
        let source = r#"const OF_VM: [Of; 1] = [("vm_rounds", "Rounds", |vm| vm.rounds)];"#;
        let metrics = Source::parse(source, true).unwrap().messages;
        assert_eq!(metrics, one(Kind::Metric, "vm_rounds: Rounds"));
    }

    #[test]
    fn printed_texts_and_sentences_are_told_apart() {
        let source = r#"fn f() {
            eprintln!("wrote {}", file.display());
            write!(f, "{} of {} pages moved", a, b)?;
            key("floor");
            html("<p class=\"a b\">{text}</p>");
            html("<p>No runs: a < b</p>");
        }"#;
        let wanted = [
            (Kind::Printed, "wrote {}"),
            (Kind::Sentence, "{} of {} pages moved"),
            (Kind::Sentence, "<p>No runs: a < b</p>"),
        ];
        assert_eq!(of(source), wanted.map(|(k, t)| (k, t.to_owned())));
    }

    #[test]
    fn continued_raw_and_escaped_strings_have_their_values() {
        let source = "fn f() { a(\"one \\\n        line\"); b(r#\"a \"raw\" one\"#); c(\"say \\\"it\\\" so\"); }";
        let wanted = ["one line", "a \"raw\" one", "say \"it\" so"];
        assert_eq!(of(source), wanted.map(|t| (Kind::Sentence, t.to_owned())));
    }

    #[test]
    fn comments_tests_and_panics_hold_no_messages() {
        let source = r#"
            //! bail!("not this one")
            #![doc = "nor this"]
            /// warn!("nor that")
            fn f() {
                // error!("nor here")
                x.expect("it is there");
                assert_eq!(a, b, "they are the same");
                unreachable!("it never comes here");
            }
            #[cfg(test)]
            mod tests { fn f() { bail!("of a test") } }
            #[cfg(test)]
            use other::{a, b};
            #[cfg(test)]
            pub(crate) mod fake;
            #[test]
            fn g() { bail!("of a test") }
            fn h() { bail!("of the product") }"#;
        let source = Source::parse(source, false).unwrap();
        assert_eq!(source.messages, one(Kind::Error, "of the product"));
        assert_eq!(source.test_modules, ["fake"]);
    }
}
