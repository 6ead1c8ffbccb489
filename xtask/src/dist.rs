//! `cargo xtask dist`: packages of the release binary for Debian 12. It writes a tarball, a Debian package, an image for
//! container engines, and their checksums to `target/packages`.
//!
//! Two runs on the same commit with the same binary write the same bytes. Each packaged file has the commit's time, the
//! owner root and a fixed mode. The files in each package are sorted by name.
//!
//! Non-goals: signatures, other distributions, and builds for another machine.
//!
//! docs/decisions/0190-package-with-debians-tools.md gives the reasons for the design.

mod archive;
mod binary;
mod debian;
mod image;
mod licenses;
mod tree;
pub(crate) mod trial;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, ensure};
use clap::Args;
use rustix::fs::Mode;

use crate::{needs, stage};
use tree::Contents;

#[derive(Args, Debug)]
pub(crate) struct DistArguments {
    /// Binary to package instead of a build of the sources with the profile `dist`
    #[arg(long)]
    binary: Option<PathBuf>,
}

/// # Errors
/// Returns an error if the binary cannot be built, needs a library that Debian 12 lacks, or contains a dependency
/// without a licence text.
pub(crate) fn run(arguments: DistArguments) -> anyhow::Result<ExitCode> {
    needs::provide(&needs::PACKAGES)?;
    // The packages contain the modes of the files that this process creates, so the process sets a fixed umask.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let release = Release::of_commit()?;
    let work = tempfile::tempdir()?;
    let program = binary::prepare(arguments.binary, work.path())?;
    let contents = Contents { program: &program, copyright: &licenses::copyright()? };
    let folder = packages()?;
    if folder.exists() {
        std::fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder)?;
    tarball(&release, &contents, work.path(), &folder)?;
    debian::build(&release, &contents, work.path(), &folder)?;
    image::build(&release, &contents, work.path(), &folder)?;
    write_checksums(&release, &folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the folder of the finished packages.
///
/// # Errors
/// Returns an error if `cargo metadata` fails.
fn packages() -> anyhow::Result<PathBuf> {
    Ok(stage::target()?.join("packages"))
}

/// Version and time of the packages, and the machine that they run on.
struct Release {
    version: &'static str,
    /// Time of the commit in seconds since 1970. All packaged files have this time.
    seconds: u64,
    /// Time of the commit in the format of RFC 3339.
    created: String,
    /// Name of the processor's architecture in Rust and in Linux.
    machine: &'static str,
    /// Name of the processor's architecture in Debian and in images.
    architecture: &'static str,
}

impl Release {
    fn of_commit() -> anyhow::Result<Self> {
        let mut git = Command::new("git");
        git.args(["log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%ct %cd"]).env("TZ", "UTC0");
        let text = stage::output_of(git.current_dir(stage::root()))?;
        let (seconds, created) = text.trim().split_once(' ').context("cannot parse the output of git log")?;
        let seconds = seconds.parse().context("git log printed an invalid commit time")?;
        let machine = std::env::consts::ARCH;
        let architecture = match machine {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => anyhow::bail!("cannot create packages on the architecture {other}; use x86_64 or aarch64"),
        };
        Ok(Release { version: env!("CARGO_PKG_VERSION"), seconds, created: created.to_owned(), machine, architecture })
    }

    #[cfg(test)]
    fn example() -> Self {
        Release {
            version: "1.2.3",
            seconds: 1_795_579_124,
            created: "2026-11-25T03:58:44Z".to_owned(),
            machine: "x86_64",
            architecture: "amd64",
        }
    }

    fn tarball(&self) -> String {
        format!("reveille-{}-{}-linux.tar.gz", self.version, self.machine)
    }

    fn debian_package(&self) -> String {
        format!("reveille_{}_{}.deb", self.version, self.architecture)
    }

    fn image(&self) -> String {
        format!("reveille-{}-{}-linux.oci.tar", self.version, self.machine)
    }
}

/// Writes the tarball. Its only top-level folder is laid out like `/usr/local`.
fn tarball(release: &Release, contents: &Contents<'_>, work: &Path, to: &Path) -> anyhow::Result<()> {
    let file = release.tarball();
    let name = file.trim_end_matches(".tar.gz");
    contents.install(&work.join(name), &tree::LOCAL)?;
    let tar = to.join(format!("{name}.tar"));
    archive::create(release, &tar, work, &[name])?;
    archive::compress(&tar)
}

fn write_checksums(release: &Release, folder: &Path) -> anyhow::Result<()> {
    let mut command = Command::new("sha256sum");
    command.args([release.debian_package(), release.image(), release.tarball()]).current_dir(folder);
    let sums = stage::output_of(&mut command)?;
    std::fs::write(folder.join("SHA256SUMS"), &sums)?;
    eprint!("\n{sums}");
    for name in [release.tarball(), release.debian_package(), release.image()] {
        let path = folder.join(name);
        let bytes = std::fs::metadata(&path)?.len();
        ensure!(bytes > 0, "{} is empty", path.display());
        eprintln!("{:>6.1} MB  {}", bytes as f64 / 1e6, path.display());
    }
    Ok(())
}
