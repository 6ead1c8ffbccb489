//! Apache Kafka for tests: one broker, or a cluster of several brokers. Each broker is also a KRaft controller.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Condvar, Mutex, OnceLock};

use anyhow::{Context, ensure};
use rustix::process::Signal;

use crate::certificate::Authority;
use crate::guard::Guard;
use crate::port::free_port;
use crate::process::{GUARD, Process, start_on_free_ports};
use crate::{Proxy, java};

/// User of SASL and its password, on the secure port.
pub const USER: (&str, &str) = ("ann", "correct horse battery");
/// Number of proxies in front of a broker.
const DOORS: usize = 8;
/// Identifier of every cluster.
const CLUSTER: &str = "cmV2ZWlsbGUtdGVzdHMtMQ";

/// Kafka brokers that belong to this process. A drop of this value stops the brokers and deletes their folder.
#[derive(Debug)]
pub struct Kafka {
    jars: PathBuf,
    /// Address on which the brokers listen for clients.
    address: Ipv4Addr,
    brokers: Vec<Broker>,
    /// Proxies that no test uses now.
    doors: Mutex<Vec<Proxy>>,
    returned: Condvar,
    guard: Guard,
}

#[derive(Debug)]
struct Broker {
    process: Process,
    port: u16,
    secure_port: u16,
}

/// Proxy in front of the first broker. A client that starts here reaches the broker only through this proxy. The proxy
/// goes back to the pool of its broker at the end of this value.
#[derive(Debug)]
pub struct Door {
    kafka: &'static Kafka,
    proxy: Option<Proxy>,
}

/// Returns the shared single broker of this process. The first caller starts the broker. The broker ends soon after the
/// process.
///
/// # Panics
/// Panics if the broker does not start, because no test that needs the broker can run.
pub fn shared() -> &'static Kafka {
    static SHARED: OnceLock<Kafka> = OnceLock::new();
    SHARED.get_or_init(|| Kafka::start(1).expect("Java and Maven are installed, and Kafka starts"))
}

impl Kafka {
    /// Starts a cluster of `count` brokers. Returns when the cluster serves requests.
    ///
    /// # Errors
    /// Returns an error if Java or Maven is not installed, or if Kafka does not start. If a broker does not start, the
    /// error contains its log.
    pub fn start(count: usize) -> anyhow::Result<Kafka> {
        Kafka::start_on(Ipv4Addr::LOCALHOST, count)
    }

    /// Starts a cluster whose brokers listen for clients on `address`. Their ports for TLS and for proxies remain on
    /// 127.0.0.1.
    ///
    /// # Errors
    /// Returns the same errors as [`Kafka::start`].
    pub fn start_on(address: Ipv4Addr, count: usize) -> anyhow::Result<Kafka> {
        let pom = Path::new(env!("CARGO_MANIFEST_DIR")).join("java/kafka/pom.xml");
        let jars = java::jars("kafka", &pom)?;
        start_on_free_ports(|| Kafka::try_start(&jars, address, count))
    }

    fn try_start(jars: &Path, address: Ipv4Addr, count: usize) -> anyhow::Result<Kafka> {
        let folder = tempfile::Builder::new().prefix("reveille-kafka-").tempdir()?.keep();
        let guard = Guard::start(&folder, GUARD)?;
        let mut controllers = Vec::new();
        for _ in 0..count {
            controllers.push(free_port()?);
        }
        let (mut brokers, mut doors) = (Vec::new(), Vec::new());
        for at in 0..count {
            let own = folder.join((at + 1).to_string());
            fs::create_dir_all(&own)?;
            let (port, secure_port) = (free_port()?, free_port()?);
            let mut addresses = Addresses { address, port, secure_port, doors: Vec::new() };
            // Clients reach the brokers of a cluster only directly.
            for _ in 0..if count == 1 { DOORS } else { 0 } {
                let port = free_port()?;
                let proxy = Proxy::start(SocketAddr::from(([127, 0, 0, 1], port)))?;
                addresses.doors.push((port, proxy.address().port()));
                doors.push(proxy);
            }
            fs::write(own.join("server.properties"), addresses.properties(&own, at, &controllers)?)?;
            brokers.push(Broker { process: Process::new("Kafka", own), port, secure_port });
        }
        brokers.iter().try_for_each(|broker| broker.format(jars, &controllers))?;
        let (jars, doors) = (jars.to_owned(), Mutex::new(doors));
        let kafka = Kafka { jars, address, brokers, doors, returned: Condvar::new(), guard };
        kafka.brokers.iter().try_for_each(|broker| broker.spawn(&kafka.jars))?;
        kafka.brokers.iter().try_for_each(|broker| broker.wait(1))?;
        Ok(kafka)
    }

