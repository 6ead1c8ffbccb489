//! Command `reveille run export`, which writes the runs of a range to a compressed file.
//!
//! The file consists of gzip members, one for each page of the list. A member contains one line of JSON for each run.
//! The comment in the header of a member identifies the server and the key, and contains the page token of the next
//! page. Programs that read gzip files ignore the comments, and return the lines of all members.
//!
//! Invariants:
//! - An interrupted command leaves complete members, and at most one incomplete member at the end of the file. The
//!   command continues after the last complete member. It neither repeats nor loses a run, because the page token
//!   continues the list at the run after the last one of this member.
//! - The last member of a complete file has a comment without a page token.
//! - The command never changes a file that it did not write, or that it wrote with another server or key.
//! - A file exists only if the server has returned the first page.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use cli_support::console;
use domain::duration;
use flate2::bufread::GzDecoder;
use flate2::{Compression, GzBuilder};
use reveille_client::{Run, RunOrder, RunQuery, Time};
use runtime::Runtime;

use super::list::{Filter, before};
use crate::cli::connect::{Connect, DefaultKey};
use crate::cli::explain::explain;
use crate::cli::schedule::list::instant;
use crate::cli::show;
use crate::progress::Progress;

#[derive(Args, Debug)]
pub(crate) struct Export {
    #[command(flatten)]
    filter: Filter,
    /// Earliest due instant of the runs (RFC 3339)
    #[arg(long, value_name = "INSTANT", value_parser = instant)]
    from: Option<Time>,
    /// End of the range of due instants, exclusive (RFC 3339) [default: now]
    #[arg(long, value_name = "INSTANT", value_parser = instant, requires = "from")]
    to: Option<Time>,
    /// Duration of the range that ends now, instead of --from [default: 24h without --from]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "from")]
    last: Option<Duration>,
    /// File for the runs: lines of JSON, compressed with gzip
    #[arg(long, value_name = "FILE.ndjson.gz")]
    out: PathBuf,
    /// Continue an interrupted export to the same file, with the same filter. The file determines the range
    #[arg(long, conflicts_with_all = ["from", "to", "last"])]
    resume: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Number of runs in one request.
const PAGE: u16 = 1_000;
const LAST_DEFAULT: Duration = Duration::from_secs(24 * 3_600);
/// Start of the comment of each member. The fingerprint of the server and the key, a colon, and the page token of the
/// next page follow.
const COMMENT: &str = "reveille-runs:1:";
/// Number of members after which the command syncs the file.
const SYNC_EVERY: u32 = 64;
/// Number of empty pages after which the command writes a member, so that an interrupted command repeats few requests.
const EMPTY_MAX: u32 = 64;

pub(super) async fn export(runtime: &Runtime, arguments: Export) -> anyhow::Result<()> {
    let client = arguments.connect.client(DefaultKey::Admin)?;
    let source = arguments.connect.fingerprint(DefaultKey::Admin)?;
    let path = &arguments.out;
    let shown = path.display();
    let mut query = RunQuery { order: RunOrder::Oldest, ..arguments.filter.query() };
    let (mut file, mut token, mut exported) = match arguments.resume {
        true => {
            let mut file = OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .with_context(|| format!("cannot open {shown}; to begin an export, omit --resume"))?;
            let found = complete_members(&mut file, &source).with_context(|| format!("cannot read {shown}"))?;
            let Some(last) = found.last else {
                bail!("{shown} contains no complete page of an export; delete it, and begin again without --resume");
            };
            file.set_len(found.end).with_context(|| format!("cannot write to {shown}"))?;
            file.seek(SeekFrom::Start(found.end))?;
            if last.is_empty() {
                return Ok(console::line(&format!("{} runs; the export was already complete", found.lines))?);
            }
            (Some(file), Some(last), found.lines)
        }
        false => {
            let now = Time(runtime.now().as_millis());
            let from = arguments.from.unwrap_or_else(|| before(now, arguments.last.unwrap_or(LAST_DEFAULT)));
            query.from = Some(from);
            query.until = Some(arguments.to.unwrap_or(now));
            (None, None, 0)
        }
    };
    let mut progress = Progress::new(runtime);
    let (mut members, mut empty_pages, mut unreadable) = (0_u32, 0_u32, 0_u64);
    loop {
        let page = client.list_runs_page(&query, PAGE, token.as_deref()).await;
        let page = page.map_err(|error| {
            let can_continue = arguments.resume || members > 0;
            let next = if can_continue { "; continue with --resume" } else { "" };
            explain(&client, &error).context(format!("{exported} runs exported{next}"))
        })?;
        token = page.next_page_token;
        unreadable = unreadable.saturating_add(page.unreadable);
        empty_pages = if page.runs.is_empty() { empty_pages + 1 } else { 0 };
        // A few empty pages within the list need no member. The next member contains the token after them.
        if empty_pages == 0 || empty_pages >= EMPTY_MAX || token.is_none() {
            empty_pages = 0;
            let member = member(&page.runs, &source, token.as_deref().unwrap_or_default())?;
            let file = match &mut file {
                Some(file) => file,
                None => file.insert(create(path)?),
            };
            file.write_all(&member).with_context(|| {
                let can_continue = arguments.resume || members > 0;
                let next = if can_continue { "continue with --resume" } else { "delete it, and begin again" };
                format!("cannot write to {shown}; {next}")
            })?;
            members = members.wrapping_add(1);
            if members.is_multiple_of(SYNC_EVERY) {
                file.sync_data()?;
            }
        }
        exported += page.runs.len() as u64;
        progress.update(|| format!("{exported} runs exported"));
        if token.is_none() {
            break;
        }
    }
    if let Some(file) = file {
        file.sync_all().with_context(|| format!("cannot write to {shown}; continue with --resume"))?;
    }
    drop(progress);
    if unreadable > 0 {
        show::warn_of_unreadable(unreadable);
    }
    Ok(console::line(&format!("{exported} runs"))?)
}

fn create(path: &Path) -> anyhow::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path).with_context(|| {
        let shown = path.display();
        format!("cannot create {shown}; choose another file, or continue an export with --resume")
    })
}

