//! Go toolchain for tests. A Python package provides the toolchain. Go keeps its modules and its builds in the cache of
//! the checkout.

use std::path::Path;
use std::process::Command;

use crate::cache;

/// Returns a command that starts the program `go` in `programs`, the folder with the programs of a Python environment.
/// The command writes nothing to the user's home folder.
///
/// # Errors
/// Returns an error if this process cannot create the cache folder.
pub fn command(programs: &Path) -> anyhow::Result<Command> {
    let cache = cache::root()?.join("go");
    let mut command = Command::new(programs.join("go"));
    command.env("GOPATH", &cache).env("GOMODCACHE", cache.join("modules")).env("GOCACHE", cache.join("builds"));
    // Go keeps its configuration and its telemetry in the folder that `XDG_CONFIG_HOME` names.
    command.env("XDG_CONFIG_HOME", cache.join("configuration"));
    // Go makes downloaded modules read-only by default. With `-modcacherw`, `rm -r` can remove the modules.
    command.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-modcacherw");
    Ok(command)
}
