//! Rule for the page of complaints about other schedulers: the page has every entry, with a link, and each entry names
//! existing tests, names the later work, or gives the reason why it cannot apply.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use super::{File, Finding};

const PAGE: &str = "docs/complaints.md";

/// Parts of the page, each with the number of its entries and the number of their links. The numbers of the entries
/// continue from part to part. The source of the entries is not in the repository, so this list states how many there
/// are.
const PARTS: [(&str, u32, usize); 7] = [
    ("## A. Missed or lost after failover, restart, disconnect", 23, 28),
    ("## B. Fired twice", 14, 29),
    ("## C. Stuck states and locks", 9, 22),
    ("## D. Time zones and DST", 15, 25),
    ("## E. Cron dialects", 6, 7),
    ("## F. Scale, herd, memory", 14, 22),
    ("## G. Delete, clean up, history", 6, 9),
];

/// Text at which the address of a public link starts.
const LINK_START: &str = "](https://github.com/";

/// Text that precedes the verdict of an entry.
const TEST: &str = " Test: ";
const OTHERS: [&str; 2] = [" Planned: ", " Cannot apply: "];

/// Folders in which a public function of a suite is a test, without an attribute.
const SUITES: &str = "conformance/src/";

/// Numbered entry of the page.
struct Entry {
    number: u32,
    line: usize,
    /// Heading of the part that contains the entry.
    part: String,
    /// Text without line breaks.
    text: String,
}

pub(super) fn findings(files: &[File]) -> Vec<Finding> {
    let Some(page) = files.iter().find(|file| file.path == PAGE) else {
        return vec![Finding { path: PAGE.to_owned(), line: 0, what: "this document is missing".to_owned() }];
    };
    let entries = entries(page);
    let mut found = missing(page, &entries);
    if found.is_empty() {
        found = wrong_link_counts(page, &entries);
    }
    let mut tests: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for file in files.iter().filter(|file| file.path.ends_with(".rs")) {
        tests.insert(&file.path, tests_of(file));
    }
    for entry in &entries {
        found.extend(problems(entry, &tests).into_iter().map(|problem| page.finding(entry.line, problem)));
    }
    found
}

/// Returns the entries, which start with a number and a period at the start of a line.
fn entries(page: &File) -> Vec<Entry> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut part = String::new();
    let mut is_open = false;
    for (line, text) in page.lines() {
        let start = text.split_once(". ").and_then(|(number, rest)| Some((number.parse().ok()?, rest)));
        if text.starts_with('#') {
            part = text.to_owned();
        }
        if let Some((number, rest)) = start {
            entries.push(Entry { number, line, part: part.clone(), text: rest.to_owned() });
            is_open = true;
        } else if text.starts_with(' ')
            && is_open
            && let Some(entry) = entries.last_mut()
        {
            entry.text.push(' ');
            entry.text.push_str(text.trim());
        } else {
            is_open = false;
        }
    }
    entries
}

/// Compares the numbers of the entries of each part with [`PARTS`].
fn missing(page: &File, entries: &[Entry]) -> Vec<Finding> {
    let mut expected = Vec::new();
    for (part, count, _) in PARTS {
        let first = u32::try_from(expected.len()).unwrap_or(u32::MAX) + 1;
        expected.extend((first..first + count).map(|number| (part, number)));
    }
    let present: Vec<(&str, u32)> = entries.iter().map(|entry| (entry.part.as_str(), entry.number)).collect();
    let absent = expected.iter().filter(|one| !present.contains(one));
    let mut found: Vec<Finding> =
        absent.map(|(part, number)| page.finding(0, format!("entry {number} of `{part}` is missing"))).collect();
    if found.is_empty() && present != expected {
        found.push(page.finding(0, "an entry is listed twice, in another order or in an unknown part"));
    }
    found
}

