//! Checks that `docs/pitfalls.md` describes every pitfall that this file expects, and that every test that the document
//! names exists.

#![expect(clippy::unwrap_used, reason = "a test fails at an unexpected error")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const NUMBERED: u32 = 38;
const PETTING_ZOO: [&str; 8] = [
    "An item without its token",
    "Events while the connection is lost",
    "A callback runs on the event thread, under a lock.",
    "Members do not register again",
    "The last child is removed, and the cache keeps it.",
    "YAML from a node that all may write is loaded with unsafe features.",
    "A rewrite is a delete and a create",
    "Two processes of one address have one key.",
];
const CONSEQUENCES: [&str; 14] = [
    "Lost response to a create.",
    "Event during an acquisition.",
    "Suspension during an acquisition.",
    "Expiry during an acquisition.",
    "Two suspensions in a row.",
    "Parent deleted.",
    "Parent created again",
    "Paused process",
    "Watches above 1 MiB after a reconnect.",
    "50,000 ephemerals in one session.",
    "Negative numbers.",
    "Names of others in the parent.",
    "Callback that calls the client.",
    "Late unlock after another acquisition.",
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the text of each pitfall in the document. The key is the number or the name of the pitfall.
fn entries(document: &str) -> BTreeMap<String, String> {
    let mut entries: BTreeMap<String, String> = BTreeMap::new();
    let mut last = None;
    for line in document.lines() {
        let numbered = line.split_once(". **").filter(|(number, _)| number.parse::<u32>().is_ok());
        let named = line.strip_prefix("- **").and_then(|rest| rest.split_once("**"));
        let name = numbered.map(|(number, _)| number).or(named.map(|(name, _)| name));
        if let Some(name) = name {
            assert!(entries.insert(name.to_owned(), String::new()).is_none(), "{name} is listed twice");
            last = Some(name.to_owned());
        } else if line.is_empty() || line.starts_with('#') {
            last = None;
        }
        if let Some(text) = last.as_ref().and_then(|name| entries.get_mut(name)) {
            text.push_str(line.trim());
            text.push(' ');
        }
    }
    entries
}

/// Returns every test function as `folder::file::name`. The first folder is `crates`.
fn tests() -> BTreeSet<String> {
    let (mut tests, mut folders) = (BTreeSet::new(), vec![root().join("crates")]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = path.with_extension("");
                let module = module.strip_prefix(root()).unwrap().to_str().unwrap().replace('/', "::");
                let text = fs::read_to_string(&path).unwrap();
                tests.extend(attributed(&text).into_iter().map(|name| format!("{module}::{name}")));
                for (of, name) in listed(&text) {
                    let module = if of == "self" { module.clone() } else { format!("{module}::{of}") };
                    tests.insert(format!("{module}::{name}"));
                }
            }
        }
    }
    tests
}

/// Returns the names of the functions that follow `#[test]` or `#[tokio::test]`, including functions inside `proptest!`.
fn attributed(text: &str) -> Vec<String> {
    let mut is_test = false;
    let mut names = Vec::new();
    for line in text.lines().map(str::trim) {
        let function = line.strip_prefix("async ").unwrap_or(line);
        if line == "#[test]" || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some((name, _)) = function.strip_prefix("fn ").and_then(|rest| rest.split_once('('))
            && std::mem::take(&mut is_test)
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns the module and the name of each case that `suite!` or `on_both!` lists. For `on_both!`, the module is
/// `self`.
fn listed(text: &str) -> Vec<(String, String)> {
    let mut names = Vec::new();
    for suite in text.split("\nconformance::suite! {").skip(1) {
        let suite = suite.split("\n}").next().unwrap_or_default();
        for module in suite.split('}') {
            let Some((module, cases)) = module.rsplit_once('{') else { continue };
            let module = module.trim().rsplit(char::is_whitespace).next().unwrap_or_default();
            names.extend(cases.split_whitespace().map(|name| (module.to_owned(), name.to_owned())));
        }
    }
    for cases in text.split("\non_both! {").skip(1) {
        let cases = cases.split('}').next().unwrap_or_default();
        names.extend(cases.split_whitespace().map(|name| ("self".to_owned(), name.to_owned())));
    }
    names
}

fn exists(tests: &BTreeSet<String>, named: &str) -> bool {
    tests.iter().any(|test| test.ends_with(&format!("::{named}")))
}

/// Returns each text that is enclosed in backticks and contains `::`.
fn named(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2).filter(|word| word.contains("::"))
}

#[test]
fn every_pitfall_has_a_test_or_a_reason_why_it_needs_none() {
    let document = fs::read_to_string(root().join("docs/pitfalls.md")).unwrap();
    let (entries, tests) = (entries(&document), tests());
    let numbers = (1..=NUMBERED).map(|number| number.to_string());
    let names = PETTING_ZOO.iter().chain(&CONSEQUENCES).map(|name| (*name).to_owned());
    let expected: BTreeSet<String> = numbers.chain(names).collect();
    assert_eq!(entries.keys().cloned().collect::<BTreeSet<_>>(), expected);
    for (name, text) in &entries {
        let has_test = text.split_once("Test: ").is_some_and(|(_, rest)| named(rest).next().is_some());
        let has_reason = text.split_once("Cannot apply: ").is_some_and(|(_, rest)| rest.trim().ends_with('.'));
        assert!(has_test != has_reason, "{name} must have either a test or a reason why it needs none");
    }
    let missing: Vec<&str> = named(&document).filter(|named| !named.ends_with('…') && !exists(&tests, named)).collect();
    assert!(missing.is_empty(), "the document names missing tests: {missing:#?}");
}

#[test]
fn test_search_finds_only_test_functions() {
    let text = "#[test]\nfn a_test() {}\nfn no_test() {}\n// suite! in a comment {\nconformance::suite! { $ dyn X, y, [z];\n    one {\n        a_case\n    }\n    \
                two {\n        another\n        and_another\n    }\n}\nfn after() {}\non_both! {\n    on_each\n}\n";
    assert_eq!(attributed(text), ["a_test"]);
    let listed = listed(text);
    let listed: Vec<_> = listed.iter().map(|(module, name)| format!("{module}::{name}")).collect();
    assert_eq!(listed, ["one::a_case", "two::another", "two::and_another", "self::on_each"]);
    let tests = tests();
    assert!(exists(&tests, "pitfalls::test_search_finds_only_test_functions"));
    assert!(!exists(&tests, "pitfalls::exists") && !exists(&tests, "missing_test"));
}
