//! Check for phrases that a reader new to the project must read twice. The check covers comments, documents, string
//! literals, test names and commit subjects.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};

use super::{File, Finding};
use crate::prose::{self, Kind, Prose};

/// Phrases that the check rejects, each with advice on its replacement. The check compares whole words and ignores
/// their case.
const PHRASES: [(&str, &str); 27] = [
    ("what is", NOUN),
    ("what was", NOUN),
    ("what are", NOUN),
    ("what were", NOUN),
    ("what has", NOUN),
    ("what had", NOUN),
    ("what comes", NOUN),
    ("what came", NOUN),
    ("whoever", "name the actor: the caller, another member, a candidate that ..."),
    ("nobody", NOBODY),
    ("somebody", NOBODY),
    ("anybody", NOBODY),
    ("is told", TOLD),
    ("are told", TOLD),
    ("was told", TOLD),
    ("were told", TOLD),
    ("be told", TOLD),
    ("told of", TOLD),
    ("goes on", CONTINUES),
    ("went on", CONTINUES),
    ("go on", CONTINUES),
    ("anew", "write: again"),
    ("meanwhile", "leave out this word, or name the time"),
    ("but for", "write: except"),
    ("stands still", "write: is paused"),
    ("stood still", "write: was paused"),
    ("stand still", "write: be paused"),
];
const NOUN: &str = "name the thing itself, for example: the rows, the outcome";
const NOBODY: &str = "name the actor, for example: no process, another member, unauthenticated callers";
const TOLD: &str = "write: is notified, receives, returns an error";
const CONTINUES: &str = "write: continue";

/// Words that cannot start a doc comment.
const STARTS: [&str; 7] = ["Of", "What", "How", "Whether", "Who", "Whose", "Those"];

/// Words that are not nouns. A `who` directly after one of these words refers to no noun.
const BEFORE_WHO: [&str; 14] =
    ["and", "as", "but", "by", "for", "from", "if", "of", "only", "or", "than", "that", "to", "with"];

/// Exceptions to the check. Each entry has the end of a file's path, the phrase that the check allows in this file, and
/// the reason. An empty phrase stands for all phrases.
const ALLOWED: [(&str, &str, &str); 3] = [
    ("tidy/language.rs", "", "this file contains the list of forbidden phrases"),
    ("src/prose.rs", "", "the tests of this file quote prose"),
    ("peers/src/secret.rs", "what is", "a test signs this text, and its expected signature is fixed"),
];

/// Folders that the check skips, because the text of their files cannot change or is not prose.
const SKIPPED: [&str; 3] = ["/migrations/", "/testdata/", "/fixtures/"];

const SUBJECT_CHARS_MAX: usize = 72;

/// Hash of the last commit before the introduction of this check. The check reads only the subjects of later commits.
const SUBJECTS_SINCE: &str = "4fa6d7db5955a04504497677e67eb641bac35ad3";

/// Commits after [`SUBJECTS_SINCE`] whose subjects the check accepts. Each entry has the start of the commit's
/// hash, and the reason.
const SUBJECTS_ALLOWED: [(&str, &str); 0] = [];

pub(super) fn findings(files: &[File]) -> Vec<Finding> {
    let is_judged = |file: &&File| !SKIPPED.iter().any(|part| file.path.contains(part));
    files.iter().filter(is_judged).flat_map(in_file).collect()
}

fn in_file(file: &File) -> Vec<Finding> {
    let is_allowed = |phrase: &str| {
        ALLOWED.iter().any(|(path, allowed, _)| file.path.ends_with(path) && (allowed.is_empty() || *allowed == phrase))
    };
    let mut found = Vec::new();
    for prose in prose::of_file(&file.path, &file.text) {
        let mut hits = in_prose(&prose);
        hits.retain(|(_, phrase, _)| !is_allowed(phrase));
        // The check reports only one finding for each line.
        hits.dedup_by_key(|(line, _, _)| *line);
        found
            .extend(hits.into_iter().map(|(line, phrase, advice)| file.finding(line, format!("`{phrase}`: {advice}"))));
    }
    found
}

