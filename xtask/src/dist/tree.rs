//! Files that every package installs, in a folder laid out like `/usr`.

use std::path::Path;
use std::process::Command;

use anyhow::Context;

use super::archive;
use super::binary::Program;
use crate::stage;

/// Place in which a package installs its files.
pub(super) struct Prefix {
    path: &'static str,
    /// Name of the folder below `share/zsh` in which Debian's zsh searches for completions.
    zsh: &'static str,
}

/// Prefix of files that an operator installs.
pub(super) const LOCAL: Prefix = Prefix { path: "/usr/local", zsh: "site-functions" };
/// Prefix of files that the package manager installs.
pub(super) const SYSTEM: Prefix = Prefix { path: "/usr", zsh: "vendor-completions" };

/// Folder of the man pages.
pub(super) const MAN: &str = "share/man/man1";
/// Path of the systemd unit.
pub(super) const UNIT: &str = "lib/systemd/system/reveille.service";
/// Folder of the licences.
const DOC: &str = "share/doc/reveille";

/// Contents of every package.
pub(super) struct Contents<'a> {
    pub(super) program: &'a Program,
    /// Licences of the service and of its dependencies.
    pub(super) copyright: &'a str,
}

impl Contents<'_> {
    /// Writes all files to a folder that corresponds to `prefix` on the target machine.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written, or if the binary cannot generate its man pages or completions.
    pub(super) fn install(&self, folder: &Path, prefix: &Prefix) -> anyhow::Result<()> {
        self.install_program(folder)?;
        self.install_man_pages(&folder.join(MAN))?;
        self.install_completions(&folder.join("share"), prefix)?;
        write(&folder.join(UNIT), &unit(&source("reveille.service")?, prefix))?;
        write(&folder.join(DOC).join("reveille.toml"), &source("reveille.toml")?)
    }

    /// Writes only the binary and the licences.
    ///
    /// # Errors
    /// Returns an error if a file cannot be written.
    pub(super) fn install_program(&self, folder: &Path) -> anyhow::Result<()> {
        copy(&self.program.path, &folder.join("bin/reveille"))?;
        write(&folder.join(DOC).join("copyright"), self.copyright)?;
        let library = "COPYRIGHT-library.html";
        copy(&sysroot()?.join("share/doc/rust").join(library), &folder.join(DOC).join("rust-library.html"))
    }

    fn install_man_pages(&self, folder: &Path) -> anyhow::Result<()> {
        stage::output_of(Command::new(&self.program.path).args(["man", "--to"]).arg(folder))?;
        for page in std::fs::read_dir(folder)? {
            archive::compress(&page?.path())?;
        }
        Ok(())
    }

    fn install_completions(&self, share: &Path, prefix: &Prefix) -> anyhow::Result<()> {
        let scripts = [
            ("bash", "bash-completion/completions/reveille".to_owned()),
            ("fish", "fish/vendor_completions.d/reveille.fish".to_owned()),
            ("zsh", format!("zsh/{}/_reveille", prefix.zsh)),
        ];
        for (shell, path) in scripts {
            let script = stage::output_of(Command::new(&self.program.path).args(["completions", shell]))?;
            write(&share.join(path), &script)?;
        }
        Ok(())
    }
}

/// Reads a file of the folder `deploy`.
///
/// # Errors
/// Returns an error if the file cannot be read.
pub(super) fn source(name: &str) -> anyhow::Result<String> {
    std::fs::read_to_string(stage::root().join("deploy").join(name))
        .with_context(|| format!("cannot read deploy/{name}"))
}

/// Replaces the prefix in the paths of a systemd unit. Removes the comment at the start of the unit, which describes an
/// installation by hand.
fn unit(text: &str, prefix: &Prefix) -> String {
    let start = text.find("[Unit]").unwrap_or(0);
    text[start..].replace(&format!("={}/bin/", LOCAL.path), &format!("={}/bin/", prefix.path))
}

/// Writes a file, and creates its folder.
///
/// # Errors
/// Returns an error if the file or the folder cannot be written.
pub(super) fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    create_parent(path)?;
    std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Copies a file with its mode, and creates the folder of the copy. If `from` is a link, copies the target of the link.
///
/// # Errors
/// Returns an error if the file cannot be read or written.
pub(super) fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    create_parent(to)?;
    std::fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

fn create_parent(path: &Path) -> anyhow::Result<()> {
    let parent = path.parent().context("the path of a file has no parent folder")?;
    std::fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))
}

/// Returns the folder of the Rust toolchain, which contains the licences of the standard library.
fn sysroot() -> anyhow::Result<std::path::PathBuf> {
    let text = stage::output_of(Command::new("rustc").args(["--print", "sysroot"]).current_dir(stage::root()))?;
    Ok(text.trim().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn systemd_unit_starts_the_binary_in_the_installation_prefix() {
        let text = source("reveille.service").expect("the unit");
        let start = |prefix| {
            let unit = unit(&text, prefix);
            assert!(unit.starts_with("[Unit]\n"), "{unit}");
            unit.lines().find(|line| line.starts_with("ExecStart=")).expect("the line").to_owned()
        };
        let arguments = "serve --config /etc/reveille/reveille.toml";
        assert_eq!(start(&SYSTEM), format!("ExecStart=/usr/bin/reveille {arguments}"));
        assert_eq!(start(&LOCAL), format!("ExecStart=/usr/local/bin/reveille {arguments}"));
    }
}
