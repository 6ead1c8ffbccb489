//! A network namespace for each member, all on one bridge: so that each has an address of its own, and can be cut off
//! from all others, or from some, without a word to anybody.
//!
//! Always true here: namespaces, the processes in them and the bridge are gone soon after this process, however it ends.

use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, bail, ensure};

pub(super) struct Network {
    number: u8,
    guard: Guard,
}

impl Network {
    /// Needs root.
    ///
    /// # Errors
    /// If the kernel or the user does not allow it.
    pub(super) fn make(members: &[&str]) -> anyhow::Result<Network> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "each member gets a network namespace of its own, which only root may make: run this as root"
        );
        let Some(number) = (1..=200).find(|number| ip(&format!("link add rvl{number} type bridge")).is_ok()) else {
            bail!("cannot make a bridge: is `ip` (iproute2) installed?");
        };
        let network = Network { number, guard: Guard::start(number, members)? };
        ip(&format!("addr add {}/24 dev rvl{number}", network.host()))?;
        ip(&format!("link set rvl{number} up"))?;
        for (name, last) in members.iter().zip(11..) {
            let namespace = network.namespace(name);
            ip(&format!("netns add {namespace}"))?;
            ip(&format!("link add {} type veth peer name eth0 netns {namespace}", network.link(name)))?;
            ip(&format!("link set {} master rvl{number} up", network.link(name)))?;
            ip(&format!("-n {namespace} addr add {}/24 dev eth0", network.address(last)))?;
            ip(&format!("-n {namespace} link set eth0 up"))?;
            ip(&format!("-n {namespace} link set lo up"))?;
        }
        // The receiver and the database have an address each, so that a member can be cut off from one of them.
        for last in [2, 3] {
            ip(&format!("addr add {}/24 dev rvl{number}", network.address(last)))?;
        }
        Ok(network)
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.number, last)
    }

    /// Where clients are.
    fn host(&self) -> Ipv4Addr {
        self.address(1)
    }

    pub(super) fn database(&self) -> Ipv4Addr {
        self.address(2)
    }

    pub(super) fn receiver(&self) -> Ipv4Addr {
        self.address(3)
    }

    /// Of the member that was named at this place.
    pub(super) fn member(&self, place: usize) -> Ipv4Addr {
        self.address(11 + u8::try_from(place).expect("there are few members"))
    }

    pub(super) fn range(&self) -> String {
        format!("{}/24", self.address(0))
    }

    fn namespace(&self, name: &str) -> String {
        format!("rvl{}{name}", self.number)
    }

    fn link(&self, name: &str) -> String {
        format!("rvl{}{name}", self.number)
    }

    /// A command that will run as this member.
    pub(super) fn command(&self, name: &str, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(name)]).arg(program);
        command
    }

    /// Nothing comes or goes any more; no connection is told.
    pub(super) fn cut_off(&self, name: &str) -> anyhow::Result<()> {
        ip(&format!("link set {} down", self.link(name)))
    }

    pub(super) fn rejoin(&self, name: &str) -> anyhow::Result<()> {
        ip(&format!("link set {} up", self.link(name)))
    }

    /// Nothing goes there any more. `is_told`: who tries learns that there is no way; else it just gets no answer.
    pub(super) fn cut_from(&self, name: &str, others: &[Ipv4Addr], is_told: bool) -> anyhow::Result<()> {
        let how = if is_told { "unreachable" } else { "blackhole" };
        for other in others {
            ip(&format!("-n {} route add {how} {other}/32", self.namespace(name)))?;
        }
        Ok(())
    }

    pub(super) fn join_with(&self, name: &str, others: &[Ipv4Addr]) -> anyhow::Result<()> {
        for other in others {
            ip(&format!("-n {} route del {other}/32", self.namespace(name)))?;
        }
        Ok(())
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.guard.end();
    }
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("cannot start ip (iproute2)")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {}", said.trim());
    Ok(())
}

/// A shell that waits for this process's end: the pipe to it is then closed.
struct Guard {
    shell: Child,
    pipe: Option<ChildStdin>,
}

const GUARD: &str = r#"
read -r _
number=$1; shift
for name in "$@"; do
  for pid in $(ip netns pids "rvl$number$name" 2>/dev/null); do kill -KILL "$pid"; done
  ip netns del "rvl$number$name"
done
ip link del "rvl$number"
"#;

impl Guard {
    fn start(number: u8, members: &[&str]) -> anyhow::Result<Guard> {
        use std::os::unix::process::CommandExt;

        let mut command = Command::new("sh");
        command.args(["-c", GUARD, "guard", &number.to_string()]).args(members).current_dir("/");
        // A group of its own: what ends this process from a terminal must not end it.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut shell = command.spawn().context("cannot start sh")?;
        let pipe = shell.stdin.take();
        Ok(Guard { shell, pipe })
    }

    fn end(&mut self) {
        drop(self.pipe.take());
        drop(self.shell.wait());
    }
}
