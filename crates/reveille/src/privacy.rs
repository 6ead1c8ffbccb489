//! Protection of the process memory and of new files. The memory contains keys, secrets, payloads and passwords in plain
//! text while the process uses them. The files contain payloads.
//!
//! Non-goals: this module does not protect the memory from root, or from a swap without encryption.
//!
//! docs/decisions/0075-protect-the-memory-of-serve.md gives the reasons for the design.

use anyhow::{Context, ensure};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, dumpable_behavior, getrlimit, set_dumpable_behavior, setrlimit,
};

/// Disables core files, and prevents other processes of the same user from reading the memory with `ptrace` or /proc.
///
/// Both settings are necessary: the limit on core files does not apply to a core file that the kernel pipes to a
/// program (`core_pattern`).
///
/// # Errors
/// Returns an error if the kernel does not apply the two settings.
pub(crate) fn keep_memory() -> anyhow::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).context("cannot disable core files")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)
        .context("cannot prevent other processes from reading the memory of this process")?;
    let is_kept = getrlimit(Resource::Core) == none && dumpable_behavior()? == DumpableBehavior::NotDumpable;
    ensure!(
        is_kept,
        "the kernel still allows core files or debuggers for this process; start with --debuggable to run without this \
         protection"
    );
    Ok(())
}

/// Sets the umask of the process, so that only its user has access to files and folders that it creates. The index
/// library creates files without a mode of its own.
pub(crate) fn restrict_new_files() {
    rustix::process::umask(rustix::fs::Mode::RWXG | rustix::fs::Mode::RWXO);
}
