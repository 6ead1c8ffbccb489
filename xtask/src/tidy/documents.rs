//! Rules that connect the documents with the code: ARCHITECTURE.md lists every crate, and every guarantee names
//! existing tests.

use std::collections::{BTreeMap, BTreeSet};

use super::arrows::{Package, short_name};
use super::{File, Finding};

const MAP: &str = "ARCHITECTURE.md";
const GUARANTEES: &str = "docs/guarantees.md";
const DECISIONS: &str = "docs/decisions/";
pub(super) const DECISIONS_INDEX: &str = "docs/decisions/README.md";

pub(super) fn findings(files: &[File], packages: &[Package]) -> Vec<Finding> {
    let mut found = map(files, packages);
    found.extend(guarantees(files));
    found.extend(decisions(files));
    found.extend(stale_pages(files));
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
    let names = packages.iter().map(|package| short_name(&package.name));
    names
        .filter(is_missing)
        .map(|name| map.finding(0, format!("the crate `{name}` is missing in this document")))
        .collect()
}

/// Kind of a test, as docs/guarantees.md defines it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Real,
    Simulated,
    Pure,
}

impl Kind {
    const ALL: [(&str, Kind); 3] =
        [("- real: ", Kind::Real), ("- simulated: ", Kind::Simulated), ("- pure: ", Kind::Pure)];

    /// Returns the kind of the tests in a source file. All tests of the scheduler and of the simulator use the simulator.
    /// The other tests outside of a crate's sources use real parts, unless they name the simulator.
    fn of(file: &File) -> Kind {
        let is_outside = file.path.contains("/tests/") || file.path.contains("conformance/src/");
        let is_in = |folder: &str| file.path.starts_with(folder);
        let uses_simulator = is_outside && file.text.contains("simulator::");
        if uses_simulator || is_in("crates/simulator/") || is_in("crates/scheduler/tests/") {
            Kind::Simulated
        } else if is_outside && !is_in("crates/domain/") {
            Kind::Real
        } else {
            Kind::Pure
        }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Real => "real",
            Kind::Simulated => "simulated",
            Kind::Pure => "pure",
        }
    }
}

/// Checks that every section with a guarantee (a second-level heading) names a real test, that every named test exists,
/// and that the lists of tests state their kinds.
fn guarantees(files: &[File]) -> Vec<Finding> {
    let document = match file(files, GUARANTEES) {
        Ok(document) => document,
        Err(missing) => return vec![missing],
    };
    let code = files.iter().filter(|file| file.path.ends_with(".rs"));
    let tests: BTreeMap<&str, Kind> =
        code.flat_map(|file| functions(&file.text).map(|name| (name, Kind::of(file)))).collect();
    let mut found = Vec::new();
    let mut section: Option<(usize, bool)> = None;
    let close = |section: Option<(usize, bool)>, found: &mut Vec<Finding>| {
        if let Some((line, false)) = section {
            found.push(document.finding(line, "this guarantee names no real test; name a real test that checks it"));
        }
    };
    // Kind of the list that contains the line.
    let mut stated = None;
    for (at, line) in document.lines() {
        if line.starts_with("## ") {
            close(section, &mut found);
            section = Some((at, false));
        }
        match Kind::ALL.iter().find(|(prefix, _)| line.starts_with(prefix)) {
            Some((_, kind)) => stated = Some(*kind),
            None if line.starts_with("  ") => {}
            None => stated = None,
        }
        for name in test_names(line) {
            match (tests.get(name), stated) {
                (None, _) => found.push(document.finding(at, format!("there is no test `{name}`"))),
                (Some(kind), Some(stated)) if *kind != stated => {
                    found.push(document.finding(at, format!("the test `{name}` is {}", kind.name())));
                }
                (Some(_), Some(Kind::Real)) => section = section.map(|(line, _)| (line, true)),
                (Some(_), _) => {}
            }
        }
    }
    close(section, &mut found);
    found
}