/// Compares the numbers of the links of each part with [`PARTS`].
fn wrong_link_counts(page: &File, entries: &[Entry]) -> Vec<Finding> {
    let counted = PARTS.map(|(part, _, expected)| {
        let texts = entries.iter().filter(|entry| entry.part == part).map(|entry| &entry.text);
        (part, expected, texts.map(|text| text.matches(LINK_START).count()).sum::<usize>())
    });
    let wrong = counted.into_iter().filter(|(_, expected, count)| count != expected);
    wrong
        .map(|(part, expected, count)| page.finding(0, format!("`{part}` has {count} links, not {expected}")))
        .collect()
}

/// Returns the problems of one entry. `tests` contains the tests of each file.
fn problems(entry: &Entry, tests: &BTreeMap<&str, BTreeSet<&str>>) -> Vec<String> {
    let mut problems = Vec::new();
    if !entry.text.contains(LINK_START) {
        problems.push("this entry has no public link".to_owned());
    }
    let verdicts = OTHERS.iter().chain([&TEST]).filter(|verdict| entry.text.contains(*verdict));
    if verdicts.count() != 1 {
        problems.push("an entry must have exactly one of `Test: `, `Planned: ` and `Cannot apply: `".to_owned());
        return problems;
    }
    let list = entry.text.split_once(TEST).map(|(_, list)| list);
    let named: Vec<&str> = list.unwrap_or(&entry.text).split('`').skip(1).step_by(2).collect();
    if list.is_none() {
        // Such an entry may name the tests that show a part.
        problems.extend(named.into_iter().filter(|name| name.contains(".rs::")).filter_map(|name| absent(name, tests)));
        if !entry.text.ends_with('.') || OTHERS.iter().any(|verdict| entry.text.ends_with(verdict.trim_end())) {
            problems.push("the verdict of this entry must be a sentence".to_owned());
        }
        return problems;
    }
    if named.is_empty() {
        problems.push("this entry names no test".to_owned());
    }
    problems.extend(named.into_iter().filter_map(|name| absent(name, tests)));
    problems
}

/// Returns a problem if `name` is not the name of a test in `tests`.
fn absent(name: &str, tests: &BTreeMap<&str, BTreeSet<&str>>) -> Option<String> {
    let is_test = |(path, function): (&str, &str)| tests.get(path).is_some_and(|tests| tests.contains(function));
    let is_present = name.split_once("::").is_some_and(is_test);
    (!is_present).then(|| format!("there is no test `{name}`; write FILE::NAME"))
}

