//! Tests that execute the commands in the documents. A test runs all shell blocks of a document in order, in an empty
//! folder, with real servers.
//!
//! An indented or fenced block contains shell commands. Text that begins with `{`, at the start of a block or after a
//! blank line, is a response, and the test does not run it. Comments before a block control the test. `<!-- run:
//! COMMAND -->` runs a command that readers do not need to see. `<!-- sql -->` and `<!-- toml -->` mark the next block
//! as input for the database or as a configuration. `<!-- not run: REASON -->` skips the next block. The test runs
//! every block that these rules do not exclude.
//!
//! Invariant: each command is on the same line of the script as in the document, so that errors name the line of the
//! document.
//!
//! docs/decisions/0088-run-the-documents-commands-with-bash.md gives the reasons for the design.

use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::receiver::{Hit, Receiver};
use crate::server::BINARY;

/// Shell code that precedes each script. If a command in one of its functions fails, the function ends with `return`,
/// so that the error trap of bash records the failure only at the line of the caller. `serve` runs in the background,
/// as if in another terminal. `curl` fails if the response is an error.
const SHELL: &str = r#"
set -uEo pipefail
trap 'echo "$LINENO $?" >> "$FAILED"' ERR
servers=0
reveille() {
    case "$*" in
        *--print-config*) command reveille "$@" || return ;;
        serve*) serve "$@" || return ;;
        demo) command reveille demo --seconds 1 || return ;;
        *) command reveille "$@" || return ;;
    esac
}
serve() {
    local log=$FOLDER/serve-$((servers += 1)).log
    command reveille --ends-with-parent "$@" > "$log" 2>&1 &
    until grep -q ' ready ' "$log"; do
        if ! kill -0 $!; then cat "$log" >&2; return 1; fi
        sleep 0.02
    done
}
cargo() {
    case "$*" in
        "run --release -- "*) reveille "${@:4}" || return ;;
        "run --example "*) "$PROGRAMS/examples/$3" || return ;;
        "xtask test") ;; # skipped, because it runs this test
        *) echo "unsupported cargo command: $*" >&2; return 1 ;;
    esac
}
curl() { command curl --fail-with-body --max-time 30 "$@" || return; }
. "$SCRIPT"
"#;

