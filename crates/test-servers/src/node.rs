//! Packages of npm for tests. npm fetches the packages once into the cache of the checkout.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;

/// Names of the files that determine which packages npm installs.
const SOURCES: [&str; 2] = ["package.json", "package-lock.json"];

/// Returns the folder `node_modules` with the packages that `package-lock.json` in the folder `project` names. The
/// first caller fetches the packages, and concurrent callers wait until the folder is complete. `name` is the name of
/// the cache entry.
///
/// # Errors
/// Returns an error if npm is not installed, or cannot fetch the packages.
pub fn modules(name: &str, project: &Path) -> anyhow::Result<PathBuf> {
    let sources = SOURCES.map(|file| project.join(file));
    let folder = cache::provide(name, &sources.each_ref().map(PathBuf::as_path), |folder| {
        for (file, source) in SOURCES.iter().zip(&sources) {
            fs::copy(source, folder.join(file))?;
        }
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--cache"]).arg(cache::root()?.join("npm"));
        npm.current_dir(folder);
        cache::run(npm, "install the packages `nodejs` and `npm`")
    })?;
    Ok(folder.join("node_modules"))
}
