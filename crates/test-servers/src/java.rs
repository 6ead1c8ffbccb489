//! Programs in Java: their jars, fetched once by Maven into the checkout's cache, and what is compiled with them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;

/// The folder with all jars that a `pom.xml` asks for. Fetched by whoever asks first; others wait for it. `name` is that of the cache.
///
/// # Errors
/// If Maven is not installed, or cannot fetch them.
pub fn jars(name: &str, pom: &Path) -> anyhow::Result<PathBuf> {
    cache::provide(name, &[pom], |folder| {
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "-ntp", "-f"]).arg(pom).arg("dependency:copy-dependencies");
        maven.arg("-DincludeScope=runtime").arg(format!("-DoutputDirectory={}", folder.display()));
        cache::run(maven, "install the package `maven`")
    })
}

/// The folder with a program's classes, compiled by whoever asks first.
///
/// # Errors
/// If there is no `javac`, or it refuses the program.
pub(crate) fn classes(name: &str, jars: &Path, source: &Path) -> anyhow::Result<PathBuf> {
    cache::provide(name, &[source], |folder| {
        let mut javac = Command::new("javac");
        javac.args(["-nowarn", "-cp"]).arg(format!("{}/*", jars.display())).arg("-d").arg(folder).arg(source);
        cache::run(javac, "install the package `default-jdk-headless`")
    })
}

/// A java that starts quickly and takes little memory.
pub(crate) fn command(folders: &[&Path]) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp"]);
    let path = |folder: &&Path| format!("{0}:{0}/*", folder.display());
    command.arg(folders.iter().map(path).collect::<Vec<_>>().join(":"));
    command
}