    /// Returns the `HOST:PORT` of each broker, separated by commas.
    #[must_use]
    pub fn addresses(&self) -> String {
        let address = |broker: &Broker| format!("{}:{}", self.address, broker.port);
        self.brokers.iter().map(address).collect::<Vec<String>>().join(",")
    }

    /// Returns the `HOST:PORT` of the first broker's port that requires TLS and SASL.
    #[must_use]
    pub fn secure_address(&self) -> String {
        format!("localhost:{}", self.brokers[0].secure_port)
    }

    /// Returns the path of the certificate that the first broker's clients must trust.
    #[must_use]
    pub fn root_certificate(&self) -> PathBuf {
        self.brokers[0].process.folder().join("root.crt")
    }

    /// Returns a proxy that no other test uses. Waits until one is free.
    ///
    /// # Panics
    /// Panics if this is a cluster of several brokers.
    pub fn door(&'static self) -> Door {
        assert_eq!(self.brokers.len(), 1, "only a single broker has proxies");
        let doors = self.doors.lock().expect("no thread panics while it holds this lock");
        let doors = self.returned.wait_while(doors, |doors| doors.is_empty());
        let proxy = doors.expect("no thread panics while it holds this lock").pop();
        Door { kafka: self, proxy }
    }

    /// Sends `count` records to a partition of a topic in one transaction, with Kafka's own tool.
    ///
    /// # Errors
    /// Returns an error with the output of the tool if it fails.
    pub fn send_transaction(&self, topic: &str, count: u32) -> anyhow::Result<()> {
        let mut command = command(&self.jars);
        command.args(["org.apache.kafka.tools.ProducerPerformance", "--topic", topic, "--record-size", "10"]);
        command.args(["--num-records", &count.to_string(), "--throughput", "-1", "--transactional-id", topic]);
        command.args(["--transaction-duration-ms", "60000", "--producer-props"]);
        let output = command.arg(format!("bootstrap.servers={}", self.addresses())).output()?;
        let text = [output.stdout, output.stderr].concat();
        ensure!(output.status.success(), "cannot send a transaction:\n{}", String::from_utf8_lossy(&text));
        Ok(())
    }

    /// Creates a topic with one replica, whose records have the time at which the broker stored them.
    ///
    /// # Errors
    /// Returns an error with the output of Kafka's tool if it fails.
    pub fn create_topic_with_times_of_storage(&self, topic: &str, partitions: u32) -> anyhow::Result<()> {
        let mut command = command(&self.jars);
        command.args(["org.apache.kafka.tools.TopicCommand", "--create", "--topic", topic, "--partitions"]);
        command.args([&partitions.to_string(), "--replication-factor", "1", "--config"]);
        command.args(["message.timestamp.type=LogAppendTime", "--bootstrap-server", &self.addresses()]);
        let output = command.output()?;
        let text = [output.stdout, output.stderr].concat();
        ensure!(output.status.success(), "cannot create the topic {topic}:\n{}", String::from_utf8_lossy(&text));
        Ok(())
    }

    /// Pauses the broker with the index `at`. Its connections stay open, but it responds to no request.
    ///
    /// # Errors
    /// Returns an error if the broker is not running.
    pub fn pause(&self, at: usize) -> anyhow::Result<()> {
        self.brokers[at].process.signal(Signal::STOP)
    }

    /// Resumes the broker after [`Kafka::pause`].
    ///
    /// # Errors
    /// Returns an error if the broker is not running.
    pub fn resume(&self, at: usize) -> anyhow::Result<()> {
        self.brokers[at].process.signal(Signal::CONT)
    }

    /// Kills the broker with the index `at` with SIGKILL. Does nothing if the broker is stopped.
    ///
    /// # Errors
    /// Returns an error if this method cannot kill the broker.
    pub fn kill(&self, at: usize) -> anyhow::Result<()> {
        self.brokers[at].process.kill()
    }

    /// Ends the broker with the index `at` gracefully. Does nothing if the broker is stopped.
    ///
    /// # Errors
    /// Returns an error if this method cannot end the broker.
    pub fn stop(&self, at: usize) -> anyhow::Result<()> {
        self.brokers[at].process.stop()
    }

