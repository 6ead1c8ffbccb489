//! Comparison of two builds of the binary. It compares their help texts and their responses to the requests in
//! `compare/requests.txt`.
//!
//! The texts must agree byte for byte, except for the following expected differences:
//!
//! - the header `date`, a `content-length` that equals the length of the body, and the `content-length` of metrics;
//! - instants before the end of next year, durations of attempts, and new secrets;
//! - words that may be ids: words of at least [`RANDOM_MIN`] characters with a digit or a capital letter. Each id of
//!   one build must correspond to one id of the other build;
//! - the order of the lines of metrics, and the values of samples. The names, labels and help texts of metrics must
//!   agree.

mod session;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;

use session::Response;

/// Minimum number of characters of a word that may be an id.
const RANDOM_MIN: usize = 10;
/// Number of characters that the output shows before and after a difference.
const SHOWN: usize = 160;

#[derive(Args, Debug)]
pub(crate) struct CompareArguments {
    /// Binary of the build before a change
    #[arg(long)]
    before: PathBuf,
    /// Binary of the build after the change
    #[arg(long)]
    after: PathBuf,
}

/// # Errors
/// Returns an error if a binary does not start, or if a request fails.
pub(crate) fn run(arguments: &CompareArguments) -> anyhow::Result<ExitCode> {
    let mut pairs = Pairs::default();
    let mut differences = 0;
    let mut differs = |place: &str, difference: Option<String>| {
        if let Some(difference) = difference {
            eprintln!("== {place}\n{difference}\n");
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
    let before = session::responses(&arguments.before, &requests)
        .context("cannot collect the responses of the build in --before")?;
    let after = session::responses(&arguments.after, &requests)
        .context("cannot collect the responses of the build in --after")?;
    for ((request, before), after) in requests.iter().zip(&before).zip(&after) {
        let place = format!("{} {} (line {} of the requests)", request.method, request.path, request.line);
        differs(&place, pairs.difference(&comparable(before), &comparable(after)));
    }
    eprintln!(
        "compared {} commands and {} requests, and found {differences} differences",
        commands.len(),
        requests.len()
    );
    Ok(if differences == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Returns the help texts of the binary and of each of its commands. The key of each text is the command that prints
/// the text.
fn help(binary: &Path) -> anyhow::Result<BTreeMap<String, String>> {
    let mut texts = BTreeMap::new();
    let mut open = vec![vec!["--version".to_owned()], Vec::new()];
    while let Some(words) = open.pop() {
        for flag in ["-h", "--help"] {
            // Both builds run under the same program name, because the help text contains this name.
            let output = Command::new(binary).arg0("reveille").args(&words).arg(flag).env("COLUMNS", "100").output();
            let output = output.with_context(|| format!("cannot start {}", binary.display()))?;
            ensure!(output.status.success(), "{words:?} has no help: {}", String::from_utf8_lossy(&output.stderr));
            let text = String::from_utf8(output.stdout).context("the help text of a command is not UTF-8")?;
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

/// Returns the response as text, without the values that are expected to differ. The text still contains ids.
fn comparable(response: &Response) -> String {
    let is_metrics =
        response.headers.iter().any(|(name, value)| name == "content-type" && value.contains("openmetrics"));
    let mut text = format!("{}\n", response.status);
    for (name, value) in &response.headers {
        if name == "content-length" && (is_metrics || *value == response.body.len().to_string()) {
            text.push_str("content-length: the body's\n");
        } else if name != "date" {
            text.push_str(&format!("{name}: {value}\n"));
        }
    }
    let body = if is_metrics { metrics(&response.body) } else { without_volatile_values(&response.body) };
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

/// Replaces instants before the end of next year, durations and secrets with fixed words.
fn without_volatile_values(body: &str) -> String {
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

/// Returns the length of the instant at the start of `text`. Returns `None` if `text` does not start with an instant
/// before the end of next year.
fn instant(text: &str) -> Option<usize> {
    const FORM: &str = "0000-00-00T00:00:00.000Z";
    let candidate = text.get(..FORM.len())?;
    let fits = |(byte, form): (u8, u8)| if form == b'0' { byte.is_ascii_digit() } else { byte == form };
    let is_instant = candidate.bytes().zip(FORM.bytes()).all(fits);
    (is_instant && candidate[..4].parse::<u64>().is_ok_and(|year| year < this_year() + 2)).then_some(FORM.len())
}

#[expect(clippy::disallowed_methods, reason = "the compared responses contain the machine's time")]
fn this_year() -> u64 {
    const YEAR_SECS: u64 = 31_556_952;
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    1970 + since.as_secs() / YEAR_SECS
}

/// Ids of one build, and the corresponding ids of the other build.
#[derive(Default)]
struct Pairs {
    after_of: BTreeMap<String, String>,
    before_of: BTreeMap<String, String>,
}

impl Pairs {
    /// Returns the first difference of the texts in readable form; `None` if they are equal.
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

/// Splits a text into its words and the single characters between the words. Each word may be an id.
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
    fn comparison_pairs_each_id_with_one_id_of_the_other_build() {
        let mut pairs = Pairs::default();
        assert_eq!(pairs.difference(r#"{"id":"kAbc0123456"}"#, r#"{"id":"kXyz9876543"}"#), None);
        assert_eq!(pairs.difference("/v1/runs/kAbc0123456", "/v1/runs/kXyz9876543"), None);
        assert!(pairs.difference("kAbc0123456", "kOther12345").is_some(), "an id corresponds to only one id");
        assert!(pairs.difference("kOther12345", "kXyz9876543").is_some(), "an id corresponds to only one id");
        assert!(pairs.difference(r#""code":"invalid_request""#, r#""code":"invalid_schedule""#).is_some());
        assert!(pairs.difference("one two", "one").is_some());
        assert!(pairs.difference("one", "one two").is_some());
    }

    #[test]
    fn normalization_replaces_instants_up_to_the_next_year() {
        let body = |year| format!(r#"{{"next":"{year}-01-02T03:04:05.006Z","duration_ms":12,"secret":"a.b/c"}}"#);
        let expected = r#"{"next":"INSTANT","duration_ms":VALUE,"secret":"VALUE"}"#;
        assert_eq!(without_volatile_values(&body(this_year())), expected);
        assert!(without_volatile_values(&body(this_year() + 2)).contains("-01-02T03:04:05.006Z"));
    }

    #[test]
    fn comparison_of_metrics_ignores_their_values() {
        assert_eq!(metrics("# HELP a A.\nb{c=\"d\"} 2\na 1\n"), "# HELP a A.\na VALUE\nb{c=\"d\"} VALUE\n");
    }
}
