//! What is made once for a checkout, and kept in its cache until what it is made of changes.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The folder that `make` fills, by whoever asks first; others wait for it. Made of other `sources`, it is another folder.
pub(crate) fn provide(
    name: &str,
    sources: &[&Path],
    make: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/test-servers");
    fs::create_dir_all(&cache).context("cannot make the cache folder")?;
    let cache = cache.canonicalize().context("cannot find the cache folder")?;
    let mut sum = FNV_BASIS;
    for source in sources {
        let text = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        sum = text.iter().fold(sum, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(FNV_PRIME));
    }
    let folder = cache.join(format!("{name}-{sum:08x}"));
    let lock = File::create(cache.join(format!("{name}.lock")))?;
    lock.lock().context("cannot wait for another that makes it")?;
    let done = cache.join(format!("{name}-{sum:08x}.done"));
    if done.exists() {
        return Ok(folder);
    }
    if folder.exists() {
        // One that was broken off.
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir(&folder)?;
    make(&folder)?;
    File::create(done)?;
    Ok(folder)
}

/// FNV-1a: tells one text from another, and nothing more.
const FNV_BASIS: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// Runs it to its end; what it said is part of the error.
pub(crate) fn run(mut command: Command, next_step: &str) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output();
    let output = output.with_context(|| format!("cannot start {:?}: {next_step}", command.get_program()))?;
    if !output.status.success() {
        let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{command:?} failed:\n{said}{failed}");
    }
    Ok(())
}