    /// Starts the broker with the index `at` with the same data and ports. Kills the broker first if it is running.
    /// Returns when the broker serves requests.
    ///
    /// # Errors
    /// Returns an error if the broker does not start. The error contains the broker's log.
    pub fn restart(&self, at: usize) -> anyhow::Result<()> {
        let broker = &self.brokers[at];
        let starts = broker.starts();
        self.kill(at)?;
        broker.spawn(&self.jars)?;
        broker.wait(starts + 1)
    }
}

impl Deref for Door {
    type Target = Proxy;

    fn deref(&self) -> &Proxy {
        self.proxy.as_ref().expect("only the drop of this value takes the proxy")
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        // A connection that has lost data must not live on.
        self.cut(false);
        self.kafka.doors.lock().expect("no thread panics while it holds this lock").extend(self.proxy.take());
        self.kafka.returned.notify_one();
    }
}

impl Broker {
    /// Writes the metadata of the new cluster, and the user.
    fn format(&self, jars: &Path, controllers: &[u16]) -> anyhow::Result<()> {
        let mut command = command(jars);
        command.args(["kafka.tools.StorageTool", "format", "--cluster-id", CLUSTER, "--config"]);
        command.arg(self.process.folder().join("server.properties"));
        for mechanism in ["SCRAM-SHA-256", "SCRAM-SHA-512"] {
            command.arg("--add-scram").arg(format!("{mechanism}=[name={},password=\"{}\"]", USER.0, USER.1));
        }
        let voters: Vec<String> = controllers.iter().zip(1..).map(|(port, id)| voter(id, *port)).collect();
        command.arg("--initial-controllers").arg(voters.join(","));
        let output = command.output().context("cannot start java; install the package `default-jdk-headless`")?;
        let text = [output.stdout, output.stderr].concat();
        ensure!(output.status.success(), "cannot format Kafka's storage:\n{}", String::from_utf8_lossy(&text));
        Ok(())
    }

    fn spawn(&self, jars: &Path) -> anyhow::Result<()> {
        let mut command = command(jars);
        command.arg("kafka.Kafka").arg(self.process.folder().join("server.properties"));
        self.process.spawn(command)
    }

    /// Returns the number of times that the broker has started to serve requests.
    fn starts(&self) -> usize {
        self.process.log().matches("Kafka Server started").count()
    }

    fn wait(&self, starts: usize) -> anyhow::Result<()> {
        self.process.wait_until(|| self.starts() >= starts)
    }
}

/// Returns a `java` command for Kafka that does not log all settings.
fn command(jars: &Path) -> Command {
    let mut command = java::command(&[jars]);
    command.arg("-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config=warn");
    command
}

/// Returns the description of a controller for the first start of a cluster.
fn voter(id: usize, port: u16) -> String {
    // The directory identifier must be a UUID in Base64. Every cluster may use the same ones.
    format!("{id}@127.0.0.1:{port}:cmV2ZWlsbGUtdGVzdHMtM{}", ["Q", "g", "w"][id - 1])
}

/// Addresses of one broker.
struct Addresses {
    /// Address of `port`.
    address: Ipv4Addr,
    port: u16,
    secure_port: u16,
    /// Port of the broker, and port of the proxy in front of it.
    doors: Vec<(u16, u16)>,
}