/// Returns the member for a page of runs. `next` is the token of the next page, or empty after the last page.
fn member(runs: &[Run], source: &str, next: &str) -> anyhow::Result<Vec<u8>> {
    ensure!(
        next.bytes().all(|byte| byte.is_ascii_graphic()),
        "the server returned a page token with unexpected characters; report this error"
    );
    let comment = format!("{COMMENT}{source}:{next}");
    let mut encoder = GzBuilder::new().comment(comment).write(Vec::new(), Compression::default());
    for run in runs {
        serde_json::to_writer(&mut encoder, run)?;
        encoder.write_all(b"\n")?;
    }
    Ok(encoder.finish()?)
}

/// Complete members at the start of a file.
#[derive(PartialEq, Eq, Debug, Default)]
struct Members {
    /// Number of bytes of the members.
    end: u64,
    /// Number of lines in the members.
    lines: u64,
    /// Page token in the last member, which is empty at the end of the list. `None` if there is no member.
    last: Option<String>,
}

/// Reads the members of a file up to the end of the file or the first incomplete or damaged member.
///
/// # Errors
/// Returns an error if the file cannot be read, if another program wrote it, or if its members have another `source`.
fn complete_members(file: &mut File, source: &str) -> anyhow::Result<Members> {
    file.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::new(file);
    let mut members = Members::default();
    loop {
        let mut decoder = GzDecoder::new(&mut reader);
        let lines = match count_lines(&mut decoder) {
            Ok(lines) => lines,
            Err(error) if is_about_content(error.kind()) => return Ok(members),
            // The rest of the file may be complete, so the caller must not cut it off.
            Err(error) => return Err(error.into()),
        };
        let comment = decoder.header().and_then(|header| header.comment());
        let comment = comment.and_then(|comment| std::str::from_utf8(comment).ok());
        let rest = comment.and_then(|comment| comment.strip_prefix(COMMENT));
        let Some((of, next)) = rest.and_then(|rest| rest.split_once(':')) else {
            // The decoder reads nothing at the end of the file.
            let is_end = decoder.header().is_none() && members.last.is_some();
            ensure!(is_end, "the file is no export of runs; choose another file");
            return Ok(members);
        };
        ensure!(
            of == source,
            "the file was exported from another server or with another key; use the URL and the key of the first call"
        );
        let next = next.to_owned();
        members.end = reader.stream_position()?;
        members.lines += lines;
        members.last = Some(next);
    }
}