/// Returns the names of the functions in a source file.
fn functions(text: &str) -> impl Iterator<Item = &str> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_code = |line: &&str| !line.trim_start().starts_with("//");
    let rests = text.lines().filter(is_code).filter_map(|line| match line.trim_start().strip_prefix("fn ") {
        Some(rest) => Some(rest),
        None => line.split_once(" fn ").map(|(_, rest)| rest),
    });
    rests.map(move |rest| &rest[..rest.find(|c| !is_name(c)).unwrap_or(rest.len())])
}

/// Returns the words between backticks that have the form of a test name.
fn test_names(line: &str) -> impl Iterator<Item = &str> {
    let is_sentence = |word: &&str| {
        word.matches('_').count() >= 3
            && word.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_')
    };
    line.split('`').skip(1).step_by(2).filter(is_sentence)
}

/// Areas of decisions, in the order of the index.
const AREAS: [&str; 12] = [
    "scheduler",
    "store",
    "journal",
    "server",
    "callbacks",
    "coordination",
    "bus",
    "paxos",
    "operations",
    "cli",
    "tests",
    "build",
];

/// Title, status, date and area of a decision page.
#[derive(PartialEq, Eq, Debug)]
struct Heading<'a> {
    number: &'a str,
    title: &'a str,
    status: &'a str,
    date: &'a str,
    area: &'a str,
}

/// Parses a first line such as `# 0040: Title`, and a third line that starts with text such as
/// `Status: accepted. Date: 2026-11-21. Area: store.`
fn heading(text: &str) -> Option<Heading<'_>> {
    let mut lines = text.lines();
    let (number, title) = lines.next()?.strip_prefix("# ")?.split_once(": ")?;
    let mut fields = lines.nth(1)?.split(". ").map(|field| field.trim_end_matches('.'));
    let mut field = |name: &str| fields.next()?.strip_prefix(name);
    let (status, date, area) = (field("Status: ")?, field("Date: ")?, field("Area: ")?);
    (date.len() == "2026-11-21".len() && AREAS.contains(&area)).then_some(Heading { number, title, status, date, area })
}

/// Returns the pages of decisions, without the table of dependencies and the index.
fn decision_pages(files: &[File]) -> impl Iterator<Item = (&File, &str)> {
    let names = files.iter().filter_map(|file| Some((file, file.path.strip_prefix(DECISIONS)?)));
    names.filter(|(_, name)| name.starts_with(|c: char| c.is_ascii_digit()))
}

/// Checks that each decision has a heading, that a file other than a Markdown document names the decision, and that the
/// index is current.
fn decisions(files: &[File]) -> Vec<Finding> {
    let index = match file(files, DECISIONS_INDEX) {
        Ok(index) => index,
        Err(missing) => return vec![missing],
    };
    let has_heading = |(page, name): &(&File, &str)| {
        heading(&page.text).is_some_and(|heading| name.split('-').next() == Some(heading.number))
    };
    let mut found: Vec<Finding> = decision_pages(files)
        .filter(|page| !has_heading(page))
        .map(|(page, _)| {
            page.finding(
                1,
                "a decision must start with the lines `# NNNN: Title` and `Status: ... Date: ... Area: ...`",
            )
        })
        .collect();
    let named: BTreeSet<&str> =
        files.iter().filter(|file| !file.path.ends_with(".md")).flat_map(named_decisions).collect();
    let unnamed = decision_pages(files).filter(|(_, name)| !named.contains(name.split('-').next().unwrap_or_default()));
    let rule = "no code refers to this decision; name the decision in the file that it explains";
    found.extend(unnamed.map(|(page, _)| page.finding(0, rule)));
    if index.text != index_of(files) {
        found.push(index.finding(0, "the index is outdated; run `cargo xtask index`"));
    }
    found
}

