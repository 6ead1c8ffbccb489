//! The rules of the house that no compiler knows. Each is a pure function of files, so that its tests can break it.

mod arrows;
mod dependencies;
mod documents;
mod modules;
mod sources;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::stage::CARGO;

/// A file of the checkout, that git tracks or would.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// From the root of the checkout, with `/`.
    path: String,
    text: String,
}

impl File {
    #[cfg(test)]
    fn new(path: &str, text: &str) -> Self {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    /// Its lines, counted from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    path: String,
    /// From 1; 0 for the whole file.
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// All that breaks a rule.
///
/// # Errors
/// If git or cargo cannot tell what there is.
pub(crate) fn findings(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let files = read_files(root)?;
    let packages = read_packages(root)?;
    let mut found = arrows::findings(&packages);
    found.extend(sources::findings(&files));
    found.extend(modules::findings(&files));
    found.extend(documents::findings(&files, &packages));
    let policy = files.iter().find(|file| file.path == dependencies::POLICY);
    let file = policy.with_context(|| format!("{} is not there", dependencies::POLICY))?;
    let policy = dependencies::Policy::read(file)?;
    found.extend(dependencies::findings(file, &policy, &read_graph(root, policy.target())?));
    Ok(found)
}

/// The index of the decisions, with its path.
///
/// # Errors
/// If git cannot tell what there is.
pub(crate) fn index(root: &Path) -> anyhow::Result<(PathBuf, String)> {
    Ok((root.join(documents::DECISIONS_INDEX), documents::index_of(&read_files(root)?)))
}

fn read_files(root: &Path) -> anyhow::Result<Vec<File>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").args(arguments).current_dir(root).output().context("cannot start git")?;
    ensure!(listed.status.success(), "git cannot list the files: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).context("a path is not UTF-8")?;
    let mut files = Vec::new();
    for path in listed.split_terminator('\0') {
        // A file may be gone from the folder and not yet from the index; what is not text has no rules.
        if let Ok(text) = std::fs::read_to_string(root.join(path)) {
            files.push(File { path: path.to_owned(), text });
        }
    }
    Ok(files)
}

/// All that is built for `target`, whose manifests cargo gets from the registry if they are not there yet.
fn read_graph(root: &Path, target: &str) -> anyhow::Result<dependencies::Graph> {
    let mut command = Command::new(CARGO);
    command.args(["metadata", "--format-version", "1", "--all-features", "--filter-platform", target]);
    let told = command.current_dir(root).output().context("cannot start cargo")?;
    ensure!(told.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&told.stderr));
    serde_json::from_slice(&told.stdout).context("what cargo metadata says")
}

fn read_packages(root: &Path) -> anyhow::Result<Vec<arrows::Package>> {
    let mut command = Command::new(CARGO);
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root);
    let told = command.output().context("cannot start cargo")?;
    ensure!(told.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&told.stderr));
    let metadata: arrows::Metadata = serde_json::from_slice(&told.stdout).context("what cargo metadata says")?;
    Ok(metadata.packages)
}
