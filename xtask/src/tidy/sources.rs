//! Rules that apply to each file separately. They limit the size of a Rust file. They also forbid unfinished work,
//! impure code in files that must be pure, and paths or hosts that exist only on one machine.

use super::{File, Finding};

const LINES_MAX: usize = 600;

/// Files that may have more than [`LINES_MAX`] lines, each with the reason.
const LONG: [(&str, &str); 0] = [];

/// Prefixes of the paths of the files whose code must be pure. Functions in these files receive time, random numbers
/// and data as arguments.
const PURE: [&str; 7] = [
    "crates/coordination/src/memory/tree/",
    "crates/domain/src/",
    "crates/instants/src/",
    "crates/scheduler/src/firing/dispatch",
    "crates/scheduler/src/firing/steady",
    "crates/scheduler/src/firing/wheel",
    "crates/scheduler/src/firing/window",
];

const IMPURE: [&str; 16] = [
    "async fn",
    "async move",
    ".await",
    "getrandom::",
    "rand::",
    "runtime::Runtime",
    "std::env",
    "std::fs",
    "std::io",
    "std::net::Tcp",
    "std::process",
    "std::thread::",
    "std::time::Instant",
    "std::time::SystemTime",
    "tokio::",
    "::now()",
];

pub(super) fn findings(files: &[File]) -> Vec<Finding> {
    let mut found = Vec::new();
    for file in files {
        if file.path.ends_with(".rs") {
            found.extend(size(file));
            found.extend(unfinished(file));
            found.extend(impure(file));
        }
        found.extend(machine(file));
    }
    found
}

fn size(file: &File) -> Option<Finding> {
    let lines = file.text.lines().count();
    let may_be_long = LONG.iter().any(|(path, _)| *path == file.path);
    (lines > LINES_MAX && !may_be_long)
        .then(|| file.finding(0, format!("{lines} lines exceed the limit of {LINES_MAX}; split the file")))
}

/// Words that mark unfinished work. Each entry splits a word into two parts, so that the rule does not find the word in
/// this file.
const UNFINISHED: [(&str, &str); 6] =
    [("todo", "!("), ("unimplemented", "!("), ("dbg", "!("), ("#[ign", "ore"), ("TO", "DO"), ("FIX", "ME")];

const MEASUREMENT: &str = "ore = \"a measurement\"]";

fn unfinished(file: &File) -> Vec<Finding> {
    let words = UNFINISHED.map(|(start, end)| format!("{start}{end}"));
    on_lines(file, &words, "unfinished work must not be committed", |line| {
        // The rule allows the attribute `ignore` on a measurement. A measurement asserts nothing, so the attribute does
        // not skip a test.
        if line.trim().ends_with(MEASUREMENT) { "" } else { line }
    })
}

fn impure(file: &File) -> Vec<Finding> {
    let is_pure = PURE.iter().any(|path| file.path.starts_with(path)) && !file.path.ends_with("tests.rs");
    if !is_pure {
        return Vec::new();
    }
    let words = IMPURE.map(str::to_owned);
    on_lines(file, &words, "this file must be pure: pass time, random numbers and data as arguments", |line| {
        line.split_once("//").map_or(line, |(code, _)| code)
    })
}

const MACHINE: [(&str, &str); 9] = [
    ("/wo", "rk/"),
    ("/ro", "ot/"),
    ("/ho", "me/"),
    ("/Us", "ers/"),
    ("index.cra", "tes.io"),
    ("static.cra", "tes.io"),
    ("files.pytho", "nhosted.org"),
    ("registry.np", "mjs.org"),
    ("proxy.gol", "ang.org"),
];

fn machine(file: &File) -> Vec<Finding> {
    let words = MACHINE.map(|(start, end)| format!("{start}{end}"));
    on_lines(file, &words, "remove this path or host, which exists only on one machine", |line| line)
}

fn on_lines(file: &File, words: &[String], rule: &str, code_of: fn(&str) -> &str) -> Vec<Finding> {
    let hit = |line: &str| words.iter().find(|word| contains_word(code_of(line), word)).cloned();
    let hits = file.lines().filter_map(|(at, line)| Some((at, hit(line)?)));
    hits.map(|(at, word)| file.finding(at, format!("`{word}`: {rule}"))).collect()
}

/// Returns true if `line` contains `word`, but not as the end of a longer word.
fn contains_word(line: &str, word: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    let starts_inner = word.starts_with(is_inner) || word.starts_with('/');
    line.match_indices(word).any(|(at, _)| !(starts_inner && line[..at].ends_with(is_inner)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding_lines(path: &str, text: &str) -> Vec<usize> {
        findings(&[File::new(path, text)]).into_iter().map(|finding| finding.line).collect()
    }

    #[test]
    fn check_finds_file_above_the_size_limit() {
        let lines = |count| "\n".repeat(count);
        assert_eq!(finding_lines("crates/a/src/lib.rs", &lines(600)), [] as [usize; 0]);
        assert_eq!(finding_lines("crates/a/src/lib.rs", &lines(601)), [0]);
        assert_eq!(finding_lines("README.md", &lines(601)), [] as [usize; 0]);
    }

    #[test]
    fn check_finds_each_marker_of_unfinished_work() {
        for (start, end) in UNFINISHED {
            assert_eq!(
                finding_lines("crates/a/src/lib.rs", &format!("fn a() {{}}\n{start}{end}")),
                [2],
                "{start}{end}"
            );
        }
        assert_eq!(finding_lines("crates/a/src/lib.rs", &format!("    #[ign{MEASUREMENT}\n")), [] as [usize; 0]);
    }

    #[test]
    fn check_finds_impure_code_but_not_comments_in_a_pure_file() {
        let pure = "crates/scheduler/src/firing/wheel.rs";
        for word in IMPURE {
            assert_eq!(finding_lines(pure, &format!("// {word}\n  {word}")), [2], "{word}");
        }
        assert_eq!(finding_lines("crates/scheduler/src/firing/owner.rs", "tokio::select!"), [] as [usize; 0]);
        assert_eq!(finding_lines("crates/domain/src/decide/tests.rs", "std::fs::read"), [] as [usize; 0]);
        assert_eq!(finding_lines(pure, "operand::"), [] as [usize; 0]);
    }

    #[test]
    fn check_finds_path_that_exists_only_on_one_machine() {
        for (start, end) in MACHINE {
            assert_eq!(finding_lines("docs/a.md", &format!("see {start}{end}main")), [1], "{start}{end}");
        }
        assert_eq!(finding_lines("docs/a.md", "see crates/wo\u{72}k/ and ../ro\u{6f}t/"), [] as [usize; 0]);
    }
}
