//! Rules that tie the documents to the code: every crate is on the map, every promise names tests that exist.

use std::collections::BTreeSet;

use super::arrows::Package;
use super::{File, Finding};

const MAP: &str = "ARCHITECTURE.md";
const GUARANTEES: &str = "docs/guarantees.md";
const DECISIONS: &str = "docs/decisions/";
const DECISIONS_INDEX: &str = "docs/decisions/README.md";

pub(super) fn findings(files: &[File], packages: &[Package]) -> Vec<Finding> {
    let mut found = map(files, packages);
    found.extend(guarantees(files));
    found.extend(decisions(files));
    found
}

fn file<'a>(files: &'a [File], path: &str) -> Result<&'a File, Finding> {
    let missing = || Finding { path: path.to_owned(), line: 0, what: "this document is missing".to_owned() };
    files.iter().find(|file| file.path == path).ok_or_else(missing)
}

fn map(files: &[File], packages: &[Package]) -> Vec<Finding> {
    let map = match file(files, MAP) {
        Ok(map) => map,
        Err(missing) => return vec![missing],
    };
    let is_missing =
        |name: &&str| !map.text.contains(&format!("`{name}`")) && !map.text.contains(&format!("`crates/{name}`"));
    let names = packages.iter().map(|package| package.name.as_str());
    names.filter(is_missing).map(|name| map.finding(0, format!("the crate `{name}` is not on the map"))).collect()
}

/// Every section with a promise (a second-level heading) names a test, and every test named is there.
fn guarantees(files: &[File]) -> Vec<Finding> {
    let document = match file(files, GUARANTEES) {
        Ok(document) => document,
        Err(missing) => return vec![missing],
    };
    let tests: BTreeSet<&str> =
        files.iter().filter(|file| file.path.ends_with(".rs")).flat_map(|file| functions(&file.text)).collect();
    let mut found = Vec::new();
    let mut section: Option<(usize, bool)> = None;
    let close = |section: Option<(usize, bool)>, found: &mut Vec<Finding>| {
        if let Some((line, false)) = section {
            found.push(document.finding(line, "no test is named that shows this"));
        }
    };
    for (at, line) in document.lines() {
        if line.starts_with("## ") {
            close(section, &mut found);
            section = Some((at, false));
        }
        for name in test_names(line) {
            if let Some((_, has_test)) = &mut section {
                *has_test = true;
            }
            if !tests.contains(name) {
                found.push(document.finding(at, format!("there is no test `{name}`")));
            }
        }
    }
    close(section, &mut found);
    found
}

/// The names of functions that follow a `fn`.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let lines = text.lines().filter_map(|line| line.trim_start().strip_prefix("async ").or(Some(line.trim_start())));
    lines.filter_map(|line| line.strip_prefix("fn ")).map(move |rest| {
        let end = rest.find(|c| !is_name(c)).unwrap_or(rest.len());
        &rest[..end]
    })
}

/// Words between backticks that are sentences, as the names of tests are.
fn test_names(line: &str) -> impl Iterator<Item = &str> {
    let is_sentence = |word: &&str| {
        word.matches('_').count() >= 3
            && word.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_')
    };
    line.split('`').skip(1).step_by(2).filter(is_sentence)
}

/// Every decision is in the index.
fn decisions(files: &[File]) -> Vec<Finding> {
    let index = match file(files, DECISIONS_INDEX) {
        Ok(index) => index,
        Err(missing) => return vec![missing],
    };
    let names = files.iter().filter_map(|file| file.path.strip_prefix(DECISIONS)).filter(|name| *name != "README.md");
    let missing = names.filter(|name| !index.text.contains(name));
    missing.map(|name| index.finding(0, format!("{name} is not in the index"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Package {
        Package { name: name.to_owned(), dependencies: Vec::new() }
    }

    fn whats(found: &[Finding]) -> Vec<&str> {
        found.iter().map(|finding| finding.what.as_str()).collect()
    }

    #[test]
    fn a_crate_that_is_not_on_the_map_is_found() {
        let files = [File::new(MAP, "`domain` is pure, and `crates/store` is a port; journal is not named")];
        let packages = ["domain", "store", "journal"].map(package);
        assert_eq!(whats(&map(&files, &packages)), ["the crate `journal` is not on the map"]);
        assert_eq!(whats(&map(&[], &packages)), ["this document is missing"]);
    }

    #[test]
    fn a_promise_without_a_test_or_with_one_that_is_gone_is_found() {
        let promises =
            "# All\n## One\nSee `it_holds_when_asked`.\n## Two\nSee `it_is_long_gone`, `a_word`.\n## Three\n";
        let code = "#[test]\nfn it_holds_when_asked() {}\n    async fn other() {}";
        let files = [File::new(GUARANTEES, promises), File::new("crates/a/src/tests.rs", code)];
        let expected = ["there is no test `it_is_long_gone`", "no test is named that shows this"];
        assert_eq!(whats(&guarantees(&files)), expected);
    }

    #[test]
    fn a_decision_that_is_not_in_the_index_is_found() {
        let files = [
            File::new(DECISIONS_INDEX, "- [One](0001-one.md)"),
            File::new("docs/decisions/0001-one.md", ""),
            File::new("docs/decisions/0002-two.md", ""),
        ];
        assert_eq!(whats(&decisions(&files)), ["0002-two.md is not in the index"]);
    }
}
