//! An example of each command, shown at the end of its `--help`.

use clap::Command;

/// A command by its path below `terrace`, and lines that a shell takes as they are.
const EXAMPLES: &[(&[&str], &[&str])] = &[
    (&["doctor"], &["terrace doctor", "terrace doctor --json"]),
    (&["vms"], &["terrace vms"]),
    (
        &["show"],
        &[
            "terrace show web1 --map",
            "terrace show web1 --svg web1.svg",
        ],
    ),
    (
        &["top"],
        &["terrace top", "terrace top --once --size 120x40"],
    ),
    (
        &["explain"],
        &[
            "terrace explain web1",
            "terrace explain web1 --page 0x280f000",
        ],
    ),
    (&["events"], &["terrace events --follow"]),
    (
        &["set"],
        &[
            "terrace set web1 moves=on",
            "terrace set web1 weight=3000 fast=4GiB floor=1GiB slow.ceiling=8GiB",
        ],
    ),
    (
        &["resize"],
        &[
            "terrace resize web1 --fast 2GiB --slow 6GiB",
            "terrace resize web1 --tiers 2GiB,- --wait --timeout 5m",
        ],
    ),
    (&["pause"], &["terrace pause web1", "terrace pause"]),
    (&["resume"], &["terrace resume web1", "terrace resume"]),
    (&["round"], &["terrace round web1"]),
    (
        &["plan"],
        &["terrace plan web1 --dry-run", "terrace plan --dry-run"],
    ),
    (
        &["demo"],
        &["terrace demo", "terrace demo --once --policy first-touch"],
    ),
    (
        &["config", "check"],
        &["terrace config check", "terrace config check --effective"],
    ),
    (
        &["sim", "run"],
        &["terrace sim run scenarios/quick.toml --html report.html"],
    ),
    (
        &["sim", "compare"],
        &[
            "terrace sim compare scenarios/hotset.toml --policies vtmm,tpp@host,memtis",
            "terrace sim compare scenarios/hotset.toml --policies vtmm --sweep fast=2GiB..16GiB",
        ],
    ),
    (
        &["sim", "judge"],
        &[
            "terrace sim judge scenarios/trace-*.toml --policies vtmm,terrace",
            "terrace sim judge scenarios/judged-*.toml --policies vtmm,terrace --times 1,2 --seeds 3 --traces ~/traces",
        ],
    ),
    (
        &["sim", "replay"],
        &["terrace sim replay production.trlog --policy fixed-threshold"],
    ),
    (
        &["sim", "repro"],
        &[
            "terrace sim repro --list",
            "terrace sim repro vtmm/figure-4",
            "terrace sim repro --check vtmm",
        ],
    ),
    (&["sim", "list"], &["terrace sim list"]),
    (
        &["bench"],
        &[
            "terrace bench",
            "terrace bench --only scan_leaf_ns",
            "terrace bench --json > before.json",
            "terrace bench --compare before.json",
        ],
    ),
    (
        &["trace", "info"],
        &["terrace trace info tests/traces/redis.trace.zst"],
    ),
    (
        &["trace", "convert"],
        &["terrace trace convert tests/traces/redis.trace.zst redis.oracle --to oraclegeneral"],
    ),
    (
        &["mrc"],
        &[
            "terrace mrc tests/traces/redis.trace.zst --at 1MiB,10MiB",
            "terrace mrc tests/traces/sort.trace.zst --compare --svg sort.svg",
        ],
    ),
    (
        &["completions"],
        &["terrace completions bash > /etc/bash_completion.d/terrace"],
    ),
    (&["man"], &["terrace man /usr/local/share/man/man1"]),
];

/// Puts the examples at the end of each command's help.
pub fn add(command: Command) -> Command {
    EXAMPLES.iter().fold(command, |command, (path, lines)| {
        let title = if lines.len() == 1 {
            "Example"
        } else {
            "Examples"
        };
        let text = format!("{title}:\n  {}", lines.join("\n  "));
        add_below(command, path, &text)
    })
}

fn add_below(command: Command, path: &[&'static str], text: &str) -> Command {
    match path {
        [] => command.after_help(text.to_owned()),
        [first, rest @ ..] => command.mut_subcommand(first, |below| add_below(below, rest, text)),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::super::Args;
    use super::*;

    /// The paths of all commands that do something.
    fn leaves(command: &Command, path: &[String]) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for below in command.get_subcommands() {
            let path = [path, &[below.get_name().to_owned()]].concat();
            if below.has_subcommands() {
                found.extend(leaves(below, &path));
            } else {
                found.push(path);
            }
        }
        found
    }

    #[test]
    fn every_command_has_an_example() {
        let mut command = add(Args::command());
        let all = leaves(&command, &[]);
        assert_eq!(all.len(), EXAMPLES.len());
        for path in all {
            let below = path.iter().fold(&mut command, |command, name| {
                command.find_subcommand_mut(name).expect("a command")
            });
            let help = below.render_help().to_string();
            assert!(help.contains("Example"), "{path:?}: {help}");
        }
    }

    #[test]
    fn every_example_is_a_command_line() {
        for (path, lines) in EXAMPLES {
            for line in *lines {
                // The shell's part of a line is not the command's.
                let line = line.split(" > ").next().unwrap_or_default();
                let args: Vec<&str> = line.split(' ').collect();
                assert!(args[1..].starts_with(path), "{line}");
                assert!(Args::try_parse_from(&args).is_ok(), "{line}");
            }
        }
    }
}
