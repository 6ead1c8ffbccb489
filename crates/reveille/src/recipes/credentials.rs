//! Command `credentials`, which creates a file with credentials for the nodes of a group.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use clap::Args;
use cli_support::console;
use runtime::Runtime;

#[derive(Args, Debug)]
pub(crate) struct Arguments {
    /// File to create; only its owner can read it
    file: PathBuf,
    /// Name of the credentials, which the access lists of nodes show; without colons and white space
    #[arg(long, default_value = "reveille")]
    name: String,
}

/// Creates the file with one line of random credentials. Never changes an existing file.
pub(super) fn execute(runtime: &Runtime, Arguments { file, name }: &Arguments) -> anyhow::Result<()> {
    let is_name = !name.is_empty() && !name.contains(|c: char| c == ':' || c.is_whitespace() || c.is_control());
    ensure!(is_name, "--name: a name of credentials has no colon and no white space");
    let secret = [runtime.random_u128(), runtime.random_u128()].map(u128::to_be_bytes).concat();
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file);
    let mut created = match opened {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} exists; groups may use its credentials, so this command does not change it", file.display())
        }
        opened => opened.with_context(|| format!("cannot create {}", file.display()))?,
    };
    let written =
        writeln!(created, "{name}:{}", BASE64_URL_SAFE_NO_PAD.encode(secret)).and_then(|()| created.sync_all());
    if let Err(error) = written {
        // Without its line, the file is useless, and the next call would not replace it.
        let _cannot_be_removed = std::fs::remove_file(file);
        return Err(error).with_context(|| format!("cannot write {}", file.display()));
    }
    let text =
        format!("created {}: copy it to every host of the group, and pass it with --credentials", file.display());
    Ok(console::line(&text)?)
}