/// Returns the line number, the phrase and the advice for each phrase in `prose` that the check rejects.
fn in_prose(prose: &Prose) -> Vec<(usize, String, &'static str)> {
    if prose.kind == Kind::TestName {
        let words: Vec<_> = prose.text.split('_').map(|word| (prose.line, word.to_owned())).collect();
        let told = words.iter().filter(|(_, word)| word == "told").map(|(line, word)| (*line, word.clone(), TOLD));
        return phrases(&words).into_iter().chain(told).collect();
    }
    let mut words = Vec::new();
    for (text, line) in prose.text.lines().zip(prose.line..) {
        // The check skips names in backticks, because they are code.
        let prose_only = text.split('`').step_by(2);
        for part in prose_only {
            let parts = part.split_whitespace().map(|word| word.trim_matches(|c: char| "()*_\"[]".contains(c)));
            words.extend(parts.filter(|word| !word.is_empty()).map(|word| (line, word.to_owned())));
        }
    }
    let mut found = Vec::new();
    if prose.kind == Kind::DocComment
        && let Some(word) = words.first().map(|(_, word)| word).filter(|word| STARTS.contains(&word.as_str()))
    {
        found.push((prose.line, word.clone(), "start a doc comment with a noun or a verb"));
    }
    found.extend(phrases(&words));
    found
}

fn phrases(words: &[(usize, String)]) -> Vec<(usize, String, &'static str)> {
    const ENDS: [char; 6] = ['.', ',', ';', ':', '?', '!'];
    let plain: Vec<String> =
        words.iter().map(|(_, word)| word.trim_end_matches(ENDS).trim_end_matches(')').to_lowercase()).collect();
    // All words of a phrase must be in the same clause, so a punctuation mark between them prevents a match.
    let starts_with = |at: usize, phrase: &str| {
        let mut rest = phrase;
        for (offset, word) in plain[at..].iter().enumerate() {
            match rest.strip_prefix(word.as_str()) {
                Some("") => return true,
                Some(next) if next.starts_with(' ') && !words[at + offset].1.ends_with(ENDS) => rest = &next[1..],
                _ => return false,
            }
        }
        false
    };
    let has_question = words.iter().any(|(_, word)| word.ends_with('?'));
    let mut found = Vec::new();
    for (at, (line, _)) in words.iter().enumerate() {
        let here = PHRASES.iter().filter(|(phrase, _)| starts_with(at, phrase));
        found.extend(here.map(|(phrase, advice)| (*line, (*phrase).to_owned(), *advice)));
        let before = at.checked_sub(1).map(|at| words[at].1.as_str());
        let has_no_noun = before
            .is_none_or(|before| before.ends_with(ENDS) && !before.ends_with(',') || BEFORE_WHO.contains(&before));
        if plain[at] == "who" && has_no_noun && !has_question {
            found.push((*line, "who".to_owned(), "name the actor, for example `a candidate that` or `the caller`"));
        }
    }
    found
}