impl Addresses {
    /// Writes the broker's certificate into its folder. Returns the broker's configuration.
    fn properties(&self, folder: &Path, at: usize, controllers: &[u16]) -> anyhow::Result<String> {
        let authority = Authority::create(folder)?;
        authority.issue(folder, "server")?;
        let keys = [fs::read(folder.join("server.key"))?, fs::read(folder.join("server.crt"))?].concat();
        fs::write(folder.join("server.pem"), keys)?;

        let (own, count) = (controllers[at], controllers.len());
        let quorum: Vec<String> = controllers.iter().map(|port| format!("127.0.0.1:{port}")).collect();
        let mut listeners = format!(
            "PLAIN://{}:{},SECURE://127.0.0.1:{},CONTROLLER://127.0.0.1:{own}",
            self.address, self.port, self.secure_port
        );
        let mut advertised = format!("PLAIN://{}:{},SECURE://localhost:{}", self.address, self.port, self.secure_port);
        let mut protocols = "PLAIN:PLAINTEXT,SECURE:SASL_SSL,CONTROLLER:PLAINTEXT".to_owned();
        for (door, (port, proxy)) in self.doors.iter().enumerate() {
            write!(listeners, ",DOOR{door}://127.0.0.1:{port}")?;
            write!(advertised, ",DOOR{door}://127.0.0.1:{proxy}")?;
            write!(protocols, ",DOOR{door}:PLAINTEXT")?;
        }
        let replicas = count.min(3);
        Ok(format!(
            "process.roles=broker,controller\nnode.id={id}\n\
             controller.quorum.bootstrap.servers={quorum}\nlisteners={listeners}\nadvertised.listeners={advertised}\n\
             listener.security.protocol.map={protocols}\ninter.broker.listener.name=PLAIN\n\
             controller.listener.names=CONTROLLER\nlog.dirs={logs}\n\
             default.replication.factor={replicas}\nmin.insync.replicas={in_sync}\n\
             offsets.topic.replication.factor={replicas}\noffsets.topic.num.partitions=4\n\
             transaction.state.log.replication.factor={replicas}\ntransaction.state.log.min.isr={in_sync}\n\
             transaction.state.log.num.partitions=4\nshare.coordinator.state.topic.replication.factor={replicas}\n\
             num.network.threads=1\nnum.io.threads=4\nlog.cleaner.dedupe.buffer.size=10000000\n\
             broker.session.timeout.ms=3000\nbroker.heartbeat.interval.ms=500\n\
             group.initial.rebalance.delay.ms=0\ngroup.min.session.timeout.ms=100\n\
             sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512\n\
             ssl.keystore.type=PEM\nssl.keystore.location={keys}\n\
             listener.name.secure.plain.sasl.jaas.config=\
             org.apache.kafka.common.security.plain.PlainLoginModule required user_{user}=\"{password}\";\n\
             listener.name.secure.scram-sha-256.sasl.jaas.config=\
             org.apache.kafka.common.security.scram.ScramLoginModule required;\n\
             listener.name.secure.scram-sha-512.sasl.jaas.config=\
             org.apache.kafka.common.security.scram.ScramLoginModule required;\n",
            id = at + 1,
            quorum = quorum.join(","),
            logs = folder.join("data").display(),
            in_sync = replicas.div_ceil(2),
            keys = folder.join("server.pem").display(),
            user = USER.0,
            password = USER.1,
        ))
    }
}

impl Drop for Kafka {
    fn drop(&mut self) {
        for broker in &self.brokers {
            drop(broker.process.kill());
        }
        self.guard.stop();
    }
}

/// Returns the command that starts `tools/kafka-java`, the program with Kafka's Java client. The caller adds arguments.
///
/// # Errors
/// Returns an error if Java or Maven is not installed, or if the program does not compile.
pub fn java_peer() -> anyhow::Result<Command> {
    java_program("KafkaPeer", "kafka-java-classes")
}

/// Returns the command that starts `tools/kafka-java/KafkaRecipes.java`, a member of the recipes of the crate `bus`. The
/// caller adds arguments.
///
/// # Errors
/// Returns the same errors as [`java_peer`].
pub fn java_member() -> anyhow::Result<Command> {
    java_program("KafkaRecipes", "kafka-recipes-classes")
}

/// Returns the command that starts a program of `tools/kafka-java`. `cached` is the name of the cache entry of its classes.
fn java_program(name: &str, cached: &str) -> anyhow::Result<Command> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let jars = java::jars("kafka", &root.join("java/kafka/pom.xml"))?;
    let source = root.join(format!("../../tools/kafka-java/{name}.java"));
    let classes = java::classes(cached, &jars, &source)?;
    let mut command = java::command(&[&classes, &jars]);
    command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", name]);
    Ok(command)
}

/// Returns the command with which benchmarks start `tools/kafka-java/KafkaBench.java`. The command contains no arguments
/// for the program and uses Java's default settings.
///
/// # Errors
/// Returns the same errors as [`java_peer`].
pub fn bench_command() -> anyhow::Result<Vec<String>> {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/kafka-java");
    let jars = java::jars("kafka-bench", &tool.join("pom.xml"))?;
    let classes = java::classes("kafka-bench-classes", &jars, &tool.join("KafkaBench.java"))?;
    let path = format!("{}:{}/*", classes.display(), jars.display());
    Ok(["java", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", &path, "KafkaBench"].map(str::to_owned).into())
}
