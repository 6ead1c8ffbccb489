//! Network namespaces: a process in one has a link of its own to the rest of the machine, which can be cut without a word to anybody.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, bail, ensure};

use crate::guard::Guard;

/// One of them, with one link. Dropped, it is gone, and the processes in it.
#[derive(Debug)]
pub struct Namespace {
    number: u8,
    guard: Guard,
}

impl Namespace {
    /// Needs root, and `ip`.
    ///
    /// # Errors
    /// If the kernel or the user does not allow it, with what to do then.
    pub fn make() -> anyhow::Result<Namespace> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "only root may make network namespaces: run these tests as root, in a container with CAP_NET_ADMIN and CAP_SYS_ADMIN"
        );
        let mut refused = None;
        // Other processes may make some, too: who makes the namespace has the number.
        let made = (1..=200).find(|number| match ip(&format!("netns add {}", name(*number))) {
            Ok(()) => true,
            Err(error) => {
                refused = Some(error);
                false
            }
        });
        let Some(number) = made else {
            let refused = refused.context("there is none")?;
            bail!(
                "cannot make a network namespace (is iproute2 installed, with CAP_NET_ADMIN and CAP_SYS_ADMIN?): {refused:#}"
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

    /// The rest of the machine, as it is seen from there.
    #[must_use]
    pub fn host(&self) -> Ipv4Addr {
        self.address(1)
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.number, last)
    }

    /// A command whose process will be there.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &name(self.number)]).arg(program);
        command
    }

    /// While it is cut nothing comes or goes, and no connection is told.
    ///
    /// # Errors
    /// If the link is gone.
    pub fn cut(&self, is_cut: bool) -> anyhow::Result<()> {
        ip(&format!("link set {} {}", name(self.number), if is_cut { "down" } else { "up" }))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.guard.end();
    }
}

/// Of the namespace, and of its link's end outside.
fn name(number: u8) -> String {
    format!("rve{number}")
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("cannot start ip: install iproute2")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {}", said.trim());
    Ok(())
}

/// The link goes with its end inside.
const GUARD: &str = r#"
name=$(cat "$1/name")
for pid in $(ip netns pids "$name"); do kill -KILL "$pid"; done
ip netns del "$name"
"#;
