//! Project rules that no compiler checks. Each rule is a pure function of files, so that tests can pass files that
//! violate the rule.

mod arrows;
mod complaints;
mod dependencies;
mod documents;
mod language;
mod modules;
mod sources;

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::stage::CARGO;

/// File of the checkout that git tracks or that `git add` would add.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// Path from the root of the checkout, with `/` as separator.
    path: String,
    text: String,
}

impl File {
    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    #[cfg(test)]
    fn new(path: &str, text: &str) -> Self {
        File { path: path.to_owned(), text: text.to_owned() }
    }

    fn finding(&self, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: self.path.clone(), line, what: what.into() }
    }

    /// Returns the lines with their numbers, counted from 1.
    fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    path: String,
    /// Line number, counted from 1; 0 for the whole file.
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

/// Returns all violations of the rules.
///
/// # Errors
/// Returns an error if git cannot list the files, or if `cargo metadata` fails.
pub(crate) fn findings(root: &Path) -> anyhow::Result<Vec<Finding>> {
    let files = read_files(root)?;
    let packages = read_packages(root)?;
    let mut found = arrows::findings(&packages);
    found.extend(sources::findings(&files));
    found.extend(modules::findings(&files));
    found.extend(documents::findings(&files, &packages));
    found.extend(complaints::findings(&files));
    found.extend(language::findings(&files));
    found.extend(language::subjects(root)?);
    let policy = files.iter().find(|file| file.path == dependencies::POLICY);
    let file = policy.with_context(|| format!("cannot find {}", dependencies::POLICY))?;
    let policy = dependencies::Policy::read(file)?;
    found.extend(dependencies::findings(file, &policy, &read_graph(root, policy.target())?));
    Ok(found)
}

/// Returns the paths and the expected texts of the decision index and of the documents that contain tested code.
///
/// # Errors
/// Returns an error if git cannot list the files, or a document names code that does not exist.
pub(crate) fn generated(root: &Path) -> anyhow::Result<Vec<(PathBuf, String)>> {
    let files = read_files(root)?;
    let mut generated = vec![(root.join(documents::DECISIONS_INDEX), documents::index_of(&files))];
    for (page, text) in documents::pages_of(&files) {
        let text = text.map_err(|finding| anyhow::anyhow!("{finding}"))?;
        generated.push((root.join(&page.path), text));
    }
    Ok(generated)
}

pub(crate) fn read_files(root: &Path) -> anyhow::Result<Vec<File>> {
    let arguments = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let listed = Command::new("git").args(arguments).current_dir(root).output().context("cannot start git")?;
    ensure!(listed.status.success(), "git cannot list the files: {}", String::from_utf8_lossy(&listed.stderr));
    let listed = String::from_utf8(listed.stdout).context("git listed a path that is not UTF-8")?;
    let mut files = Vec::new();
    for path in listed.split_terminator('\0') {
        // The function skips deleted files, which git's index may still contain, and files that are not text.
        if let Ok(text) = std::fs::read_to_string(root.join(path)) {
            files.push(File { path: path.to_owned(), text });
        }
    }
    Ok(files)
}

/// Returns the packages that a build for `target` needs. Cargo downloads missing manifests from the registry.
fn read_graph(root: &Path, target: &str) -> anyhow::Result<dependencies::Graph> {
    let mut command = Command::new(CARGO);
    command.args(["metadata", "--format-version", "1", "--all-features", "--filter-platform", target]);
    let output = command.current_dir(root).output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("cannot parse the output of cargo metadata")
}

fn read_packages(root: &Path) -> anyhow::Result<Vec<arrows::Package>> {
    let mut command = Command::new(CARGO);
    command.args(["metadata", "--no-deps", "--format-version", "1"]).current_dir(root);
    let output = command.output().context("cannot start cargo")?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let metadata: arrows::Metadata =
        serde_json::from_slice(&output.stdout).context("cannot parse the output of cargo metadata")?;
    Ok(metadata.packages)
}
