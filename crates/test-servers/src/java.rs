//! Java programs for tests: their jars and their compiled classes. Maven fetches the jars once into the cache of the
//! checkout.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache;

/// Returns the folder with all jars that a `pom.xml` requires. The first caller fetches the jars, and concurrent
/// callers wait until the folder is complete. `name` is the name of the cache entry.
///
/// # Errors
/// Returns an error if Maven is not installed, or cannot fetch the jars.
pub fn jars(name: &str, pom: &Path) -> anyhow::Result<PathBuf> {
    cache::provide(name, &[pom], |folder| {
        let mut maven = Command::new("mvn");
        maven.args(["-q", "-B", "-ntp", "-f"]).arg(pom).arg("dependency:copy-dependencies");
        maven.arg("-DincludeScope=runtime").arg(format!("-DoutputDirectory={}", folder.display()));
        cache::run(maven, "install the package `maven`")
    })
}

/// Returns the folder with the classes of a program. The first caller compiles the program, and concurrent callers
/// wait until the folder is complete.
///
/// # Errors
/// Returns an error if `javac` is not installed, or cannot compile the program.
pub(crate) fn classes(name: &str, jars: &Path, source: &Path) -> anyhow::Result<PathBuf> {
    cache::provide(name, &[source], |folder| {
        let mut javac = Command::new("javac");
        javac.args(["-nowarn", "-cp"]).arg(format!("{}/*", jars.display())).arg("-d").arg(folder).arg(source);
        cache::run(javac, "install the package `default-jdk-headless`")
    })
}

/// Returns a `java` command that starts quickly and uses little memory.
#[must_use]
pub fn command(folders: &[&Path]) -> Command {
    let mut command = Command::new("java");
    command.args(["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-cp"]);
    let path = |folder: &&Path| format!("{0}:{0}/*", folder.display());
    command.arg(folders.iter().map(path).collect::<Vec<_>>().join(":"));
    command
}
