//! `cargo xtask dist-test`: installs each package in a clean Debian 12 without a compiler, starts the server, and waits
//! for a callback. Each server runs in its own network namespace and its own process namespace. These namespaces exist
//! only until the test of the server ends.
//!
//! The command creates the clean system once with `mmdebstrap`, and stores it in `.cache/debian-12.tar`.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::Deserialize;

use super::{Release, binary, tree};
use crate::{needs, stage};

/// Maximum time from the start of a package's installation to the arrival of the callback.
const LIMIT: Duration = Duration::from_secs(120);

/// Script that starts a server in a root folder and waits for a callback.
const CALLBACK: &str = "xtask/src/dist/callback.sh";

/// Search path for programs inside the clean system.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Prefix of the line with the server's command in a systemd unit.
const START: &str = "ExecStart=";

/// Installed package.
struct Installed {
    root: PathBuf,
    /// User and group that run the server.
    user: String,
    /// Command that starts the server in `root`, with its data in `/var/lib/reveille`.
    server: Vec<String>,
}

/// Function that installs a package in a folder, which is either the root folder of a clean system or an empty folder.
type Install = fn(&Release, &Path) -> anyhow::Result<Installed>;

/// # Errors
/// Returns an error if a package cannot be installed, or if its server makes no callback within [`LIMIT`].
pub(crate) fn run() -> anyhow::Result<ExitCode> {
    ensure!(rustix::process::geteuid().is_root(), "only root can create namespaces; run the command as root");
    needs::provide(&needs::TRIALS)?;
    let release = Release::of_commit()?;
    ensure!(super::packages()?.join("SHA256SUMS").exists(), "no packages exist; build them with `cargo xtask dist`");
    let base = base()?;
    let trials: [(&str, Option<&Path>, Install); 3] = [
        ("tarball", Some(&base), install_tarball),
        ("Debian package", Some(&base), install_debian_package),
        ("image", None, unpack_image),
    ];
    for (name, base, install) in trials {
        try_package(name, base, install, &release).with_context(|| name.to_owned())?;
    }
    Ok(ExitCode::SUCCESS)
}

#[expect(clippy::disallowed_methods, reason = "the trial measures time with the clock of its machine")]
fn try_package(name: &str, base: Option<&Path>, install: Install, release: &Release) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    if let Some(base) = base {
        let mut command = Command::new("tar");
        command.arg("--numeric-owner").arg("-xpf").arg(base).arg("-C").arg(folder.path());
        stage::output_of(&mut command)?;
    }
    let began = Instant::now();
    let installed = install(release, folder.path())?;
    let took = began.elapsed();
    let output = await_callback(&installed)?;
    let total = began.elapsed();
    ensure!(total < LIMIT, "the callback arrived after {} s instead of within {LIMIT:?}", total.as_secs());
    let mut out = std::io::stdout();
    write!(out, "{output}")?;
    writeln!(
        out,
        "{name}: the installation took {:.1} s, and the callback arrived after {:.1} s in total",
        took.as_secs_f64(),
        total.as_secs_f64()
    )?;
    Ok(())
}

/// Runs the server and returns the log line about the callback.
fn await_callback(installed: &Installed) -> anyhow::Result<String> {
    let mut command = Command::new("timeout");
    command.args([&format!("{}s", LIMIT.as_secs()), "unshare", "--net", "--pid", "--fork", "--kill-child"]);
    command.arg("bash").arg(stage::root().join(CALLBACK)).arg(&installed.user).arg(&installed.root);
    command.args(&installed.server).env_clear().env("PATH", PATH).env("NO_COLOR", "1");
    stage::output_of(&mut command)
}

fn install_tarball(release: &Release, root: &Path) -> anyhow::Result<Installed> {
    give(root, &release.tarball())?;
    let package = format!("/tmp/{}", release.tarball());
    inside(root, &["tar", "-xzf", &package, "-C", "/usr/local", "--strip-components=1"])?;
    check_files(root, &root.join("usr/local"))?;
    let server = ["reveille", "serve", "--data", "/var/lib/reveille"].map(str::to_owned).to_vec();
    Ok(Installed { root: root.to_owned(), user: "0:0".to_owned(), server })
}

/// Installs the Debian package. The server starts with the command in the packaged systemd unit.
fn install_debian_package(release: &Release, root: &Path) -> anyhow::Result<Installed> {
    give(root, &release.debian_package())?;
    let package = format!("/tmp/{}", release.debian_package());
    inside(root, &["dpkg", "--install", &package])?;
    inside(root, &["dpkg", "--purge", "reveille"])?;
    for path in ["usr/bin/reveille", "etc/reveille"] {
        ensure!(!root.join(path).exists(), "`dpkg --purge reveille` did not remove /{path}");
    }
    inside(root, &["dpkg", "--install", &package])?;
    check_files(root, &root.join("usr"))?;
    let unit = std::fs::read_to_string(root.join("usr").join(tree::UNIT))?;
    let start = unit
        .lines()
        .find_map(|line| line.strip_prefix(START))
        .context("the systemd unit of the package has no line ExecStart")?;
    let server = start.split(' ').map(str::to_owned).collect();
    Ok(Installed { root: root.to_owned(), user: "0:0".to_owned(), server })
}

