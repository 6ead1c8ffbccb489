//! Programs in Java: their jars, fetched once by Maven into the checkout's cache.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// The folder with all jars that `java/NAME/pom.xml` asks for. Fetched by whoever asks first; others wait for it.
///
/// # Errors
/// If Maven is not installed, or cannot fetch them.
pub fn jars(name: &str) -> anyhow::Result<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"));
    let pom = crates.join("java").join(name).join("pom.xml");
    let text = fs::read(&pom).with_context(|| format!("cannot read {}", pom.display()))?;
    let cache = crates.join("../../.cache/java");
    fs::create_dir_all(&cache).context("cannot make the cache folder")?;
    // Another pom is another folder.
    let folder = cache.join(format!("{name}-{:08x}", checksum(&text)));
    let lock = File::create(cache.join(format!("{name}.lock")))?;
    lock.lock().context("cannot wait for another that fetches")?;
    if folder.exists() {
        return Ok(folder);
    }
    let half = cache.join(format!("{name}.half"));
    if half.exists() {
        fs::remove_dir_all(&half)?;
    }
    let mut maven = Command::new("mvn");
    maven.args(["-q", "-B", "-ntp", "-f"]).arg(&pom).arg("dependency:copy-dependencies");
    maven.arg("-DincludeScope=runtime").arg(format!("-DoutputDirectory={}", half.display())).stdin(Stdio::null());
    let output = maven.output().context("cannot start mvn: install the package `maven`")?;
    if !output.status.success() {
        let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("mvn cannot fetch what {} asks for:\n{said}{failed}", pom.display());
    }
    fs::rename(&half, &folder)?;
    Ok(folder)
}

/// A java that starts quickly and takes little memory.
pub(crate) fn command(jars: &Path) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp"]);
    command.arg(format!("{}/*", jars.display()));
    command
}

/// FNV-1a: tells one text from another, and nothing more.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}
