//! `cargo xtask packages`: packs the published crates, and builds their example programs with the packages. The build
//! runs outside this workspace, like the build of a user's program. `cargo xtask version`: sets the version of all
//! crates.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::stage::{self, CARGO, Counts, run_check};

/// Each entry names a published crate, and the dependencies that the crate's example has in addition to this crate.
const PACKAGES: [(&str, &[&str]); 10] = [
    ("reveille-api", &["serde_json"]),
    ("reveille-client", &["serde_json", TOKIO]),
    ("reveille-coordination", &[TOKIO]),
    ("reveille-coordination-connect", &[TOKIO]),
    ("reveille-coordination-postgres", &[TOKIO]),
    ("reveille-coordination-zookeeper", &[TOKIO]),
    ("reveille-instants", &[]),
    ("reveille-postgres-client", &[]),
    ("reveille-receiver", &["axum", TOKIO]),
    ("reveille-runtime", &[TOKIO]),
];
const TOKIO: &str = "tokio";

/// Examples that need no server, so that this command can run them.
const RUNNABLE: [&str; 5] = ["request", "lock", "instant", "address", "clock"];

/// Packs the published crates. Returns the folder of the packages.
///
/// # Errors
/// Returns an error if cargo cannot pack a crate, or if the published crates differ from [`PACKAGES`].
fn pack() -> anyhow::Result<PathBuf> {
    #[derive(serde::Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(serde::Deserialize)]
    struct Package {
        name: String,
        /// Registries to which the package may be published; `None` allows all.
        publish: Option<Vec<String>>,
    }
    let mut command = Command::new(CARGO);
    command.args(["metadata", "--format-version", "1", "--no-deps"]).current_dir(stage::root());
    let output = command.output().context("cannot start cargo")?;
    let metadata: Metadata =
        serde_json::from_slice(&output.stdout).context("cannot parse the output of cargo metadata")?;
    let published = metadata.packages.into_iter().filter(|package| package.publish.is_none());
    let mut published: Vec<String> = published.map(|package| package.name).collect();
    published.sort();
    let expected = PACKAGES.map(|(name, _)| name);
    ensure!(
        published == expected,
        "cargo would publish {published:?} instead of {expected:?}; update PACKAGES in xtask/src/packages.rs"
    );

    let mut command = Command::new(CARGO);
    command.args(["package", "--no-verify", "--allow-dirty", "--quiet"]);
    command.args(expected.iter().flat_map(|name| ["--package", name]));
    ensure!(
        run_check(&mut command)?.failed == 0,
        "`cargo package` failed for the published crates; its output shows the error"
    );
    Ok(stage::target()?.join("package"))
}

/// Packs the published crates and checks the content of each package.
///
/// # Errors
/// Returns an error if a crate cannot be packed, or if a package lacks a file.
pub(crate) fn check() -> anyhow::Result<Counts> {
    let folder = pack()?;
    for (name, _) in PACKAGES {
        let package = folder.join(file_name(name)?);
        let listed = Command::new("tar").arg("--list").arg("--gzip").arg("--file").arg(&package).output()?;
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        for part in ["/README.md", "/examples/", "/src/lib.rs", "/Cargo.toml", "/LICENSE"] {
            ensure!(listed.contains(part), "{} has no {part}", package.display());
        }
    }
    Ok(Counts { passed: 1, failed: 0 })
}

/// Builds the examples from the unpacked packages, and runs those that need no server.
///
/// # Errors
/// Returns an error if an example does not compile or fails.
pub(crate) fn build_examples() -> anyhow::Result<Counts> {
    check()?;
    let folder = tempfile::tempdir()?;
    let workspace = folder.path();
    let packages = stage::target()?.join("package");
    let mut patches = String::new();
    for (name, _) in PACKAGES {
        let mut tar = Command::new("tar");
        tar.arg("--extract").arg("--gzip").arg("--file").arg(packages.join(file_name(name)?)).current_dir(workspace);
        ensure!(tar.status()?.success(), "cannot unpack {name}");
        patches.push_str(&format!("{name} = {{ path = \"{name}-{}\" }}\n", version()?));
    }
    let mut members = Vec::new();
    for (name, others) in PACKAGES {
        let examples = workspace.join(format!("{name}-{}/examples", version()?));
        let example = example_of(&examples)?;
        let program = example
            .file_stem()
            .and_then(|stem| stem.to_str())
            .context("the file name of an example is not UTF-8")?
            .to_owned();
        let source = workspace.join(&program).join("src");
        std::fs::create_dir_all(&source)?;
        std::fs::copy(&example, source.join("main.rs"))?;
        let dependencies: String = others.iter().map(|other| dependency(other)).collect();
        let manifest = format!(
            "[package]\nname = \"{program}\"\nedition = \"2024\"\n\n[dependencies]\n{name} = \"{}\"\n{dependencies}",
            version()?
        );
        std::fs::write(workspace.join(&program).join("Cargo.toml"), manifest)?;
        members.push(program);
    }
    let manifest = format!("[workspace]\nresolver = \"3\"\nmembers = {members:?}\n\n[patch.crates-io]\n{patches}");
    std::fs::write(workspace.join("Cargo.toml"), manifest)?;
    // The lock file of this checkout selects the versions of the dependencies.
    std::fs::copy(stage::root().join("Cargo.lock"), workspace.join("Cargo.lock"))?;
    let target = stage::target()?.join("packages");
    let status = Command::new(CARGO).arg("build").current_dir(workspace).env("CARGO_TARGET_DIR", &target).status()?;
    ensure!(status.success(), "the examples do not compile with the packaged crates");
    for program in RUNNABLE {
        let output = Command::new(target.join("debug").join(program)).output()?;
        ensure!(output.status.success() && !output.stdout.is_empty(), "the example {program} failed");
    }
    Ok(Counts { passed: 1, failed: 0 })
}