/// Returns the numbers of the decisions that the file names, as in "decision 0040" and "decisions/0040-...".
fn named_decisions(file: &File) -> impl Iterator<Item = &str> {
    let rests =
        file.text.split("ecision").skip(1).map(|rest| rest.trim_start_matches('s').trim_start_matches(['/', ' ']));
    rests.filter_map(|rest| rest.get(..4)).filter(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Returns the expected content of [`DECISIONS_INDEX`].
pub(super) fn index_of(files: &[File]) -> String {
    let mut index =
        "# Decisions\n\nEach page gives the context, the choice and its cost. `cargo xtask index` writes this list. \
                     [dependencies.md](dependencies.md) lists the libraries that need no page.\n"
            .to_owned();
    let mut pages: Vec<_> =
        decision_pages(files).filter_map(|(page, name)| Some((name, heading(&page.text)?))).collect();
    pages.sort_by_key(|(name, _)| *name);
    for area in AREAS {
        let mut rows = pages.iter().filter(|(_, heading)| heading.area == area).peekable();
        if rows.peek().is_some() {
            index.push_str(&format!(
                "\n## {}{}\n\n| | decision | status | date |\n|---|---|---|---|\n",
                area[..1].to_uppercase(),
                &area[1..]
            ));
        }
        for (name, Heading { number, title, status, date, .. }) in rows {
            index.push_str(&format!("| [{number}]({name}) | {title} | {status} | {date} |\n"));
        }
    }
    index
}

/// Returns the documents that contain code of a tested file, each with its expected text.
///
/// A line `<!-- code: FILE NAME -->` names the part of `FILE` between `// [NAME]` and `// [end]`. The next fenced block
/// is a copy of this part.
pub(super) fn pages_of(files: &[File]) -> impl Iterator<Item = (&File, Result<String, Finding>)> {
    let pages = files.iter().filter(|file| file.path.ends_with(".md") && file.text.contains("\n<!-- code: "));
    pages.map(|page| (page, page_of(page, files)))
}

fn page_of(page: &File, files: &[File]) -> Result<String, Finding> {
    let mut text = String::new();
    let mut lines = page.lines();
    while let Some((at, line)) = lines.next() {
        text.push_str(line);
        text.push('\n');
        let Some(place) = line.strip_prefix("<!-- code: ").and_then(|rest| rest.strip_suffix(" -->")) else { continue };
        let code = place.split_once(' ').and_then(|(path, name)| part(&file(files, path).ok()?.text, name));
        let code = code.ok_or_else(|| {
            page.finding(
                at,
                format!("the code `{place}` does not exist; expected `FILE NAME`, where FILE contains `// [NAME]`"),
            )
        })?;
        text.push_str(&format!("\n```rust\n{code}```\n"));
        let is_fence = |(_, line): &(usize, &str)| line.starts_with("```");
        let is_skipped = lines.find(is_fence).and_then(|_| lines.find(is_fence)).is_some();
        if !is_skipped {
            return Err(page.finding(
                at,
                "no fenced code block follows this line; add an empty block, and run `cargo xtask index`",
            ));
        }
    }
    Ok(text)
}

/// Returns the lines between `// [name]` and `// [end]` without their indentation.
fn part(text: &str, name: &str) -> Option<String> {
    let start = format!("// [{name}]");
    let mut lines = text.lines().skip_while(|line| line.trim() != start);
    let indent = lines.next()?.find("//")?;
    let part: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "// [end]").collect();
    let unindented = part.iter().map(|line| format!("{}\n", line.get(indent..).unwrap_or_default()));
    Some(unindented.collect())
}

fn stale_pages(files: &[File]) -> Vec<Finding> {
    let stale = |page: &File| page.finding(0, "the code in this document is outdated; run `cargo xtask index`");
    let findings = pages_of(files).filter_map(|(page, text)| match text {
        Ok(text) => (page.text != text).then(|| stale(page)),
        Err(finding) => Some(finding),
    });
    findings.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str) -> Package {
        Package { name: name.to_owned(), dependencies: Vec::new() }
    }

    fn messages(found: &[Finding]) -> Vec<&str> {
        found.iter().map(|finding| finding.what.as_str()).collect()
    }

    #[test]
    fn check_finds_crate_that_the_architecture_document_does_not_name() {
        let files = [File::new(MAP, "`domain` is pure, and `crates/store` is a port; journal is not named")];
        let packages = ["domain", "store", "journal"].map(package);
        assert_eq!(messages(&map(&files, &packages)), ["the crate `journal` is missing in this document"]);
        assert_eq!(messages(&map(&[], &packages)), ["this document is missing"]);
    }

    #[test]
    fn check_finds_guarantee_without_an_existing_real_test() {
        let promises = "# All\n## One\nSee:\n\n- real: `it_holds_when_asked`,\n  `it_is_long_gone`\n\
            ## Two\n- simulated: `it_is_in_a_suite`, `a_word`\n## Three\n- real: `it_holds_for_one_part`\n";
        let file =
            |path: &str, name: &str| File::new(path, &format!("#[test]\nfn {name}() {{}}\n// fn it_is_long_gone()"));
        let files = [
            File::new(GUARANTEES, promises),
            file("crates/a/tests/it/main.rs", "it_holds_when_asked"),
            file("crates/scheduler/tests/it/main.rs", "it_is_in_a_suite"),
            file("crates/a/src/tests.rs", "it_holds_for_one_part"),
        ];
        let expected = [
            "there is no test `it_is_long_gone`",
            "this guarantee names no real test; name a real test that checks it",
            "the test `it_holds_for_one_part` is pure",
            "this guarantee names no real test; name a real test that checks it",
        ];
        assert_eq!(messages(&guarantees(&files)), expected);
    }

    #[test]
    fn check_finds_invalid_decision_and_outdated_index() {
        let page = |path: &str, text: &str| File::new(&format!("{DECISIONS}{path}"), text);
        let text = |number: &str| {
            format!("# {number}: Use it\n\nStatus: accepted. Date: 2026-11-21. Area: store. Code: it.\n")
        };
        let pages =
            [page("0002-two.md", &text("0002")), page("0001-one.md", &text("0001")), page("dependencies.md", "#")];
        let index = index_of(&pages);
        let rows = "## Store\n\n| | decision | status | date |\n|---|---|---|---|\n\
                    | [0001](0001-one.md) | Use it | accepted | 2026-11-21 |\n\
                    | [0002](0002-two.md) | Use it | accepted | 2026-11-21 |\n";
        assert!(index.ends_with(rows), "{index}");
        let code = File::new("a.rs", "//! docs/decisions/0001-one.md and decision 0002 give the reasons.");
        let found = |first: &File, index: &str| {
            decisions(&[first.clone(), pages[1].clone(), page("README.md", index), code.clone()]).len()
        };
        assert_eq!(found(&pages[0], &index), 0);
        assert_eq!(found(&pages[0], rows), 1);
        assert_eq!(found(&page("0002-two.md", &text("0003")), &index), 2);
        assert_eq!(found(&page("0002-two.md", "# Two\n\nText"), &index), 2);
        assert_eq!(found(&page("0003-three.md", &text("0003")), &index), 2, "no code refers to it");
    }

    #[test]
    fn check_finds_document_with_outdated_or_missing_code() {
        let code = File::new("a.rs", "fn f() {\n    // [one]\n    let x = 1;\n\n    g(x);\n    // [end]\n}\n");
        let page =
            |block: &str| File::new("a.md", &format!("Text\n<!-- code: a.rs one -->\n\n```rust\n{block}```\nmore\n"));
        let found = |page: File| stale_pages(&[code.clone(), page]).len();
        assert_eq!(found(page("let x = 1;\n\ng(x);\n")), 0);
        assert_eq!(found(page("let x = 2;\n")), 1);
        assert_eq!(found(File::new("a.md", "\n<!-- code: a.rs two -->\n\n```rust\n```\n")), 1);
        assert_eq!(found(File::new("a.md", "\n<!-- code: a.rs one -->\n\ntext\n")), 1);
    }
}
