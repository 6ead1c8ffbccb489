//! What the documents tell people to type, typed: each document's blocks of shell, in order, in a folder of its own, against real
//! servers.
//!
//! A block (indented, or fenced) is shell, but for what begins with `{` at its start or after a blank line, which is an answer. What a reader need not see stands before it in
//! a comment: `<!-- run: COMMAND -->` prepares what a reader has anyway; `<!-- sql -->` and `<!-- toml -->` say that the next block is
//! for the database, or a configuration; `<!-- not run: REASON -->` leaves it out. A block that is added is run without another word.
//!
//! Always true here: the script that runs has each command on the line on which the document has it, so that errors name that.

use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::receiver::Receiver;
use crate::server::BINARY;

/// Goes before each script. What fails in a function fails where it is called, so the trap is to hear of it there alone.
/// `serve` goes on in the background, as in another terminal; curl fails where the answer is an error.
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
        "xtask test") ;; # which runs this
        *) echo "only cargo run and cargo xtask test are known here" >&2; return 1 ;;
    esac
}
curl() { command curl --fail-with-body --max-time 30 "$@" || return; }
. "$SCRIPT"
"#;

/// What stands in a document for what only its reader knows.
type Meant<'a> = &'a [(&'a str, String)];

/// Runs what `document` (of this name) says; what failed, a line each.
fn failures(name: &str, document: &str, meant: Meant<'_>) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut script = script(name, document).unwrap_or_else(|error| panic!("{error}"));
    for (said, meant) in meant {
        assert!(script.contains(said), "{name} does not say {said} any more");
        script = script.replace(said, meant);
    }
    std::fs::write(path("script"), script).unwrap();
    std::fs::write(path("failed"), "").unwrap();
    std::fs::create_dir(path("here")).unwrap();
    let programs = Path::new(BINARY).parent().expect("it is in a folder").display();
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
    // Servers in the background must not hold the output open.
    let output = std::fs::File::create(path("output")).unwrap();
    command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
    let status = command.status().expect("bash is there");
    let mut failed = String::new();
    for told in std::fs::read_to_string(path("failed")).unwrap().lines() {
        let (number, code) = told.split_once(' ').expect("a line, and with what it ended");
        let line = number.parse::<usize>().ok().and_then(|number| document.lines().nth(number.checked_sub(1)?));
        writeln!(failed, "{name}:{number}: ended with {code}: {}", line.unwrap_or_default().trim()).unwrap();
    }
    let said = std::fs::read_to_string(path("output")).unwrap();
    // A mistake of grammar calls no trap.
    if !path("ended").exists() {
        writeln!(failed, "{name}: it ends before its end").unwrap();
    }
    match failed.is_empty() {
        true => failed,
        false => format!("{failed}\nbash ended with {status}; it said\n{said}"),
    }
}

/// The document's commands, each on the line that it has there.
fn script(name: &str, document: &str) -> Result<String, String> {
    let mut script = String::new();
    let mut lines = document.lines().zip(1..).peekable();
    let mut next_is = Is::Shell;
    let mut commands = 0;
    while let Some((line, number)) = lines.next() {
        if let Some(comment) = line.strip_prefix("<!-- ").and_then(|rest| rest.strip_suffix(" -->")) {
            let command = match comment.split_once(": ") {
                Some(("run", command)) => command,
                Some(("not run", _)) => {
                    next_is = Is::LeftOut;
                    ""
                }
                _ => {
                    next_is = Is::Input;
                    match comment {
                        "sql" => r#"psql --quiet --set ON_ERROR_STOP=1 "$REVEILLE_STORE" << 'END'"#,
                        "toml" => "reveille serve --print-config --config /dev/stdin << 'END'",
                        _ => return Err(format!("{name}:{number}: `{comment}` says nothing of what follows")),
                    }
                }
            };
            writeln!(script, "{command}").expect("a string takes everything");
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
        let is = std::mem::replace(&mut next_is, Is::Shell);
        let (end, mut is_answer, mut before) = (block.len() - 1, false, "");
        for (at, line) in block.into_iter().enumerate() {
            if before.is_empty() && is == Is::Shell {
                is_answer = line.starts_with('{');
            }
            before = line;
            let is_said = is != Is::LeftOut && !is_answer;
            commands += usize::from(is_said && !line.is_empty());
            // A block ends with a blank line, or a fence.
            let line = if is == Is::Input && at == end && !is_fenced { "END" } else { line };
            writeln!(script, "{}", if is_said { line } else { "" }).expect("a string takes everything");
        }
        if is_fenced && lines.next().is_some() {
            script.push_str(if is == Is::Input { "END\n" } else { "\n" });
        }
    }
    let expected = document.lines().filter(|line| line.starts_with("    ") || line.starts_with("```")).count();
    if expected > 0 && commands == 0 {
        return Err(format!("{name}: none of its blocks is run"));
    }
    script.push_str(": > \"$FOLDER/ended\"\n");
    Ok(script)
}

/// A block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Is {
    Shell,
    /// For the command in the comment before it.
    Input,
    LeftOut,
}

/// An address that nobody listens on, and that no connection gets by itself.
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
fn check(name: &str, document: &str, meant: Meant<'_>) {
    let failed = failures(name, document, meant);
    assert!(failed.is_empty(), "{failed}");
}

/// Of a document that is about a server on this machine and the receiver beside it.
#[track_caller]
fn check_with_server(name: &str, document: &str, also_meant: Meant<'_>) {
    let receiver = Receiver::start();
    let (address, target) = (free_address(), receiver.url());
    let target = target.trim_start_matches("http://").trim_end_matches("/hook").to_owned();
    let listen = format!("<!-- run: export REVEILLE_LISTEN={address} -->");
    // On the first line, which is a heading.
    let document = document.split_once('\n').map(|(_, rest)| format!("{listen}\n{rest}")).expect("it has lines");
    let url = document.contains("127.0.0.1:8080").then_some(("127.0.0.1:8080", address));
    let meant: Vec<_> = url.into_iter().chain([("127.0.0.1:9000", target)]).chain(also_meant.iter().cloned()).collect();
    check(name, &document, &meant);
}

#[test]
fn every_line_of_the_readme_runs() {
    check_with_server("README.md", include_str!("../../../../README.md"), &[]);
}

#[test]
fn every_line_about_the_api_runs() {
    check_with_server("docs/http-api.md", include_str!("../../../../docs/http-api.md"), &[]);
}

#[test]
fn every_line_about_the_commands_runs() {
    let zookeeper = ("zookeeper://zk1:2181,zk2:2181/shop", crate::recipes::zookeeper());
    check_with_server("docs/cli.md", include_str!("../../../../docs/cli.md"), &[zookeeper]);
}

#[test]
fn every_line_about_the_examples_runs() {
    check("docs/examples.md", include_str!("../../../../docs/examples.md"), &[]);
}

#[test]
fn every_line_about_the_guarantees_runs() {
    check("docs/guarantees.md", include_str!("../../../../docs/guarantees.md"), &[]);
}

#[test]
fn every_line_about_operating_runs() {
    let store = test_servers::postgres::shared().create_database().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let document = include_str!("../../../../docs/operating.md");
    let [certificate, key] = [".pem", ".key"].map(|end| folder.path().join(format!("server{end}")));
    let rcgen::CertifiedKey { cert, signing_key } =
        rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(certificate, cert.pem()).unwrap();
    std::fs::write(key, signing_key.serialize_pem()).unwrap();
    let meant = [
        ("10.0.0.1:8443", free_address()),
        ("/etc/reveille/server", folder.path().join("server").display().to_string()),
        ("postgres://reveille:PASSWORD@db.example.com/reveille?sslmode=verify-full", store),
        ("10.0.0.1:8080", free_address()),
        ("10.0.0.1:7070", "127.0.0.1:0".to_owned()),
        ("127.0.0.1:8080", free_address()),
        ("/var/lib/reveille", folder.path().join("data").display().to_string()),
    ];
    check("docs/operating.md", document, &meant);
}

#[test]
fn a_line_that_fails_is_told_with_its_place_and_what_follows_is_run() {
    let document = "# A\n\nText:\n\n    true\n    export A=$(cat nowhere)\n\n<!-- not run: an example -->\n\n    rm -rf all\n\n\
                    ```sh\nfalse ||\n  curl -s file:///nowhere\n```\n\n    {\"an\":\n      \"answer\"}\n\n<!-- run: B=1 -->\n\n    \
                    test \"$B\" = 2\n\n<!-- toml -->\n\n    drain = \"1s\"\n\n<!-- toml -->\n\n    drian = 1\n\ntext\n";
    let failed = failures("docs/a.md", document, &[]);
    let places: Vec<&str> = failed.lines().take_while(|line| !line.is_empty()).collect();
    let begins = [
        "docs/a.md:6: ended with 1: export A=$(cat nowhere)",
        "docs/a.md:14: ended with 37: curl",
        "docs/a.md:22: ended with 1: test",
        "docs/a.md:28: ended with 2: <!-- toml -->",
    ];
    assert_eq!(places.len(), begins.len(), "{failed}");
    for (place, begin) in places.into_iter().zip(begins) {
        assert!(place.starts_with(begin), "{place} is not {begin}");
    }
    assert!(failed.contains("nothing") || failed.contains(":2: there is no option"), "{failed}");
}

#[test]
fn a_document_whose_comments_say_nothing_or_that_runs_nothing_is_refused() {
    assert!(script("a", "<!-- mistaken -->\n\n    true\n").is_err());
    assert!(failures("a", "    echo 'a\n", &[]).contains("a: it ends before"));
    assert!(script("a", "<!-- not run: all of it -->\n\n    true\n").is_err());
    assert_eq!(
        script("a", "text\n\n    if true\n    then\n\n    false; fi\n\ntext").unwrap(),
        "\n\nif true\nthen\n\nfalse; fi\n\n\n: > \"$FOLDER/ended\"\n"
    );
}
