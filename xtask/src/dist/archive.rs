//! Archives whose bytes depend only on the names and the contents of their files.

use std::path::Path;
use std::process::Command;

use super::Release;
use crate::stage;

/// Creates a tar archive of the files and folders in `folder` that have these names. In the archive, root owns all of
/// these files and folders.
///
/// # Errors
/// Returns an error if `tar` fails.
pub(super) fn create(release: &Release, tar: &Path, folder: &Path, names: &[&str]) -> anyhow::Result<()> {
    let mut command = command(release, tar, folder);
    command.args(["--create", "--owner=0", "--group=0", "--sort=name", "--"]).args(names);
    stage::output_of(&mut command).map(drop)
}

/// Appends an empty folder, with this numeric owner and mode, to a tar archive.
///
/// # Errors
/// Returns an error if `tar` fails.
pub(super) fn append_folder(
    release: &Release,
    tar: &Path,
    folder: &Path,
    name: &str,
    (owner, mode): (u32, &str),
) -> anyhow::Result<()> {
    let mut command = command(release, tar, folder);
    let owners = [format!("--owner={owner}"), format!("--group={owner}"), format!("--mode={mode}")];
    command.args(["--append", "--no-recursion"]).args(owners).args(["--", name]);
    stage::output_of(&mut command).map(drop)
}

fn command(release: &Release, tar: &Path, folder: &Path) -> Command {
    let mut command = Command::new("tar");
    command.args(["--format=ustar", "--numeric-owner", &format!("--mtime=@{}", release.seconds)]);
    command.arg("--file").arg(tar).arg("--directory").arg(folder);
    command
}

/// Compresses a file with `gzip`, which replaces the file and adds `.gz` to its name.
///
/// # Errors
/// Returns an error if `gzip` fails.
pub(super) fn compress(file: &Path) -> anyhow::Result<()> {
    stage::output_of(Command::new("gzip").args(["--no-name", "--best", "--"]).arg(file)).map(drop)
}