/// Unpacks the image with `umoci`, which can read any OCI image. The server starts with the user and the command of the
/// image, in a root folder that contains only the image.
fn unpack_image(release: &Release, folder: &Path) -> anyhow::Result<Installed> {
    let archive = super::packages()?.join(release.image());
    let (layout, bundle) = (folder.join("layout"), folder.join("bundle"));
    std::fs::create_dir(&layout)?;
    stage::output_of(Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&layout))?;
    let inspected = stage::output_of(Command::new("skopeo").args(["inspect", &format!("oci:{}", layout.display())]))?;
    ensure!(
        inspected.contains(&release.created),
        "`skopeo inspect` does not show the image's creation time: {inspected}"
    );
    stage::output_of(Command::new("skopeo").args(["inspect", &format!("oci-archive:{}", archive.display())]))?;
    let image = format!("{}:{}", layout.display(), release.version);
    stage::output_of(Command::new("umoci").args(["unpack", "--image", &image]).arg(&bundle))?;
    let configuration = std::fs::read(bundle.join("config.json"))?;
    let Runtime { process } =
        serde_json::from_slice(&configuration).context("cannot parse the file config.json, which umoci created")?;
    ensure!(process.user.uid != 0, "the image runs the server as root");
    ensure!(
        process.cwd == "/var/lib/reveille",
        "the image starts the server in the folder {} instead of /var/lib/reveille",
        process.cwd
    );
    let mut server = process.args;
    server.extend(["serve", "--data", &process.cwd].map(str::to_owned));
    let user = format!("+{}:+{}", process.user.uid, process.user.gid);
    Ok(Installed { root: bundle.join("rootfs"), user, server })
}

/// The part of an OCI runtime configuration that says how the process starts.
#[derive(Deserialize)]
struct Runtime {
    process: Process,
}

#[derive(Deserialize)]
struct Process {
    args: Vec<String>,
    cwd: String,
    user: User,
}

#[derive(Deserialize)]
struct User {
    uid: u32,
    gid: u32,
}

/// Checks the man pages, the systemd unit, and the libraries that the binary needs. Also checks that the system
/// contains no compiler.
fn check_files(root: &Path, prefix: &Path) -> anyhow::Result<()> {
    let program = Path::new("/").join(prefix.strip_prefix(root)?).join("bin/reveille");
    let libraries = binary::libraries(&inside(root, &["ldd", &program.display().to_string()])?);
    ensure!(libraries.iter().all(|path| path.is_absolute()), "Debian 12 lacks libraries: {libraries:?}");
    let names = binary::names(&libraries);
    ensure!(names == binary::LIBRARIES, "the binary needs the libraries {names:?} instead of {:?}", binary::LIBRARIES);
    ensure!(
        !["cc", "gcc", "rustc"].iter().any(|compiler| root.join("usr/bin").join(compiler).exists()),
        "the test system contains a compiler (cc, gcc or rustc); the trial requires a system without compilers"
    );
    for page in ["reveille.1.gz", "reveille-serve.1.gz", "reveille-schedule-create.1.gz"] {
        let page = prefix.join(tree::MAN).join(page);
        ensure!(page.exists(), "{} does not exist", page.display());
    }
    check_unit(root, prefix)
}

/// Verifies the systemd unit with the build machine's systemd, because the clean system contains no systemd.
fn check_unit(root: &Path, prefix: &Path) -> anyhow::Result<()> {
    let unit = std::fs::read_to_string(prefix.join(tree::UNIT))?;
    let folder = tempfile::tempdir()?;
    let copy = folder.path().join("reveille.service");
    std::fs::write(&copy, unit.replace(START, &format!("{START}{}", root.display())))?;
    let manual = prefix.join("share/man");
    let verified = Command::new("systemd-analyze").env("MANPATH", manual).arg("verify").arg(&copy).output()?;
    let warnings = String::from_utf8_lossy(&verified.stderr);
    ensure!(
        verified.status.success() && warnings.is_empty(),
        "systemd-analyze rejects the packaged systemd unit: {warnings}"
    );
    Ok(())
}

/// Runs a command with `root` as its root folder.
fn inside(root: &Path, words: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("chroot");
    command.arg(root).args(words).env_clear().env("PATH", PATH).env("DEBIAN_FRONTEND", "noninteractive");
    stage::output_of(&mut command).with_context(|| words.join(" "))
}

/// Copies a package to the folder `/tmp` of the clean system.
fn give(root: &Path, package: &str) -> anyhow::Result<()> {
    tree::copy(&super::packages()?.join(package), &root.join("tmp").join(package))
}

/// Returns the archive of the clean system. If the archive does not exist, creates it within about a minute.
fn base() -> anyhow::Result<PathBuf> {
    let cache = stage::root().join(".cache");
    let archive = cache.join("debian-12.tar");
    if archive.exists() {
        return Ok(archive);
    }
    eprintln!("creating {}", archive.display());
    std::fs::create_dir_all(&cache)?;
    let partial = cache.join("debian-12.partial.tar");
    stage::output_of(Command::new("mmdebstrap").args(["--variant=minbase", "bookworm"]).arg(&partial))?;
    std::fs::rename(&partial, &archive)?;
    Ok(archive)
}