/// Texts of a document, for example addresses, with their replacements in the test.
type Replacements<'a> = &'a [(&'a str, String)];

/// Runs the commands of the document with this name and text. Returns one line for each failure.
fn failures(name: &str, document: &str, replacements: Replacements<'_>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut script = script(name, document).unwrap_or_else(|error| panic!("{error}"));
    for (text, replacement) in replacements {
        assert!(script.contains(text), "{name} does not contain {text}");
        script = script.replace(text, replacement);
    }
    std::fs::write(path("script"), script).unwrap();
    std::fs::write(path("failed"), "").unwrap();
    std::fs::create_dir(path("here")).unwrap();
    let programs = Path::new(BINARY).parent().expect("the binary is in a folder").display();
    let mut command = Command::new("bash");
    for (variable, _) in std::env::vars_os() {
        if variable.to_string_lossy().starts_with("REVEILLE_") {
            command.env_remove(variable);
        }
    }
    command.env("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap_or_default()));
    command.env("PROGRAMS", programs.to_string()).env_remove("DATABASE_URL");
    command.env("SCRIPT", path("script")).env("FAILED", path("failed")).env("FOLDER", folder.path());
    command.env("NO_COLOR", "1").env_remove("RUST_LOG").env("REVEILLE_NO_RECEIVER", "true");
    command.args(["--noprofile", "--norc", "-c", SHELL]).current_dir(path("here"));
    // The output goes to a file, because a server in the background would hold a pipe open.
    let output = std::fs::File::create(path("output")).unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let status = command.status().expect("bash is installed");
    let mut failed = String::new();
    for failure in std::fs::read_to_string(path("failed")).unwrap().lines() {
        let (number, code) = failure.split_once(' ').expect("the trap writes a line number and an exit code");
        let line = number.parse::<usize>().ok().and_then(|number| document.lines().nth(number.checked_sub(1)?));
        writeln!(failed, "{name}:{number}: exit code {code}: {}", line.unwrap_or_default().trim()).unwrap();
    }
    let message = std::fs::read_to_string(path("output")).unwrap();
    // The error trap of bash does not run for a syntax error, so the test also checks whether the script reached its
    // end.
    if !path("ended").exists() {
        writeln!(failed, "{name}: the script stops before its end").unwrap();
    }
    match failed.is_empty() {
        true => failed,
        false => format!("{failed}\nbash ended with {status} and the output\n{message}"),
    }
}

/// Returns a script with the commands of the document. Each command is on the same line as in the document.
fn script(name: &str, document: &str) -> Result<String, String> {
    let mut script = String::new();
    let mut lines = document.lines().zip(1..).peekable();
    let mut next_kind = Kind::Shell;
    let mut commands = 0;
    while let Some((line, number)) = lines.next() {
        if let Some(comment) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            let command = match comment.split_once(": ") {
                Some(("run", command)) => command,
                Some(("not run", _)) => {
                    next_kind = Kind::Skipped;
                    ""
                }
                _ => {
                    next_kind = Kind::Input;
                    match comment {
                        "sql" => r#"psql --quiet --set ON_ERROR_STOP=1 "$REVEILLE_STORE" << 'END'"#,
                        "toml" => "reveille serve --print-config --config /dev/stdin << 'END'",
                        _ => return Err(format!("{name}:{number}: unknown comment `{comment}`")),
                    }
                }
            };
            writeln!(script, "{command}").expect("writing to a string never fails");
            continue;
        }
        let is_fenced = line.starts_with("```");
        if !is_fenced && !line.starts_with("    ") {
            script.push('\n');
            continue;
        }
        let mut block = vec![if is_fenced { "" } else { &line[4..] }];
        while let Some((line, _)) = lines.next_if(|(line, _)| match is_fenced {
            true => !line.starts_with("```"),
            false => line.is_empty() || line.starts_with("    "),
        }) {
            block.push(if is_fenced { line } else { line.strip_prefix("    ").unwrap_or(line) });
        }
        let kind = std::mem::replace(&mut next_kind, Kind::Shell);
        let (end, mut is_response, mut before) = (block.len() - 1, false, "");
        for (at, line) in block.into_iter().enumerate() {
            if before.is_empty() && kind == Kind::Shell {
                is_response = line.starts_with('{');
            }
            before = line;
            let is_run = kind != Kind::Skipped && !is_response;
            commands += usize::from(is_run && !line.is_empty());
            // The test replaces the blank line at the end of an indented block with the line `END`, which ends the
            // input of the command.
            let line = if kind == Kind::Input && at == end && !is_fenced { "END" } else { line };
            writeln!(script, "{}", if is_run { line } else { "" }).expect("writing to a string never fails");
        }
        if is_fenced && lines.next().is_some() {
            script.push_str(if kind == Kind::Input { "END\n" } else { "\n" });
        }
    }
    let expected = document.lines().filter(|line| line.starts_with("    ") || line.starts_with("```")).count();
    if expected > 0 && commands == 0 {
        return Err(format!("{name}: no block of the document is run"));
    }
    script.push_str(": > \"$FOLDER/ended\"\n");
    Ok(script)
}

/// Kind of an indented or fenced block in a document.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Shell,
    /// Block that is the input of the command in the comment before the block.
    Input,
    Skipped,
}

/// Returns an address on which no process listens. Its port is outside the range of ports that the kernel assigns to
/// outgoing connections.
fn free_address() -> String {
    loop {
        let port = 10_000 + RandomState::new().build_hasher().finish() % 10_000;
        let address = format!("127.0.0.1:{port}");
        if TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

#[track_caller]
fn check(name: &str, document: &str, replacements: Replacements<'_>) {
    let failed = failures(name, document, replacements);
    assert!(failed.is_empty(), "{failed}");
}

/// Tests a document about a server on this machine and its built-in receiver. A receiver of the test replaces the
/// built-in receiver. Returns the callbacks that arrived at this receiver.
#[track_caller]
fn check_with_server(name: &str, document: &str, more: Replacements<'_>) -> Vec<Hit> {
    let receiver = Receiver::start();
    let (address, target) = (free_address(), receiver.url());
    let target = target.trim_start_matches("http://").trim_end_matches("/hook").to_owned();
    let listen = format!("<!-- run: export REVEILLE_LISTEN={address} -->");
    // The comment that sets the listen address replaces the heading in the first line of the document, so that all
    // other lines keep their numbers.
    let document = document.split_once('\n').map(|(_, rest)| format!("{listen}\n{rest}"));
    let document = document.expect("the document has several lines");
    let url = document.contains("127.0.0.1:8080").then_some(("127.0.0.1:8080", address));
    let replacements: Vec<_> =
        url.into_iter().chain([("127.0.0.1:9000", target)]).chain(more.iter().cloned()).collect();
    check(name, &document, &replacements);
    receiver.hits()
}

#[test]
fn callbacks_of_the_readme_commands_have_valid_signatures() {
    let folder = tempfile::tempdir().unwrap();
    let secret = folder.path().join("secret");
    let document = include_str!("../../../../README.md");
    let document = format!("{document}\n<!-- run: cp data/signing.secret {} -->\n", secret.display());
    let callbacks = check_with_server("README.md", &document, &[]);
    assert!(!callbacks.is_empty());
    let webhook = standardwebhooks::Webhook::new(std::fs::read_to_string(secret).unwrap().trim()).unwrap();
    for callback in callbacks {
        // The body must not be empty, because the Python library of Standard Webhooks rejects an empty
        // body.
        assert!(!callback.bytes.is_empty(), "{callback:?}");
        let headers = callback.headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
        webhook.verify(&callback.bytes, &headers.collect()).unwrap();
    }
}

#[test]
fn all_commands_in_the_cron_document_succeed() {
    check_with_server("docs/cron.md", include_str!("../../../../docs/cron.md"), &[]);
}

#[test]
fn all_commands_in_the_http_api_document_succeed() {
    check_with_server("docs/http-api.md", include_str!("../../../../docs/http-api.md"), &[]);
}

#[cfg(feature = "kafka")]
#[test]
fn all_commands_in_the_cli_document_succeed() {
    let zookeeper = ("zookeeper://zk1:2181,zk2:2181/shop", crate::recipes::zookeeper());
    let kafka = ("kafka://kafka1:9092,kafka2:9092", crate::bus::kafka());
    check_with_server("docs/cli.md", include_str!("../../../../docs/cli.md"), &[zookeeper, kafka]);
}

#[test]
fn all_commands_in_the_examples_document_succeed() {
    check("docs/examples.md", include_str!("../../../../docs/examples.md"), &[]);
}

#[test]
fn all_commands_in_the_guarantees_document_succeed() {
    check("docs/guarantees.md", include_str!("../../../../docs/guarantees.md"), &[]);
}

#[test]
fn all_commands_in_the_operating_document_succeed() {
    let store = test_servers::postgres::shared().create_database().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let document = include_str!("../../../../docs/operating.md");
    let [certificate, key] = [".pem", ".key"].map(|end| folder.path().join(format!("server{end}")));
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(certificate, cert.pem()).unwrap();
    std::fs::write(key, signing_key.serialize_pem()).unwrap();
    let replacements = [
        ("10.0.0.1:8443", free_address()),
        ("/etc/reveille/server", folder.path().join("server").display().to_string()),
        ("postgres://reveille:PASSWORD@db.example.com/reveille?sslmode=verify-full", store),
        ("10.0.0.1:8080", free_address()),
        ("10.0.0.1:7070", "127.0.0.1:0".to_owned()),
        ("127.0.0.1:8080", free_address()),
        ("/var/lib/reveille", folder.path().join("data").display().to_string()),
    ];
    check("docs/operating.md", document, &replacements);
}

#[test]
fn document_test_reports_a_failure_and_runs_later_commands() {
    let document = "# A\n\nText:\n\n    true\n    export A=$(cat nowhere)\n\n<!-- not run: an example -->\n\n    rm -rf all\n\n\
                    ```sh\nfalse ||\n  curl -s file:///nowhere\n```\n\n    {\"an\":\n      \"answer\"}\n\n<!-- run: B=1 -->\n\n    \
                    test \"$B\" = 2\n\n<!-- toml -->\n\n    drain = \"1s\"\n\n<!-- toml -->\n\n    drian = 1\n\ntext\n";
    let failed = failures("docs/a.md", document, &[]);
    let places: Vec<&str> = failed.lines().take_while(|line| !line.is_empty()).collect();
    let begins = [
        "docs/a.md:6: exit code 1: export A=$(cat nowhere)",
        "docs/a.md:14: exit code 37: curl",
        "docs/a.md:22: exit code 1: test",
        "docs/a.md:28: exit code 2: <!-- toml -->",
    ];
    assert_eq!(places.len(), begins.len(), "{failed}");
    for (place, begin) in places.into_iter().zip(begins) {
        assert!(place.starts_with(begin), "{place} is not {begin}");
    }
    assert!(failed.contains("nothing") || failed.contains(":2: unknown option"), "{failed}");
}

#[test]
fn document_test_rejects_documents_that_it_cannot_run() {
    assert!(script("a", "<!-- mistaken -->\n\n    true\n").is_err());
    assert!(failures("a", "    echo 'a\n", &[]).contains("a: the script stops before"));
    assert!(script("a", "<!-- not run: all of it -->\n\n    true\n").is_err());
    assert_eq!(
        script("a", "text\n\n    if true\n    then\n\n    false; fi\n\ntext").unwrap(),
        "\n\nif true\nthen\n\nfalse; fi\n\n\n: > \"$FOLDER/ended\"\n"
    );
}