/// Returns the example that the package's README contains. This example needs only published crates.
fn example_of(folder: &Path) -> anyhow::Result<PathBuf> {
    let mut examples: Vec<PathBuf> = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    examples.sort();
    for example in examples.iter().filter(|path| path.is_file()) {
        if std::fs::read_to_string(example)?.contains("\n// [example]\n") {
            return Ok(example.clone());
        }
    }
    bail!("{} contains no example for the README; mark the example with the line `// [example]`", folder.display());
}

fn dependency(name: &str) -> String {
    match name {
        TOKIO => "tokio = { version = \"1\", features = [\"macros\", \"net\", \"rt-multi-thread\"] }\n".to_owned(),
        "axum" => "axum = \"0.8\"\n".to_owned(),
        name => format!("{name} = \"1\"\n"),
    }
}

fn file_name(package: &str) -> anyhow::Result<String> {
    Ok(format!("{package}-{}.crate", version()?))
}

/// Returns the version of all crates.
fn version() -> anyhow::Result<String> {
    let manifest = std::fs::read_to_string(stage::root().join("Cargo.toml"))?;
    version_of(&manifest).map(str::to_owned).context("the workspace's Cargo.toml contains no version")
}

/// Returns the version in the section `workspace.package`.
fn version_of(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
}

/// Sets the version of all crates in Cargo.toml and in Cargo.lock, and adds the version to CHANGELOG.md.
///
/// # Errors
/// Returns an error if the text is not a version, or if a file cannot be written.
pub(crate) fn set_version(new: &str) -> anyhow::Result<()> {
    let parts: Vec<&str> = new.split('.').collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    ensure!(
        parts.len() == 3 && parts.iter().all(is_number),
        "invalid version {new:?}: expected three numbers, for example 1.2.3"
    );
    let root = stage::root();
    let manifest = root.join("Cargo.toml");
    let text = std::fs::read_to_string(&manifest)?;
    let old = version_of(&text).context("the workspace's Cargo.toml contains no version")?.to_owned();
    std::fs::write(&manifest, with_version(&text, &old, new))?;
    let changes = root.join("CHANGELOG.md");
    let text = std::fs::read_to_string(&changes)?;
    std::fs::write(&changes, text.replacen("## Unreleased\n", &format!("## Unreleased\n\n## {new}\n"), 1))?;
    let mut update = Command::new(CARGO);
    ensure!(run_check(update.args(["update", "--workspace", "--quiet"]))?.failed == 0, "cannot update Cargo.lock");
    Ok(())
}

/// Replaces the version of the workspace, and the versions of the dependencies that are crates of the workspace.
fn with_version(manifest: &str, old: &str, new: &str) -> String {
    let (old, new) = (format!("version = \"{old}\""), format!("version = \"{new}\""));
    let lines = manifest.lines().map(|line| match line == old || line.contains("path = \"crates/") {
        true => line.replace(&old, &new) + "\n",
        false => line.to_owned() + "\n",
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_command_changes_versions_of_workspace_crates_only() {
        let manifest = "[workspace.package]\nversion = \"0.1.0\"\n\n[workspace.dependencies]\n\
                        api = { package = \"reveille-api\", path = \"crates/api\", version = \"0.1.0\" }\n\
                        other = { version = \"0.1.0\" }\n";
        assert_eq!(version_of(manifest), Some("0.1.0"));
        let expected = "[workspace.package]\nversion = \"0.2.0\"\n\n[workspace.dependencies]\n\
                        api = { package = \"reveille-api\", path = \"crates/api\", version = \"0.2.0\" }\n\
                        other = { version = \"0.1.0\" }\n";
        assert_eq!(with_version(manifest, "0.1.0", "0.2.0"), expected);
    }
}
