//! Licences of the binary: its own, and those of the libraries that it contains.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::stage::{self, CARGO};

/// Licences whose text names no author, for packages that contain no licence file.
const KNOWN: [(&str, &str); 2] =
    [("Apache-2.0", include_str!("../../../LICENSE")), ("0BSD", include_str!("licenses/0BSD.txt"))];

/// Prefixes of the names of licence files, in lower case.
const NAMES: [&str; 6] = ["license", "licence", "copying", "copyright", "notice", "unlicense"];

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    /// SPDX expression.
    license: Option<String>,
    /// Registry of the package; `None` for a package of the workspace.
    source: Option<String>,
    manifest_path: PathBuf,
}

/// Returns the licence of the service, followed by each distinct licence text of its dependencies. The result does not
/// contain the licences of Rust's standard library.
///
/// # Errors
/// Returns an error if a dependency has no licence file, and its licence is not in [`KNOWN`].
pub(super) fn copyright() -> anyhow::Result<String> {
    let built = built()?;
    let metadata: Metadata = serde_json::from_str(&cargo(&["metadata", "--format-version", "1"])?)
        .context("cannot parse the output of cargo metadata")?;
    let of_others = |package: &&Package| package.source.is_some();
    let packages: Vec<Package> =
        metadata.packages.into_iter().filter(|package| built.contains(&package.id()) && of_others(&package)).collect();
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for package in &packages {
        for text in package.texts()? {
            texts.entry(text).or_default().insert(package.id());
        }
    }
    Ok(document(&packages, &texts))
}

/// Returns the names and versions of the packages that the binary is built from. The result contains procedural macros,
/// but neither build scripts nor their dependencies.
fn built() -> anyhow::Result<BTreeSet<String>> {
    let tree = cargo(&["tree", "--package", "reveille", "--edges", "normal", "--prefix", "none", "--format", "{p}"])?;
    let id = |line: &str| Some(line.split(' ').take(2).collect::<Vec<_>>().join(" ")).filter(|id| !id.is_empty());
    let built: BTreeSet<String> = tree.lines().filter_map(id).collect();
    ensure!(built.len() > 1, "cargo tree lists no dependency of reveille");
    Ok(built)
}

fn cargo(arguments: &[&str]) -> anyhow::Result<String> {
    stage::output_of(Command::new(CARGO).args(arguments).arg("--locked").current_dir(stage::root()))
}

impl Package {
    /// Returns the name and the version in the format of `cargo tree`.
    fn id(&self) -> String {
        format!("{} v{}", self.name, self.version)
    }

    /// Returns the texts of the package's licence files. If the package has none, returns the text of its licence from
    /// [`KNOWN`].
    fn texts(&self) -> anyhow::Result<Vec<String>> {
        let folder = self.manifest_path.parent().context("the manifest path of a dependency has no parent folder")?;
        let mut texts = Vec::new();
        read_licenses(folder, &mut texts).with_context(|| format!("cannot read the licences of {}", self.id()))?;
        if texts.is_empty() {
            let license = self.license.as_deref().unwrap_or_default();
            let known = KNOWN.iter().find(|(name, _)| *name == license).with_context(|| {
                format!(
                    "{} contains no licence file; add the text of its licence `{license}` to KNOWN in \
                     xtask/src/dist/licenses.rs",
                    self.id()
                )
            })?;
            texts.push(known.1.to_owned());
        }
        Ok(texts)
    }
}

/// Reads the licence files in this folder and in all folders below it, because a package can contain the sources of
/// another project.
fn read_licenses(folder: &Path, texts: &mut Vec<String>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            read_licenses(&entry.path(), texts)?;
        } else if is_license(&entry.file_name().to_string_lossy()) {
            texts.push(String::from_utf8_lossy(&std::fs::read(entry.path())?).replace("\r\n", "\n"));
        }
    }
    Ok(())
}

fn is_license(file: &str) -> bool {
    let file = file.to_lowercase();
    NAMES.iter().any(|name| file.starts_with(name)) && !file.ends_with(".rs")
}

fn document(packages: &[Package], texts: &BTreeMap<String, BTreeSet<String>>) -> String {
    let mut text = String::from("Reveille is licensed under the Apache License 2.0:\n\n");
    text.push_str(KNOWN[0].1);
    text.push_str("\nThe binary contains these libraries:\n\n");
    for package in packages {
        writeln!(text, "{}: {}", package.id(), package.license.as_deref().unwrap_or("see the licence text below"))
            .expect("writing to a string never fails");
    }
    // OpenSSL is not a crate: the build links Debian's library.
    text.push_str("OpenSSL 3, from Debian's package libssl-dev: Apache-2.0\n");
    for (license, users) in texts {
        let users: Vec<&str> = users.iter().map(String::as_str).collect();
        write!(text, "\n{}\nLicence of {}:\n\n{}\n", "-".repeat(80), users.join(", "), license.trim_end())
            .expect("writing to a string never fails");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(folder: &Path, license: &str) -> Package {
        Package {
            name: "one".to_owned(),
            version: "1.2.3".to_owned(),
            license: Some(license.to_owned()),
            source: Some("registry".to_owned()),
            manifest_path: folder.join("Cargo.toml"),
        }
    }

    #[test]
    fn search_finds_licence_files_in_nested_folders() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("c")).expect("a folder");
        std::fs::write(folder.path().join("c/LICENSE.md"), "a text").expect("a file");
        std::fs::write(folder.path().join("license.rs"), "a module").expect("a file");
        assert_eq!(package(folder.path(), "MIT").texts().expect("the texts"), ["a text"]);
    }

    #[test]
    fn search_fails_for_a_package_without_a_licence_text() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = package(folder.path(), "MIT").texts().expect_err("MIT names an author");
        assert!(error.to_string().contains("one v1.2.3") && error.to_string().contains("MIT"), "{error}");
        assert_eq!(package(folder.path(), "Apache-2.0").texts().expect("a known text"), [KNOWN[0].1]);
    }

    #[test]
    fn licence_document_contains_each_distinct_licence_text_once() {
        let packages = [package(Path::new("/"), "MIT")];
        let users = BTreeSet::from(["one v1.2.3".to_owned(), "two v2.0.0".to_owned()]);
        let document = document(&packages, &BTreeMap::from([("Permission is granted".to_owned(), users)]));
        assert!(document.contains("one v1.2.3: MIT\n"), "{document}");
        assert!(document.ends_with("Licence of one v1.2.3, two v2.0.0:\n\nPermission is granted\n"), "{document}");
    }
}
