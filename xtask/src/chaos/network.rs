//! Network namespaces of the members. All namespaces share one bridge, and each member has its own address. The harness
//! can cut a member off from some or all other processes, with or without an error on the member's connections.
//!
//! Invariant: soon after this process ends for any reason, a shell removes the namespaces, the processes in them and
//! the bridge.

use std::net::Ipv4Addr;
use std::process::{Child, ChildStdin, Command, Stdio};

use anyhow::{Context, bail, ensure};

pub(super) struct Network {
    number: u8,
    guard: Guard,
}

impl Network {
    /// Creates the bridge and the namespaces. Requires root.
    ///
    /// # Errors
    /// Returns an error if the kernel or the user's rights do not allow network namespaces.
    pub(super) fn create(members: &[&str]) -> anyhow::Result<Network> {
        ensure!(
            rustix::process::geteuid().is_root(),
            "only root may create the network namespaces of the members; run this command as root"
        );
        let Some(number) = (1..=200).find(|number| ip(&format!("link add rvl{number} type bridge")).is_ok()) else {
            bail!("cannot create a network bridge; install iproute2 and grant the capability CAP_NET_ADMIN");
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
        // The receiver, the databases, the ensemble and the message bus have separate addresses, so that a fault can
        // cut a member off from one of them.
        for last in [2, 3, 4, 5, 6] {
            ip(&format!("addr add {}/24 dev rvl{number}", network.address(last)))?;
        }
        Ok(network)
    }

    fn address(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.number, last)
    }

    /// Returns the address from which the clients connect to the members.
    fn host(&self) -> Ipv4Addr {
        self.address(1)
    }

    /// Returns the addresses of the primary and of its standby, whose roles change.
    pub(super) fn databases(&self) -> [Ipv4Addr; 2] {
        [self.address(2), self.address(4)]
    }

    pub(super) fn receiver(&self) -> Ipv4Addr {
        self.address(3)
    }

    pub(super) fn ensemble(&self) -> Ipv4Addr {
        self.address(5)
    }

    /// Returns the address of the broker of the message bus.
    pub(super) fn bus(&self) -> Ipv4Addr {
        self.address(6)
    }

    /// Returns the address of the member with this index.
    pub(super) fn member(&self, index: usize) -> Ipv4Addr {
        self.address(11 + u8::try_from(index).expect("the member's index fits into the last byte of an address"))
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

    /// Returns a command that runs in this member's namespace.
    pub(super) fn command(&self, name: &str, program: &std::path::Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(name)]).arg(program);
        command
    }

    /// Cuts the member off from all other processes. Its connections receive no error.
    pub(super) fn cut_off(&self, name: &str) -> anyhow::Result<()> {
        ip(&format!("link set {} down", self.link(name)))
    }

    pub(super) fn rejoin(&self, name: &str) -> anyhow::Result<()> {
        ip(&format!("link set {} up", self.link(name)))
    }

    /// Drops all packets from the member to `others`. If `is_unreachable` is true, the member receives an error when it
    /// sends a packet. Otherwise the member receives no response.
    pub(super) fn cut_from(&self, name: &str, others: &[Ipv4Addr], is_unreachable: bool) -> anyhow::Result<()> {
        let route = if is_unreachable { "unreachable" } else { "blackhole" };
        for other in others {
            ip(&format!("-n {} route add {route} {other}/32", self.namespace(name)))?;
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
        self.guard.stop();
    }
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output().context("cannot start ip (iproute2)")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {}", errors.trim());
    Ok(())
}

/// Shell that waits until this process ends, and then removes the namespaces and the bridge. The end of the process
/// closes the pipe between the process and the shell.
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
        // The shell has a separate process group, so that a signal from the terminal stops this process but not the
        // shell.
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let mut shell = command.spawn().context("cannot start sh")?;
        let pipe = shell.stdin.take();
        Ok(Guard { shell, pipe })
    }

    fn stop(&mut self) {
        drop(self.pipe.take());
        drop(self.shell.wait());
    }
}
