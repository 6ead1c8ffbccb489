//! The memory of a server is its own: keys, secrets, payloads and passwords are in it, in plain while they are used.
//!
//! What this does not do: keep it from root, or from a swap that is not encrypted.

use anyhow::{Context, ensure};
use rustix::process::{
    DumpableBehavior, Resource, Rlimit, dumpable_behavior, getrlimit, set_dumpable_behavior, setrlimit,
};

/// From now on a crash writes no core file, and nobody of the same user reads the memory, as by `ptrace` or in /proc.
///
/// The two are apart: a core that goes to a program (`core_pattern` with a pipe) is not stopped by the limit.
///
/// # Errors
/// If the kernel does not do it.
pub(crate) fn keep_memory() -> anyhow::Result<()> {
    let none = Rlimit { current: Some(0), maximum: Some(0) };
    setrlimit(Resource::Core, none).context("cannot forbid core files")?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable).context("cannot keep others from reading the memory")?;
    let is_kept = getrlimit(Resource::Core) == none && dumpable_behavior()? == DumpableBehavior::NotDumpable;
    ensure!(is_kept, "the kernel forbids neither core files nor debuggers; start with --debuggable if that is meant");
    Ok(())
}