/// Checks the subjects of all commits after [`SUBJECTS_SINCE`], and returns the findings. Returns no findings if the
/// checkout does not contain this commit, for example in a shallow clone.
///
/// # Errors
/// Returns an error if git cannot list the commits.
pub(super) fn subjects(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let git =
        |arguments: &[&str]| Command::new("git").args(arguments).current_dir(root).output().context("cannot start git");
    if !git(&["cat-file", "-e", &format!("{SUBJECTS_SINCE}^{{commit}}")])?.status.success() {
        return Ok(Vec::new());
    }
    let listed = git(&["log", "--no-merges", "--format=%h %s", &format!("{SUBJECTS_SINCE}..HEAD")])?;
    ensure!(listed.status.success(), "git cannot list the commits: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let commits = listed.lines().filter_map(|line| line.split_once(' '));
    let is_judged = |hash: &str| !SUBJECTS_ALLOWED.iter().any(|(allowed, _)| hash.starts_with(allowed));
    Ok(commits.filter(|(hash, _)| is_judged(hash)).flat_map(|(hash, text)| in_subject(hash, text)).collect())
}

fn in_subject(hash: &str, subject: &str) -> Vec<Finding> {
    let finding = |what: String| Finding { path: format!("commit {hash}"), line: 0, what };
    let prose = Prose { kind: Kind::Comment, line: 0, text: subject.to_owned() };
    let mut found: Vec<Finding> =
        in_prose(&prose).into_iter().map(|(_, phrase, advice)| finding(format!("`{phrase}`: {advice}"))).collect();
    if subject.chars().count() > SUBJECT_CHARS_MAX {
        found.push(finding(format!("the subject is longer than {SUBJECT_CHARS_MAX} characters")));
    }
    if subject.ends_with('.') {
        found.push(finding("the subject ends with a period".to_owned()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whats(path: &str, text: &str) -> Vec<(usize, String)> {
        let found = findings(&[File::new(path, text)]);
        found
            .into_iter()
            .map(|finding| (finding.line, finding.what.split('`').nth(1).unwrap_or_default().to_owned()))
            .collect()
    }

    #[test]
    fn check_finds_each_forbidden_phrase_in_every_kind_of_prose() {
        for (phrase, _) in PHRASES {
            let upper = phrase.to_uppercase();
            let name = phrase.replace(' ', "_");
            let hit = |line| vec![(line, phrase.to_owned())];
            assert_eq!(whats("a.rs", &format!("x\n// The row {upper} here\n")), hit(2), "{phrase}");
            assert_eq!(whats("a.rs", &format!("f(\"the row {phrase} here\")")), hit(1), "{phrase}");
            assert_eq!(whats("a.md", &format!("The row\n{phrase}, here\n")), hit(2), "{phrase}");
            assert_eq!(whats("a.rs", &format!("#[test]\nfn row_{name}_here() {{}}")), hit(2), "{phrase}");
        }
    }

    #[test]
    fn check_finds_a_forbidden_phrase_across_two_lines() {
        assert_eq!(whats("a.rs", "// It goes\n// on.\n"), [(1, "goes on".to_owned())]);
        assert_eq!(whats("a.rs", "/// See `goes on`.\nlet anew = 1;"), []);
        assert_eq!(whats("a.rs", "// It goes. On Monday it ends."), []);
        assert_eq!(whats("crates/a/migrations/1.sql.md", "It goes on."), []);
    }

    #[test]
    fn check_finds_the_word_who_without_a_noun_before_it() {
        let who = |line| vec![(line, "who".to_owned())];
        assert_eq!(whats("a.rs", "// Who asks waits."), who(1));
        assert_eq!(whats("a.rs", "// It answers. Who asks waits."), who(1));
        assert_eq!(whats("a.rs", "// It is for who asks."), who(1));
        assert_eq!(whats("a.rs", "// The caller who asks waits. Who is that?"), []);
        assert_eq!(whats("a.rs", "// A customer, who bought it, waits."), []);
    }

    #[test]
    fn check_finds_forbidden_first_words_of_doc_comments() {
        for word in STARTS {
            assert_eq!(whats("a.rs", &format!("/// {word} the row.\n")), [(1, word.to_owned())]);
            assert_eq!(whats("a.rs", &format!("// {word} the row?\n")), []);
        }
        assert_eq!(whats("a.rs", "#[test]\nfn caller_told_twice() {}"), [(2, "told".to_owned())]);
    }

    #[test]
    fn check_finds_a_commit_subject_that_breaks_the_style_rules() {
        assert_eq!(in_subject("1", "store: add the row"), []);
        assert_eq!(in_subject("1", &"a".repeat(73)).len(), 1);
        assert_eq!(in_subject("1", "store: add the row.").len(), 1);
        assert_eq!(in_subject("1", "store: add the row anew").len(), 1);
    }
}
