//! Programs in Python, each in an environment of its own.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;

/// Where the programs of an environment are, with what `requirements` asks for; made by whoever asks first. `name` is that of the cache.
///
/// # Errors
/// If Python cannot make one, or `pip` cannot install what is asked for.
pub fn environment(name: &str, requirements: &Path) -> anyhow::Result<PathBuf> {
    let environment = cache::provide(name, &[requirements], |folder| {
        let mut venv = Command::new("python3");
        venv.args(["-m", "venv"]).arg(folder);
        cache::run(venv, "install the package `python3-venv`")?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement"]).arg(requirements);
        cache::run(pip, "the environment has one")
    })?;
    Ok(environment.join("bin"))
}
