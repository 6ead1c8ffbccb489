//! Go for tests, from a Python package. Go keeps its modules and its builds in the cache of the checkout.

use std::path::Path;
use std::process::Command;

use crate::cache;

/// Returns a command that starts `go`, which is one of the `programs` of a Python environment. The command writes
/// nothing to the user's home folder.
///
/// # Errors
/// Returns an error if this process cannot create the cache folder.
pub fn command(programs: &Path) -> anyhow::Result<Command> {
    let cache = cache::root()?.join("go");
    let mut command = Command::new(programs.join("go"));
    command.env("GOPATH", &cache).env("GOMODCACHE", cache.join("modules")).env("GOCACHE", cache.join("builds"));
    // Go keeps its configuration and its telemetry in this folder.
    command.env("XDG_CONFIG_HOME", cache.join("configuration"));
    // With this flag, `rm -r` can remove the modules, which are read-only otherwise.
    command.env("GOTOOLCHAIN", "local").env("GOFLAGS", "-modcacherw");
    Ok(command)
}