/// Returns true if an error of this kind is about the bytes of a member, and not about the read of the file.
fn is_about_content(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::UnexpectedEof | io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData)
}

/// Reads a member to its end, and checks its checksum. Returns the number of its lines.
fn count_lines(decoder: &mut impl io::Read) -> io::Result<u64> {
    let (mut lines, mut buffer) = (0, vec![0; 64 * 1024]);
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) => return Ok(lines),
            Ok(len) => lines += buffer[..len].iter().filter(|byte| **byte == b'\n').count() as u64,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::MultiGzDecoder;

    use super::*;

    const SOURCE: &str = "0123456789abcdef";

    fn run(number: usize) -> Run {
        let json = format!(
            r#"{{"id":"run-{number}","state":"succeeded","scheduled_at":"2026-03-29T01:00:00Z","revision":0,"replay":0,
                "attempts":[]}}"#
        );
        serde_json::from_str(&json).unwrap()
    }

    /// Returns a file with two members of an export: two runs and the token `next`, then one run at the end of the
    /// list.
    fn two_members() -> (Vec<u8>, usize) {
        let first = member(&[run(1), run(2)], SOURCE, "next").unwrap();
        let second = member(&[run(3)], SOURCE, "").unwrap();
        let len = first.len();
        ([first, second].concat(), len)
    }

    fn members_of(bytes: &[u8]) -> anyhow::Result<Members> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        complete_members(&mut file, SOURCE)
    }

    #[test]
    fn file_cut_at_any_byte_ends_with_its_last_complete_member() {
        let (bytes, first) = two_members();
        let one = Members { end: first as u64, lines: 2, last: Some("next".to_owned()) };
        for len in first..bytes.len() {
            assert_eq!(members_of(&bytes[..len]).unwrap(), one, "{len} bytes");
        }
        let whole = Members { end: bytes.len() as u64, lines: 3, last: Some(String::new()) };
        assert_eq!(members_of(&bytes).unwrap(), whole);
        for len in 1..first {
            assert_eq!(members_of(&bytes[..len]).unwrap(), Members::default(), "{len} bytes");
        }
    }

    #[test]
    fn damaged_member_ends_the_complete_members() {
        let (mut bytes, first) = two_members();
        let checksum = bytes.len() - 8;
        bytes[checksum] ^= 1;
        assert_eq!(members_of(&bytes).unwrap().end, first as u64);
    }

    #[test]
    fn file_of_another_program_is_rejected() {
        let mut encoder = GzBuilder::new().write(Vec::new(), Compression::default());
        encoder.write_all(b"text\n").unwrap();
        assert!(members_of(&encoder.finish().unwrap()).is_err());
    }

    #[test]
    fn file_of_another_server_is_rejected() {
        let (bytes, _) = two_members();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&bytes).unwrap();
        let error = complete_members(&mut file, "fedcba9876543210").unwrap_err();
        assert!(error.to_string().contains("another server"), "{error}");
    }

    #[test]
    fn failed_read_ends_no_members() {
        let mut folder = File::open(tempfile::tempdir().unwrap().path()).unwrap();
        assert!(complete_members(&mut folder, SOURCE).is_err(), "a folder has no bytes");
    }

    #[test]
    fn empty_member_continues_the_list() {
        let bytes = [member(&[run(1)], SOURCE, "a").unwrap(), member(&[], SOURCE, "b").unwrap()].concat();
        let whole = Members { end: bytes.len() as u64, lines: 1, last: Some("b".to_owned()) };
        assert_eq!(members_of(&bytes).unwrap(), whole);
    }

    #[test]
    fn any_gzip_program_reads_the_lines_of_all_members() {
        let (bytes, _) = two_members();
        let mut text = String::new();
        MultiGzDecoder::new(&bytes[..]).read_to_string(&mut text).unwrap();
        let ids: Vec<String> = text.lines().map(|line| serde_json::from_str::<Run>(line).unwrap().id).collect();
        assert_eq!(ids, ["run-1", "run-2", "run-3"]);
    }
}
