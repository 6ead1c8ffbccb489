//! Python programs for tests, each in a separate virtual environment.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;

/// Returns the folder with the programs of a virtual environment. The environment has the packages that the file
/// `requirements` names. The first caller creates the environment, and concurrent callers wait until it is complete.
/// `name` is the name of the cache entry.
///
/// # Errors
/// Returns an error if Python cannot create the environment, or `pip` cannot install the packages.
pub fn environment(name: &str, requirements: &Path) -> anyhow::Result<PathBuf> {
    let environment = cache::provide(name, &[requirements], |folder| {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(folder);
        cache::run(venv, "install the package `python3-venv`")?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(requirements);
        cache::run(pip, "check the virtual environment and the access to the package index")
    })?;
    Ok(environment.join("bin"))
}
