//! Network namespaces. A process in a namespace has a separate link to the rest of the machine. A test can cut the link
//! without closing the connections of the process.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::guard::Guard;

/// Network namespace with one link. A drop of this value removes the namespace and kills the processes in it.
#[derive(Debug)]
pub struct Namespace {
    number: u8,
    guard: Guard,
}

impl Namespace {
    /// Creates a namespace. This function requires the user root and the program `ip`.
    ///
    /// # Errors
    /// Returns an error if the kernel does not allow network namespaces or the user has too few rights. The error names
    /// the next step.
    pub fn make() -> anyhow::Result<Namespace> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "only root may create network namespaces; run these tests as root, in a container with CAP_NET_ADMIN \
             and CAP_SYS_ADMIN"
        );
        let mut failure = None;
        // Each namespace has a number, and other processes may create namespaces concurrently. If another process
        // already uses a number, this function tries the next number.
        let created = (1..=200).find(|number| match ip(&format!("netns add {}", name(*number))) {
            Ok(()) => true,
            Err(error) => {
                failure = Some(error);
                false
            }
        });
        let Some(number) = created else {
            let failure = failure.context("each failed attempt to create a namespace stores its error")?;
            bail!(
                "cannot create a network namespace; install iproute2 and grant CAP_NET_ADMIN and \
                 CAP_SYS_ADMIN: {failure:#}"
            )
        };
        let folder = tempfile::Builder::new().prefix("reveille-network-").tempdir()?.keep();
        fs::write(folder.join("name"), name(number))?;
        let namespace = Namespace { number, guard: Guard::start(&folder, GUARD)? };
        let name = name(number);
        ip(&format!("link add {name} type veth peer name eth0 netns {name}"))?;
        ip(&format!("addr add {}/24 dev {name}", namespace.host()))?;
        ip(&format!("link set {name} up"))?;
        ip(&format!("-n {name} addr add {}/24 dev eth0", namespace.address(2)))?;
        ip(&format!("-n {name} link set eth0 up"))?;
        ip(&format!("-n {name} link set lo up"))?;
        Ok(namespace)
    }

    /// Returns the address under which processes in the namespace reach the rest of the machine.
    #[must_use]
    pub fn host(&self) -> Ipv4Addr {
        self.address(1)
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.number, last)
    }

    /// Returns a command whose process runs in the namespace.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &name(self.number)]).arg(program);
        command
    }

    /// Cuts or restores the link. While the link is cut, no packet passes, and connections receive no error.
    ///
    /// # Errors
    /// Returns an error if the link does not exist.
    pub fn cut(&self, is_cut: bool) -> anyhow::Result<()> {
        ip(&format!("link set {} {}", name(self.number), if is_cut { "down" } else { "up" }))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.guard.stop();
    }
}

/// Returns the name of the namespace. The end of the link outside the namespace has the same name.
fn name(number: u8) -> String {
    format!("rve{number}")
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .context("cannot start the program `ip`; install iproute2")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {}", errors.trim());
    Ok(())
}

/// Guard script that kills the processes in the namespace and removes the namespace. The kernel then removes the link.
const GUARD: &str = r#"
name=$(cat "$1/name")
for pid in $(ip netns pids "$name"); do kill -KILL "$pid"; done
ip netns del "$name"
"#;
