//! Rules that tie the documents to the code: every crate is on the map, every promise names tests that exist.

use std::collections::BTreeSet;

use super::arrows::Package;
use super::{File, Finding};

const MAP: &str = "ARCHITECTURE.md";
const GUARANTEES: &str = "docs/guarantees.md";
const DECISIONS: &str = "docs/decisions/";
pub(super) const DECISIONS_INDEX: &str = "docs/decisions/README.md";

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
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let rests = text.lines().filter(is_code).filter_map(|line| match line.trim_start().strip_prefix("fn ") {
        Some(rest) => Some(rest),
        None => line.split_once(" fn ").map(|(_, rest)| rest),
    });
    rests.map(move |rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())])
}

/// Words between backticks that are sentences, as the names of tests are.
fn test_names(line: &str) -> impl Iterator<Item = &str> {
    let is_sentence = |word: &&str| {
        word.matches('_').count() >= 3
            && word.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_')
    };
    line.split('`').skip(1).step_by(2).filter(is_sentence)
}

/// The index lists every decision under its title.
fn decisions(files: &[File]) -> Option<Finding> {
    let index = match file(files, DECISIONS_INDEX) {
        Ok(index) => index,
        Err(missing) => return Some(missing),
    };
    (index.text != index_of(files)).then(|| index.finding(0, "it lags behind; run `cargo xtask index`"))
}

/// What belongs into [`DECISIONS_INDEX`].
pub(super) fn index_of(files: &[File]) -> String {
    let mut index =
        "# Decisions\n\nOne page each: the context, the choice, what was given up. `cargo xtask index` writes \
                     this list.\n\n"
            .to_owned();
    let mut pages: Vec<&File> = files.iter().filter(|file| file.path.starts_with(DECISIONS)).collect();
    pages.retain(|page| page.path != DECISIONS_INDEX);
    pages.sort_by(|one, other| one.path.cmp(&other.path));
    for page in pages {
        let name = page.path.trim_start_matches(DECISIONS);
        let is_numbering = |c: char| c == '#' || c == ':' || c == ' ' || c.is_ascii_digit();
        let title = page.text.lines().next().unwrap_or_default().trim_start_matches(is_numbering);
        index.push_str(&format!("- [{}]({name}): {title}\n", name.split('-').next().unwrap_or_default()));
    }
    index
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
        let code = "#[test]\nfn it_holds_when_asked() {}\n    pub(super) async fn it_is_in_a_suite() {}\n// fn it_is_long_gone()";
        let files = [File::new(GUARANTEES, promises), File::new("crates/a/src/tests.rs", code)];
        let expected = ["there is no test `it_is_long_gone`", "no test is named that shows this"];
        assert_eq!(whats(&guarantees(&files)), expected);
    }

    #[test]
    fn an_index_of_decisions_that_lags_behind_is_found() {
        let page = |path: &str, text: &str| File::new(&format!("{DECISIONS}{path}"), text);
        let pages = [page("0002-two.md", "# Two\n\nText"), page("0001-one.md", "# 0001: one\n")];
        let index = index_of(&pages);
        assert!(index.ends_with("\n\n- [0001](0001-one.md): one\n- [0002](0002-two.md): Two\n"), "{index}");
        let with_index = |text: &str| [pages[0].clone(), pages[1].clone(), page("README.md", text)];
        assert_eq!(decisions(&with_index(&index)), None);
        assert!(decisions(&with_index(&index.replace("one\n", "first\n"))).is_some());
    }
}
