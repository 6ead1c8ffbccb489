//! Two builds of the binary side by side: their help, and their answers to the requests in `compare/requests.txt`.
//!
//! The comparison is by bytes. It passes over what differs by nature, and nothing else:
//!
//! - the header `date`, and a `content-length` that is the body's or that of metrics;
//! - instants before the year after next, durations of attempts, and new secrets;
//! - words of at least [`RANDOM_MIN`] characters with a digit or a capital in them, as ids have: each of one build stands for
//!   one of the other throughout;
//! - the order of the lines of metrics, and the values of samples. Names, labels and help are compared.

mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;

use session::Answer;

/// Characters of a word that may be an id.
const RANDOM_MIN: usize = 10;
/// Characters shown before and after a difference.
const SHOWN: usize = 160;

#[derive(Args, Debug)]
pub(crate) struct CompareArguments {
    /// Binary of the build before a change
    #[arg(long)]
    before: PathBuf,
    /// Binary of the build after it
    #[arg(long)]
    after: PathBuf,
}

/// # Errors
/// If a binary cannot be started, or does not get through the requests.
pub(crate) fn run(arguments: &CompareArguments) -> anyhow::Result<ExitCode> {
    let mut pairs = Pairs::default();
    let mut differences = 0;
    let mut differs = |what: &str, difference: Option<String>| {
        if let Some(difference) = difference {
            eprintln!("== {what}\n{difference}\n");
            differences += 1;
        }
    };
    let [before, after] = [help(&arguments.before)?, help(&arguments.after)?];
    let commands: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for command in &commands {
        let [before, after] = [&before, &after].map(|help| help.get(*command).map_or("", String::as_str));
        differs(&format!("reveille {command}"), Pairs::default().difference(before, after));
    }
    let requests = session::requests()?;
    let before = session::answers(&arguments.before, &requests).context("the build before")?;
    let after = session::answers(&arguments.after, &requests).context("the build after")?;
    for ((request, before), after) in requests.iter().zip(&before).zip(&after) {
        let what = format!("{} {} (line {} of the requests)", request.method, request.path, request.line);
        differs(&what, pairs.difference(&comparable(before), &comparable(after)));
    }
    eprintln!("{} commands and {} requests compared, {differences} differences", commands.len(), requests.len());
    Ok(if differences == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The help of the binary and of each of its commands, by the words that lead to it.
fn help(binary: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    let mut open = vec![vec!["--version".to_owned()], Vec::new()];
    while let Some(words) = open.pop() {
        for flag in ["-h", "--help"] {
            // Help names the program as it was called.
            let output = Command::new(binary).arg0("reveille").args(&words).arg(flag).env("COLUMNS", "100").output();
            let output = output.with_context(|| format!("cannot start {}", binary.display()))?;
            ensure!(output.status.success(), "{words:?} has no help: {}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).context("help is not text")?;
            if flag == "--help" {
                let commands = text.split_once("\nCommands:\n").map_or("", |(_, rest)| rest);
                let lines = commands.lines().take_while(|line| !line.is_empty());
                let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
                let names = names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
                open.extend(names.map(|name| words.iter().cloned().chain([name.to_owned()]).collect::<Vec<_>>()));
            }
            texts.insert(format!("{} {flag}", words.join(" ")).trim_start().to_owned(), text);
        }
    }
    Ok(texts)
}

/// The answer as text, without what differs by nature and is not an id.
fn comparable(answer: &Answer) -> String {
    let is_metrics = answer.headers.iter().any(|(name, value)| name == "content-type" && value.contains("openmetrics"));
    let mut text = format!("{}\n", answer.status);
    for (name, value) in &answer.headers {
        if name == "content-length" && (is_metrics || *value == answer.body.len().to_string()) {
            text.push_str("content-length: the body's\n");
        } else if name != "date" {
            text.push_str(&format!("{name}: {value}\n"));
        }
    }
    let body = if is_metrics { metrics(&answer.body) } else { without_moments(&answer.body) };
    text.push('\n');
    text + &body
}

fn metrics(body: &str) -> String {
    let line = |line: &str| match line.rsplit_once(' ') {
        Some((name, _)) if !line.starts_with('#') => format!("{name} VALUE\n"),
        _ => format!("{line}\n"),
    };
    body.lines().map(line).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Replaces instants near the present, durations and secrets.
fn without_moments(body: &str) -> String {
    let mut text = String::new();
    let mut rest = body;
    while let Some(next) = rest.chars().next() {
        let taken = if let Some(length) = instant(rest) {
            text.push_str("INSTANT");
            length
        } else if let Some((field, value)) = [r#""duration_ms":"#, r#""secret":""#].iter().find_map(|field| {
            let value = rest.strip_prefix(field)?;
            Some((field, value.find([',', '}', '"'])?))
        }) {
            text.push_str(field);
            text.push_str("VALUE");
            field.len() + value
        } else {
            text.push(next);
            next.len_utf8()
        };
        rest = &rest[taken..];
    }
    text
}

/// The length of the instant that `text` begins with, if it is before the year after next.
fn instant(text: &str) -> Option<usize> {
    const FORM: &str = "0000-00-00T00:00:00.000Z";
    let candidate = text.get(..FORM.len())?;
    let fits = |(byte, form): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
    let is_instant = candidate.bytes().zip(FORM.bytes()).all(fits);
    (is_instant && candidate[..4].parse::<u64>().is_ok_and(|year| year < this_year() + 2)).then_some(FORM.len())
}

#[expect(clippy::disallowed_methods, reason = "a chore compares answers that hold the machine's time")]
fn this_year() -> u64 {
    const YEAR_SECS: u64 = 31_556_952;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    1970 + since.as_secs() / YEAR_SECS
}

/// Ids of the build before, and those that stand for them in the build after.
#[derive(Default)]
struct Pairs {
    after_of: BTreeMap<String, String>,
    before_of: BTreeMap<String, String>,
}

impl Pairs {
    /// Where the texts differ, for a person; `None` if they do not.
    fn difference(&mut self, before: &str, after: &str) -> Option<String> {
        let [before, after] = [before, after].map(words);
        let same = before.iter().zip(&after).take_while(|(before, after)| self.is_pair(before, after)).count();
        if same == before.len() && same == after.len() {
            return None;
        }
        let shown = |words: &[&str]| -> String {
            let before: String = words[..same].concat();
            let skipped = before.chars().count().saturating_sub(SHOWN);
            let before: String = before.chars().skip(skipped).collect();
            let rest: String = words[same..].concat().chars().take(SHOWN).collect();
            format!("{}[here]{}", before.replace('\n', "\\n"), rest.replace('\n', "\\n"))
        };
        Some(format!("- {}\n+ {}", shown(&before), shown(&after)))
    }

    fn is_pair(&mut self, before: &str, after: &str) -> bool {
        let is_random = |word: &str| {
            word.len() >= RANDOM_MIN && word.contains(|c: char| c.is_ascii_digit() || c.is_ascii_uppercase())
        };
        if before == after || !is_random(before) || !is_random(after) {
            return before == after;
        }
        let known_after = self.after_of.entry(before.to_owned()).or_insert_with(|| after.to_owned());
        let known_before = self.before_of.entry(after.to_owned()).or_insert_with(|| before.to_owned());
        known_after == after && known_before == before
    }
}

/// Words as ids are written, and single characters between them.
fn words(text: &str) -> Vec<&str> {
    let is_inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = if is_inner(first) { rest.find(|c| !is_inner(c)).unwrap_or(rest.len()) } else { first.len_utf8() };
        let (word, after) = rest.split_at(end);
        words.push(word);
        rest = after;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_stand_for_each_other_and_other_words_do_not() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.difference(r#"{"id":"kAbc0123456"}"#, r#"{"id":"kXyz9876543"}"#), None);
        assert_eq!(pairs.difference("/v1/runs/kAbc0123456", "/v1/runs/kXyz9876543"), None);
        assert!(pairs.difference("kAbc0123456", "kOther12345").is_some(), "one id has one partner");
        assert!(pairs.difference("kOther12345", "kXyz9876543").is_some(), "one id has one partner");
        assert!(pairs.difference(r#""code":"invalid_request""#, r#""code":"invalid_schedule""#).is_some());
        assert!(pairs.difference("one two", "one").is_some());
        assert!(pairs.difference("one", "one two").is_some());
    }

    #[test]
    fn moments_are_replaced_and_fixed_instants_stay() {
        let body = |year| format!(r#"{{"next":"{year}-01-02T03:04:05.006Z","duration_ms":12,"secret":"a.b/c"}}"#);
        let expected = r#"{"next":"INSTANT","duration_ms":VALUE,"secret":"VALUE"}"#;
        assert_eq!(without_moments(&body(this_year())), expected);
        assert!(without_moments(&body(this_year() + 2)).contains("-01-02T03:04:05.006Z"));
    }

    #[test]
    fn metrics_keep_names_labels_and_help() {
        assert_eq!(metrics("# HELP a A.\nb{c=\"d\"} 2\na 1\n"), "# HELP a A.\na VALUE\nb{c=\"d\"} VALUE\n");
    }
}
