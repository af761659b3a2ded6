//! The targets to which the documentation points exist: files, headings, tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::sources::rust_files;

/// Folders whose pages are not ours, or not for reading.
const SKIPPED: [&str; 4] = [".git", "node_modules", "target", "corpus"];

#[test]
fn every_link_of_a_page_leads_to_a_file_and_a_heading() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut wrong = Vec::new();
    let mut links = 0;
    for page in pages(&root) {
        let text = std::fs::read_to_string(&page).expect("a page");
        for link in links_of(&text) {
            links += 1;
            if let Some(why) = broken(&page, &link) {
                let page = page.strip_prefix(&root).expect("below the root");
                wrong.push(format!("{}: {link}: {why}", page.display()));
            }
        }
    }
    assert!(links > 200, "only {links} links found");
    assert!(wrong.is_empty(), "links:\n{}", wrong.join("\n"));
}

/// Says why a link leads nowhere.
fn broken(page: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = link.split_once('#').unwrap_or((link, ""));
    let target = match file {
        "" => page.to_owned(),
        file => page.parent()?.join(file),
    };
    if !target.exists() {
        return Some("no such file".into());
    }
    if heading.is_empty() || target.extension().is_none_or(|e| e != "md") {
        return None;
    }
    let text = std::fs::read_to_string(&target).expect("a page");
    (!anchors(&text).contains(heading)).then(|| "no such heading".into())
}

pub fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if path.is_dir() && !SKIPPED.contains(&&*name) {
            found.extend(pages(&path));
        } else if path.extension().is_some_and(|e| e == "md") {
            found.push(path);
        }
    }
    found
}

/// The targets of `[text](target)`, outside of code.
fn links_of(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines(text) {
        let mut rest = line.as_str();
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, more)) = after.split_once(')') else {
                break;
            };
            found.push(target.split(' ').next().unwrap_or_default().to_owned());
            rest = more;
        }
    }
    found
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = lines(text).into_iter().filter(|line| line.starts_with('#'));
    let mut found = BTreeSet::new();
    for heading in headings {
        let title = heading.trim_start_matches('#').trim().to_lowercase();
        let chars = title
            .chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        found.insert(chars.collect::<String>().replace(' ', "-"));
    }
    found
}

/// The lines of a page without code: neither fenced, nor indented after an empty line, nor in backticks.
fn lines(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            is_fenced = !is_fenced;
        } else if !is_fenced && !line.starts_with("    ") {
            let outside = line.split('`').enumerate().filter(|(i, _)| i % 2 == 0);
            let outside: Vec<&str> = outside.map(|(_, part)| part).collect();
            // A heading's words count with what stands in backticks.
            found.push(match line.starts_with('#') {
                true => line.replace('`', ""),
                false => outside.join(" "),
            });
        }
    }
    found
}

/// Least parts of a name that pages write as code and that can only be a test's.
const MIN_PARTS: usize = 7;

#[test]
fn tests_that_pages_name_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folders = ["crates", "lab", "xtask"].map(|folder| rust_files(&root.join(folder)));
    let sources = folders.into_iter().flatten();
    let sources: Vec<String> = sources
        .map(|file| std::fs::read_to_string(file).expect("a source file"))
        .collect();
    let mut named = BTreeSet::new();
    for page in pages(&root) {
        let text = std::fs::read_to_string(&page).expect("a page");
        // Records of past decisions and changes may name files of their time.
        let is_history =
            page.ends_with("CHANGELOG.md") || page.to_string_lossy().contains("decisions");
        if !is_history {
            named.extend(tests_of(&text));
        }
    }
    assert!(named.len() > 20, "only {} tests named", named.len());
    let exists = |name: &String| sources.iter().any(|text| text.contains(name.as_str()));
    let gone: Vec<_> = named.into_iter().filter(|name| !exists(name)).collect();
    assert!(gone.is_empty(), "no such tests:\n{}", gone.join("\n"));
}

/// The names in backticks that can only be tests'.
fn tests_of(text: &str) -> Vec<String> {
    let code = text.split('`').skip(1).step_by(2);
    let is_name = |code: &&str| {
        code.bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && code.split('_').count() >= MIN_PARTS
    };
    code.filter(is_name).map(str::to_owned).collect()
}

#[test]
fn a_broken_link_is_found() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let text = "[a](docs/nowhere.md), [b](docs/README.md#nowhere), `[c](code)`, [d](docs/README.md#papers)\n\n    [e](code)\n";
    let links = links_of(text);
    let found: Vec<_> = links.iter().map(|link| broken(&page, link)).collect();
    assert_eq!(
        found,
        [
            Some("no such file".to_owned()),
            Some("no such heading".into()),
            None
        ]
    );
}