/// Returns the names of the functions in the file that an attribute marks as tests. In a suite, returns the names of the
/// cases too. Another rule forbids ignored tests.
fn tests_of(file: &File) -> BTreeSet<&str> {
    let is_suite = file.path.contains(SUITES);
    let mut is_test = false;
    let mut tests = BTreeSet::new();
    for line in file.text.lines().map(str::trim) {
        if line == "#[test]" || line.starts_with("#[tokio::test") {
            is_test = true;
        }
        let case = line.strip_prefix("pub(super) async fn ").filter(|_| is_suite);
        let function = line.strip_prefix("async fn ").or_else(|| line.strip_prefix("fn "));
        if let Some((name, _)) = function.or(case).and_then(|rest| rest.split_once('('))
            && (mem::take(&mut is_test) || case.is_some())
        {
            tests.insert(name);
        }
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: &str = "([a#1](https://github.com/a/a/issues/1)).";

    /// Returns a page in which every entry has a reason, except the entry `number`, which has the text `text`. The last
    /// entry of each part has the other links of the part.
    fn page(number: u32, text: &str) -> File {
        let (mut lines, mut at) = (vec!["# All".to_owned()], 0);
        for (part, count, links) in PARTS {
            lines.push(part.to_owned());
            for n in 1..=count {
                at += 1;
                let more = if n == count { LINK.repeat(links - count as usize) } else { String::new() };
                let text = if at == number { text.to_owned() } else { format!("Lost\n   {LINK} Cannot apply: no.") };
                lines.push(format!("{at}. {more}{text}"));
            }
        }
        File::new(PAGE, &lines.join("\n"))
    }

    const TESTS: &str = "#[test]\nfn is_a_test() {}\nfn is_no_test() {}\n";

    fn messages(page: File) -> Vec<String> {
        let test = File::new("crates/a/tests/it/b.rs", TESTS);
        let suite = File::new("crates/a-conformance/src/b.rs", "pub(super) async fn is_a_case(subject: &dyn X) {}\n");
        findings(&[page, test, suite]).into_iter().map(|finding| finding.what).collect()
    }

    #[test]
    fn check_accepts_entries_with_a_link_and_one_verdict() {
        let tests = "Test: `crates/a/tests/it/b.rs::is_a_test`,\n   `crates/a-conformance/src/b.rs::is_a_case`.";
        let part = "The test `crates/a/tests/it/b.rs::is_a_test` shows a part. Planned: `later` work.";
        for verdict in [tests, part, "Planned: later work.", "Cannot apply: no."] {
            assert_eq!(messages(page(24, &format!("Twice {LINK} {verdict}"))), [""; 0], "{verdict}");
        }
    }

    #[test]
    fn check_finds_missing_entry_of_the_page_of_complaints() {
        let text = page(1, &format!("Lost {LINK} Cannot apply: no.")).text;
        let without = text.replace("\n87. ", "\nLost ");
        assert_eq!(messages(File::new(PAGE, &without)), ["entry 87 of `## G. Delete, clean up, history` is missing"]);
        let twice = format!("{text}\n87. Lost {LINK} Cannot apply: no.");
        assert_eq!(
            messages(File::new(PAGE, &twice)),
            ["an entry is listed twice, in another order or in an unknown part"]
        );
        let moved = text.replace("\n24. ", "\n14. ");
        assert_eq!(messages(File::new(PAGE, &moved)), ["entry 24 of `## B. Fired twice` is missing"]);
        assert_eq!(messages(File::new("docs/other.md", &text)), ["this document is missing"]);
    }

    #[test]
    fn check_finds_entry_without_link_verdict_or_existing_test() {
        for (text, problem) in [
            (format!("Twice {LINK}"), "an entry must have exactly one of `Test: `, `Planned: ` and `Cannot apply: `"),
            (
                format!("Twice {LINK} Planned: later work. Cannot apply: no."),
                "an entry must have exactly one of `Test: `, `Planned: ` and `Cannot apply: `",
            ),
            (format!("Twice {LINK} Planned: later"), "the verdict of this entry must be a sentence"),
            (format!("Twice {LINK} Test: all of them."), "this entry names no test"),
            (
                format!("Twice {LINK} Test: `crates/a/tests/it/b.rs::is_no_test`."),
                "there is no test `crates/a/tests/it/b.rs::is_no_test`; write FILE::NAME",
            ),
            (
                format!(
                    "Twice {LINK} The test `crates/a/tests/it/b.rs::is_no_test` shows a part. Planned: later work."
                ),
                "there is no test `crates/a/tests/it/b.rs::is_no_test`; write FILE::NAME",
            ),
            (format!("Twice {LINK} Test: `is_a_test`."), "there is no test `is_a_test`; write FILE::NAME"),
        ] {
            assert_eq!(messages(page(24, &text)), [problem], "{text}");
        }
    }

    #[test]
    fn check_counts_the_links_of_each_part() {
        let without = messages(page(24, "Twice. Planned: later work."));
        assert_eq!(without, ["`## B. Fired twice` has 28 links, not 29", "this entry has no public link"]);
        let more = messages(page(24, &format!("Twice {LINK} {LINK} Planned: later work.")));
        assert_eq!(more, ["`## B. Fired twice` has 30 links, not 29"]);
    }
}
