//! Debian package, built with `dpkg-deb`.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use super::Release;
use super::tree::{self, Contents};
use crate::stage;

/// Scripts that `dpkg` runs when it installs or removes the package.
const SCRIPTS: [(&str, &str); 3] = [
    ("postinst", include_str!("debian/postinst")),
    ("prerm", include_str!("debian/prerm")),
    ("postrm", include_str!("debian/postrm")),
];
const CONFIGURATION: &str = "etc/reveille/reveille.toml";

/// Builds the package in the folder `to`.
///
/// # Errors
/// Returns an error if a file cannot be written, or if `dpkg-deb` fails.
pub(super) fn build(release: &Release, contents: &Contents<'_>, work: &Path, to: &Path) -> anyhow::Result<()> {
    let root = work.join("debian");
    contents.install(&root.join("usr"), &tree::SYSTEM)?;
    tree::write(&root.join(CONFIGURATION), &tree::source("reveille.toml")?)?;
    let folder = root.join("DEBIAN");
    tree::write(&folder.join("control"), &control(release, contents.program.glibc, kilobytes(&root)?))?;
    tree::write(&folder.join("conffiles"), &format!("/{CONFIGURATION}\n"))?;
    for (name, script) in SCRIPTS {
        let path = folder.join(name);
        tree::write(&path, script)?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
    }
    let mut command = Command::new("dpkg-deb");
    command.env("SOURCE_DATE_EPOCH", release.seconds.to_string());
    command.args(["--root-owner-group", "-Zxz", "--build"]).arg(&root).arg(to.join(release.debian_package()));
    stage::output_of(&mut command).map(drop)
}

fn control(release: &Release, (major, minor): (u32, u32), kilobytes: u64) -> String {
    let Release { version, architecture, .. } = release;
    format!(
        "Package: reveille\n\
        Version: {version}\n\
        Architecture: {architecture}\n\
        Maintainer: The developers of Reveille <reveille@localhost>\n\
        Installed-Size: {kilobytes}\n\
        Depends: libc6 (>= {major}.{minor}), libgcc-s1\n\
        Section: net\n\
        Priority: optional\n\
        Description: scheduler that calls services back on time\n \
        A service asks for a callback with one HTTP request: at an instant, on a cron,\n \
        or at an interval. Reveille makes the signed callback despite crashes,\n \
        restarts, slow targets and clock changes.\n"
    )
}

/// Returns the total size of the files in this folder, in units of 1,024 bytes.
fn kilobytes(folder: &Path) -> anyhow::Result<u64> {
    let mut kilobytes = 0;
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        kilobytes += match entry.file_type()?.is_dir() {
            true => self::kilobytes(&entry.path())?,
            false => entry.metadata()?.len().div_ceil(1_024),
        };
    }
    Ok(kilobytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debian_control_file_requires_the_glibc_version_of_the_binary() {
        let control = control(&Release::example(), (2, 34), 7);
        assert!(control.contains("\nDepends: libc6 (>= 2.34), libgcc-s1\n"), "{control}");
        assert!(control.contains("\nVersion: 1.2.3\nArchitecture: amd64\n"), "{control}");
        assert!(control.ends_with("\n restarts, slow targets and clock changes.\n"), "{control}");
    }
}
