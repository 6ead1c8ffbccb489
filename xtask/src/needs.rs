//! System programs that the commands require. A command installs its missing programs, or prints the command that
//! installs them.

use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};

pub(crate) struct Need {
    program: &'static str,
    arguments: &'static [&'static str],
    /// Name of the package in Debian and its derivatives.
    package: &'static str,
}

const POSTGRESQL: &str = r#"ls /usr/lib/postgresql/*/bin/postgres || ls "$(pg_config --bindir)/postgres""#;

const OPENSSL: &str = "echo '#include <openssl/ssl.h>' | cc -E -";

const CC: Need = Need { program: "cc", arguments: &["--version"], package: "gcc" };
// librdkafka is a library in C and C++ with its own build. It uses OpenSSL, which `pkg-config` finds.
const CXX: Need = Need { program: "c++", arguments: &["--version"], package: "g++" };
const MAKE: Need = Need { program: "make", arguments: &["--version"], package: "make" };
const PKG_CONFIG: Need = Need { program: "pkg-config", arguments: &["--version"], package: "pkg-config" };
const LIBSSL: Need = Need { program: "sh", arguments: &["-c", OPENSSL], package: "libssl-dev" };

/// Programs that `cargo xtask test` requires.
pub(crate) const TESTS: [Need; 19] = [
    CC,
    CXX,
    MAKE,
    PKG_CONFIG,
    LIBSSL,
    Need { program: "git", arguments: &["--version"], package: "git" },
    Need { program: "bash", arguments: &["--version"], package: "bash" },
    Need { program: "curl", arguments: &["--version"], package: "curl" },
    Need { program: "strace", arguments: &["--version"], package: "strace" },
    Need { program: "python3", arguments: &["-c", "import venv, ensurepip"], package: "python3-venv" },
    Need { program: "systemd-analyze", arguments: &["--version"], package: "systemd" },
    // `systemd-analyze verify` checks that the man page of a unit exists.
    Need { program: "man", arguments: &["--version"], package: "man-db" },
    // The tests use `ip` to run candidates in separate network namespaces.
    Need { program: "ip", arguments: &["-Version"], package: "iproute2" },
    // The JDK runs ZooKeeper and Kafka, and compiles the test process that uses Curator. Maven fetches the jars.
    Need { program: "javac", arguments: &["-version"], package: "default-jdk-headless" },
    Need { program: "mvn", arguments: &["--version"], package: "maven" },
    // Node and npm compile and run the client in TypeScript.
    Need { program: "node", arguments: &["--version"], package: "nodejs" },
    Need { program: "npm", arguments: &["--version"], package: "npm" },
    // Any installed version of PostgreSQL works. The crate `test-servers` starts its own servers and does not use the
    // server of the system.
    Need { program: "sh", arguments: &["-c", POSTGRESQL], package: "postgresql" },
    // The tests start their own poolers and do not use the pooler of the system. The search path of a user may lack the
    // folder of system programs.
    Need { program: "sh", arguments: &["-c", "PATH=$PATH:/usr/sbin pgbouncer --version"], package: "pgbouncer" },
];

/// Programs that `cargo xtask dist` requires.
pub(crate) const PACKAGES: [Need; 7] = [
    CC,
    CXX,
    MAKE,
    PKG_CONFIG,
    LIBSSL,
    Need { program: "objdump", arguments: &["--version"], package: "binutils" },
    Need { program: "dpkg-deb", arguments: &["--version"], package: "dpkg-dev" },
];

/// Programs that `cargo xtask dist-test` requires.
pub(crate) const TRIALS: [Need; 6] = [
    Need { program: "mmdebstrap", arguments: &["--version"], package: "mmdebstrap" },
    Need { program: "skopeo", arguments: &["--version"], package: "skopeo" },
    Need { program: "umoci", arguments: &["--version"], package: "umoci" },
    Need { program: "systemd-analyze", arguments: &["--version"], package: "systemd" },
    // `systemd-analyze verify` checks that the man page of a unit exists.
    Need { program: "man", arguments: &["--version"], package: "man-db" },
    Need { program: "ip", arguments: &["-Version"], package: "iproute2" },
];

/// Installs the missing programs.
///
/// # Errors
/// Returns an error if a program is missing and this process cannot install it.
pub(crate) fn provide(needs: &[Need]) -> anyhow::Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let can_install = std::fs::exists("/etc/debian_version").unwrap_or(false) && rustix::process::geteuid().is_root();
    if !can_install {
        bail!("required programs are missing; install them with:\n\n    {}\n", line_for(&missing));
    }
    eprintln!("installing missing packages: {}", missing.join(", "));
    apt_get(&["update", "--quiet"])?;
    apt_get(&[&["install", "--yes", "--quiet", "--no-install-recommends"], missing.as_slice()].concat())?;
    let still = self::missing(needs);
    ensure!(
        still.is_empty(),
        "these packages are still missing after the installation: {}; install them with: {}",
        still.join(", "),
        line_for(&still)
    );
    Ok(())
}

fn missing(needs: &[Need]) -> Vec<&'static str> {
    let works = |need: &&Need| {
        let mut command = Command::new(need.program);
        command.args(need.arguments).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    needs.iter().filter(|need| !works(need)).map(|need| need.package).collect()
}

fn line_for(packages: &[&str]) -> String {
    format!("sudo apt-get update && sudo apt-get install {}", packages.join(" "))
}

fn apt_get(arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new("apt-get");
    command.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
    let status = command.status().context("cannot start apt-get")?;
    ensure!(status.success(), "apt-get {} failed", arguments.join(" "));
    Ok(())
}
