//! The stripped release binary, and the libraries that it needs.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, ensure};

use crate::stage::{self, CARGO};

/// Libraries that the binary may need. Each of them is part of a minimal Debian.
pub(super) const LIBRARIES: [&str; 4] = [LOADER, "libc.so.6", "libgcc_s.so.1", "libm.so.6"];

#[cfg(target_arch = "aarch64")]
const LOADER: &str = "ld-linux-aarch64.so.1";
#[cfg(not(target_arch = "aarch64"))]
const LOADER: &str = "ld-linux-x86-64.so.2";

/// Version of glibc in Debian 12.
const GLIBC_MAX: Version = (2, 36);

/// Major and minor number of a version of glibc.
type Version = (u32, u32);

/// Stripped binary.
pub(super) struct Program {
    pub(super) path: PathBuf,
    /// Paths of the program's libraries on this machine, in the order of the libraries' names.
    pub(super) libraries: Vec<PathBuf>,
    /// Oldest version of glibc with which the program can run.
    pub(super) glibc: Version,
}

/// Copies this binary, or a build of the sources, to the folder `work`, and strips the copy.
///
/// # Errors
/// Returns an error if the build fails, or if the binary needs a library that Debian 12 lacks.
pub(super) fn prepare(binary: Option<PathBuf>, work: &Path) -> anyhow::Result<Program> {
    let binary = binary.map_or_else(build, Ok)?;
    let path = work.join("reveille");
    std::fs::copy(&binary, &path).with_context(|| format!("cannot copy {}", binary.display()))?;
    stage::output_of(Command::new("strip").arg(&path))?;
    let listed = stage::output_of(Command::new("ldd").arg(&path))?;
    let libraries = libraries(&listed);
    let names = names(&libraries);
    ensure!(
        names == LIBRARIES,
        "the binary needs the libraries {names:?} instead of {LIBRARIES:?}; \
         update LIBRARIES and the dependencies of the packages"
    );
    let glibc = glibc(&stage::output_of(Command::new("objdump").arg("--private-headers").arg(&path))?)?;
    ensure!(
        glibc <= GLIBC_MAX,
        "the binary needs glibc {}.{}, but Debian 12 has only glibc {}.{}; build the binary on Debian 12",
        glibc.0,
        glibc.1,
        GLIBC_MAX.0,
        GLIBC_MAX.1
    );
    Ok(Program { path, libraries, glibc })
}

fn build() -> anyhow::Result<PathBuf> {
    let mut command = Command::new(CARGO);
    command.args(["build", "--profile", "dist", "--locked", "--package", "reveille"]).envs(static_libraries());
    ensure!(
        stage::run_check(&mut command)?.failed == 0,
        "cargo cannot build the binary of reveille; its output shows the error"
    );
    Ok(stage::target()?.join("dist/reveille"))
}

/// Returns the environment variables with which the build links OpenSSL and zlib statically. By default, the build scripts
/// of their crates link libraries of the operating system dynamically.
fn static_libraries() -> [(&'static str, String); 4] {
    [
        ("OPENSSL_STATIC", "1".to_owned()),
        // With these folders, the build script does not use pkg-config, which links no library of the system statically.
        ("OPENSSL_LIB_DIR", format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH)),
        ("OPENSSL_INCLUDE_DIR", "/usr/include".to_owned()),
        ("LIBZ_SYS_STATIC", "1".to_owned()),
    ]
}

/// Returns the paths in the output of `ldd`, in the order of their names. For a library that `ldd` does not find, the
/// path is only the name. The kernel provides `linux-vdso`, so the function leaves it out.
pub(super) fn libraries(ldd: &str) -> Vec<PathBuf> {
    let path = |line: &str| {
        let (library, _address) = line.trim().rsplit_once(" (").unwrap_or((line.trim(), ""));
        let (name, path) = library.split_once(" => ").unwrap_or((library, library));
        PathBuf::from(if path == "not found" { name } else { path })
    };
    let mut paths: Vec<PathBuf> = ldd.lines().filter(|line| !line.contains("linux-vdso")).map(path).collect();
    paths.sort_by(|one, other| one.file_name().cmp(&other.file_name()));
    paths
}

/// Returns the file name of each path.
pub(super) fn names(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect()
}

/// Returns the newest version of glibc whose symbols the binary uses, from the output of `objdump --private-headers`.
fn glibc(headers: &str) -> anyhow::Result<Version> {
    let version = |word: &str| {
        let mut numbers = word.strip_prefix("GLIBC_")?.split('.').map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    };
    headers.split_whitespace().filter_map(version).max().context("the headers of the binary contain no glibc version")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parser_returns_the_newest_required_glibc_version() {
        let headers = "required from libm.so.6:\n 0x0 0x00 06 GLIBC_2.29\n required from libc.so.6:\n\
            0x0 0x00 03 GLIBC_2.2.5\n 0x0 0x00 02 GLIBC_2.34\n 0x0 0x00 05 GCC_4.2.0\n 0x0 00 0 GLIBC_PRIVATE\n";
        assert_eq!(glibc(headers).expect("a version"), (2, 34));
        assert!(glibc("required from libc.so:").is_err());
    }

    #[test]
    fn library_parser_returns_the_paths_that_ldd_prints() {
        let ldd = "\tlinux-vdso.so.1 (0x00007ff6)\n\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n\
            \tlibssl.so.3 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x0007)\n";
        let libraries = libraries(ldd);
        let expected = ["/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libm.so.6", "libssl.so.3"];
        assert_eq!(libraries, expected.map(PathBuf::from));
        assert_eq!(names(&libraries), ["ld-linux-x86-64.so.2", "libm.so.6", "libssl.so.3"]);
    }
}
