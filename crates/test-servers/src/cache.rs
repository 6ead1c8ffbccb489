//! Cache of folders that tests need, such as installed packages. Each checkout of the repository has its own cache. The
//! cache creates each folder once. If the source files of a folder change, the cache creates a new folder.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// Returns the folder that `create` fills. The first caller creates the folder, and concurrent callers wait until the
/// folder is complete. Each version of the files `sources` has a separate folder.
pub(crate) fn provide(
    name: &str,
    sources: &[&Path],
    create: impl FnOnce(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<PathBuf> {
    let cache = root()?;
    let mut sum = FNV_BASIS;
    for source in sources {
        let text = fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        sum = text.iter().fold(sum, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(FNV_PRIME));
    }
    let folder = cache.join(format!("{name}-{sum:08x}"));
    let lock = File::create(cache.join(format!("{name}.lock")))?;
    lock.lock().context("cannot lock a cache entry in .cache/test-servers")?;
    let done = cache.join(format!("{name}-{sum:08x}.done"));
    if done.exists() {
        return Ok(folder);
    }
    if folder.exists() {
        // The folder contains files of an earlier call that was interrupted, so this function removes the folder.
        fs::remove_dir_all(&folder)?;
    }
    fs::create_dir(&folder)?;
    create(&folder)?;
    File::create(done)?;
    Ok(folder)
}

/// Creates the cache folder of the checkout and returns its path.
pub(crate) fn root() -> anyhow::Result<PathBuf> {
    let cache = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.cache/test-servers");
    fs::create_dir_all(&cache).context("cannot create the cache folder .cache/test-servers")?;
    cache.canonicalize().context("cannot resolve the path of the cache folder .cache/test-servers")
}

/// Constants of the hash FNV-1a. The hash only has to distinguish versions of the sources.
const FNV_BASIS: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// Runs a command and waits for its end. If the command fails, the error contains its output.
pub(crate) fn run(mut command: Command, next_step: &str) -> anyhow::Result<()> {
    let outcome = command.stdin(Stdio::null()).output();
    let outcome = outcome.with_context(|| format!("cannot start {:?}; {next_step}", command.get_program()))?;
    if !outcome.status.success() {
        let (output, errors) = (String::from_utf8_lossy(&outcome.stdout), String::from_utf8_lossy(&outcome.stderr));
        bail!("{command:?} failed:\n{output}{errors}");
    }
    Ok(())
}
