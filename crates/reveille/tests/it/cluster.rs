//! Tests of clusters of several processes with one PostgreSQL database. The members use this database or a ZooKeeper
//! ensemble for coordination.

mod epochs;
mod run_index;
mod tls;
mod waiting;
mod zookeeper;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_servers::postgres;
use test_servers::zookeeper::Zookeeper;

use crate::TIMEOUT;
use crate::client::{Client, Response, one_shot, rfc3339};
use crate::receiver::{Hit, Receiver};
use crate::server::{BINARY, Server};
use crate::{Stalls, now_millis, until};

/// Cluster under test: a database with a schema, and a folder with the keys and the data folders of the members.
pub(crate) struct TestCluster {
    folder: tempfile::TempDir,
    pub(crate) url: String,
    /// URL of the coordination engine. `None` if the database is the coordination engine.
    coordination: Option<String>,
}

fn run(command: &mut Command) -> Output {
    command.env("NO_COLOR", "1").env_remove("RUST_LOG").output().expect("the binary starts")
}

/// Runs a command that must fail. Returns its standard error.
#[track_caller]
pub(crate) fn failure(command: &mut Command) -> String {
    let output = run(command);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{}{message}", String::from_utf8_lossy(&output.stdout));
    assert!(!message.contains("panicked"), "{message}");
    message
}

fn migrate(url: &str, data: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["store", "migrate", "--allow-egress", "loopback", "--store", url, "--data"]).arg(data);
    command
}

impl TestCluster {
    pub(crate) fn new() -> Self {
        TestCluster::with_coordination(None)
    }

    /// Imports the database into a new data folder, which must fail. Returns the error.
    pub(crate) fn import_failure(&self) -> String {
        let data = self.folder.path().join("imported");
        failure(Command::new(BINARY).args(["import", "--store", &self.url, "--data"]).arg(data))
    }

    /// Runs SQL statements in the database of the cluster, and returns the rows.
    pub(crate) fn sql(&self, statements: &str) -> String {
        postgres::shared().sql(database(&self.url), statements).unwrap()
    }

    /// Creates a cluster that uses a ZooKeeper ensemble for coordination, below a root node of its own.
    fn on_zookeeper(servers: &Zookeeper) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let root = format!("cluster-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        TestCluster::with_coordination(Some(format!("zookeeper://{}/{root}", servers.addresses())))
    }

    fn with_coordination(coordination: Option<String>) -> Self {
        TestCluster::on_database(postgres::shared().create_database().unwrap(), coordination)
    }

    fn on_database(url: String, coordination: Option<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let cluster = TestCluster { folder, url, coordination };
        let mut migrate = migrate(&cluster.url, &cluster.key_folder());
        let output = run(cluster.add_coordination(&mut migrate));
        let message = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(message.contains("created the schema") && message.contains("admin.key"), "{message}");
        cluster
    }

    fn add_coordination<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.args(self.coordination.iter().flat_map(|url| ["--coordination", url]))
    }

    /// Returns the command that migrates the cluster's database again.
    pub(crate) fn migrate(&self) -> Command {
        migrate(&self.url, &self.key_folder())
    }

    /// Returns the name of the cluster's database on the shared server.
    pub(crate) fn database(&self) -> &str {
        self.url.rsplit('/').next().expect("the URL names a database")
    }

    pub(crate) fn data_folder(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn key_folder(&self) -> PathBuf {
        self.folder.path().join("operator")
    }

    pub(crate) fn serve(&self, name: &str) -> Command {
        let mut command = self.serve_without_key(name);
        command.arg("--store-key").arg(self.key_folder().join("store.key"));
        command
    }

    pub(crate) fn serve_without_key(&self, name: &str) -> Command {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--store", &self.url]);
        command.args(["--lease", "2", "--name", name, "--data"]).arg(self.data_folder(name));
        self.add_coordination(&mut command);
        command
    }

    pub(crate) fn start(&self, name: &str) -> Server {
        Server::start_where(self.serve(name), |_| self.key_folder())
    }

    fn status(&self) -> Value {
        let mut command = Command::new(BINARY);
        command.args(["cluster", "status", "--json", "--store", &self.url]);
        let output = run(self.add_coordination(&mut command));
        let error = String::from_utf8_lossy(&output.stderr);
        let status: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{error}"));
        let is_whole = status["shards"].as_array().unwrap().iter().all(|shard| !shard["owner"].is_null());
        assert_eq!(output.status.success(), is_whole, "{error}");
        assert_eq!(error.contains("shards have no owner"), !is_whole, "{error}");
        status
    }

    /// Waits until exactly the members with these names own all shards, in equal shares.
    pub(crate) fn wait_until_balanced(&self, names: &[&str]) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            let status = self.status();
            let owners: Vec<&Value> =
                status["members"].as_array().unwrap().iter().filter(|member| member["owns"] == true).collect();
            let counts: Vec<u64> = owners.iter().map(|member| member["shards"].as_u64().unwrap()).collect();
            let known = names.iter().all(|name| owners.iter().any(|member| member["name"] == *name));
            let even = counts.iter().max().zip(counts.iter().min()).is_some_and(|(most, least)| most - least <= 1);
            if known && owners.len() == names.len() && even && counts.iter().sum::<u64>() == 256 {
                return;
            }
            assert!(Instant::now() < deadline, "the shards are not balanced: {status}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn counts(hits: &[Hit]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for hit in hits {
        *counts.entry(hit.run.clone()).or_default() += 1;
    }
    counts
}

#[test]
fn schedules_fire_exactly_once_during_graceful_stop_of_a_member() {
    share_the_work(&TestCluster::new());
}

fn share_the_work(cluster: &TestCluster) {
    let receiver = Receiver::start();
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    cluster.wait_until_balanced(&["a", "b"]);

    // The test makes all changes first. If it replaced or cancelled a schedule after its callback, the schedule would fire
    // twice or once too often. On a slow machine, the test may create the other schedules after their due instants.
    let from = now_millis() + 6_000;
    let mut clients = [a.client(), b.client()];
    let schedule = |n: u64| one_shot(&format!("n{n}"), from + 10 * n, &receiver.url(), &json!(n));
    for n in [0, 198, 199] {
        let created = clients[usize::from(n % 2 == 0)].create(&schedule(n));
        assert_eq!(created.status, 201, "{}", created.body);
    }
    let again = clients[0].create(&schedule(0));
    assert_eq!(again.status, 409, "{}", again.body);
    let cancelled = clients[1].send("DELETE", "/v1/schedules/n199", "").unwrap();
    assert_eq!((cancelled.status, cancelled.json()["result"].clone()), (200, json!("cancelled")), "{}", cancelled.body);
    let moved = one_shot("n198", from + 100, &receiver.url(), &json!(198)).to_string();
    assert_eq!(clients[0].send("PUT", "/v1/schedules/n198", &moved).unwrap().status, 200);
    assert!(now_millis() < from, "the members took more than 6 s for 6 requests");
    for n in 1..198 {
        let created = clients[usize::from(n % 2 == 0)].create(&schedule(n));
        assert_eq!(created.status, 201, "{}", created.body);
    }

    receiver.wait(|hits| hits.len() >= 60);
    let leads = |status: Value| -> Vec<String> {
        let members = status["members"].as_array().unwrap().clone();
        let leaders = members.iter().filter(|member| member["leads"] == true);
        leaders.map(|member| member["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(leads(cluster.status()).len(), 1, "exactly one member leads");
    assert!(a.stop().success());
    cluster.wait_until_balanced(&["b"]);
    let hits = receiver.wait(|hits| hits.len() >= 199);
    assert!(!hits.iter().any(|hit| hit.schedule == "n199"), "a cancelled schedule fired");
    let runs_of =
        |n: u64| hits.iter().filter(|hit| hit.schedule == format!("n{n}")).map(|hit| &hit.run).collect::<Vec<_>>();
    let not_once: Vec<_> = (0..199).map(|n| (n, runs_of(n))).filter(|(_, runs)| runs.len() != 1).collect();
    assert!(
        not_once.is_empty() && counts(&hits).len() == 199,
        "schedules that did not fire exactly once: {not_once:?}"
    );
    let runs = b.client().get("/v1/schedules/n3/runs").json();
    assert_eq!(runs["runs"][0]["state"], "succeeded", "{runs}");
    let metrics = b.client().get("/metrics").body;
    for counted in [
        "reveille_store_reads_total ",
        "reveille_peer_asks_total{ask=\"create\",outcome=\"answered\"} ",
        "reveille_peer_requests_total{status=\"200\"} ",
    ] {
        let value = metrics.lines().find_map(|line| line.strip_prefix(counted)).expect(counted);
        assert!(value.parse::<u64>().unwrap() > 0, "{counted}{value}");
    }
    assert!(b.stop().success());
}

#[test]
fn killed_member_delays_callbacks_by_little_more_than_its_lease() {
    kill_a_member(&TestCluster::new());
}

fn kill_a_member(cluster: &TestCluster) {
    let receiver = Receiver::start();
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    cluster.wait_until_balanced(&["a", "b"]);
    // On a slow machine, the test may create a schedule after its due instant. The test therefore measures the delay of
    // a callback from the due instant or from the creation, whichever is later.
    let from = now_millis() + 1_000;
    let mut client = b.client();
    let due: Vec<u64> = (0..400)
        .map(|n| {
            let at = from + 10 * n;
            let created = client.create(&one_shot(&format!("n{n}"), at, &receiver.url(), &json!(n)));
            assert_eq!(created.status, 201, "{}", created.body);
            at.max(now_millis())
        })
        .collect();
    receiver.wait(|hits| hits.len() >= 40);
    let stalls = Stalls::watch();
    let killed = now_millis();
    a.kill();
    let hits = receiver.wait(|hits| counts(hits).len() == 400);
    let stalled = stalls.millis();
    let late = hits.iter().map(|hit| {
        let due = due[hit.schedule[1..].parse::<usize>().unwrap()];
        (hit.at_millis.saturating_sub(due), &hit.schedule, hit.at_millis.cast_signed() - killed.cast_signed())
    });
    let (late, which, after) = late.max().unwrap();
    assert!(
        late < 2_000 + 1_000 + 500 + stalled,
        "{which} was {late} ms late, {after} ms after the kill, with a lease of 2 s and {stalled} ms of stalls"
    );
    assert!(hits.len() < 410, "too many duplicates: {} callbacks for 400 schedules", hits.len());
    assert!(b.stop().success());
}

#[test]
fn member_does_only_the_work_of_its_roles() {
    let cluster = TestCluster::new();
    let receiver = Receiver::start();
    let mut api = cluster.serve("api");
    api.args(["--roles", "api"]);
    let api = Server::start_where(api, |_| cluster.key_folder());
    let mut pollers = cluster.serve("pollers");
    pollers.args(["--roles", "pollers"]);
    let pollers = Server::start_where(pollers, |_| cluster.key_folder());
    cluster.wait_until_balanced(&["pollers"]);

    let schedule = one_shot("n1", now_millis() + 300, &receiver.url(), &json!(1));
    let rejected = pollers.client().create(&schedule);
    assert_eq!(rejected.status, 404, "{}", rejected.body);
    assert!(rejected.body.contains("role `api`"), "{}", rejected.body);
    assert_eq!(pollers.client().get("/readyz").status, 200);
    assert_eq!(api.client().create(&schedule).status, 201);
    receiver.wait(|hits| hits.len() == 1);
    assert!(pollers.stop().success() && api.stop().success());
}

#[test]
fn cluster_setup_error_names_a_next_step_and_hides_passwords() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let serve = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver"]).args(arguments).arg("--data").arg(&data);
        command
    };
    let empty = postgres::shared().create_database().unwrap();
    let message = failure(&mut serve(&["--store", &empty]));
    assert!(message.contains("reveille store migrate"), "{message}");

    let message = failure(&mut serve(&["--coordination", &empty]));
    assert!(message.contains("--store postgres://") && message.contains("leave out --coordination"), "{message}");

    let message = failure(&mut serve(&["--store", "mysql://someone:hunter2@db/x"]));
    assert!(message.contains("postgres://") && !message.contains("hunter2"), "{message}");
    let message = failure(&mut serve(&["--store", "postgres://someone:hun@ter2@127.0.0.1:9/reveille"]));
    assert!(message.contains("%40") && !message.contains("ter2"), "{message}");

    let unreachable = "postgres://someone:hunter2@127.0.0.1:9/reveille";
    let message = failure(&mut migrate(unreachable, &data));
    assert!(message.contains("127.0.0.1:9") && !message.contains("hunter2"), "{message}");

    let wrong = empty.replacen("postgres:", "postgres_wrong:", 2).replacen("postgres_wrong://", "postgres://", 1);
    let message = failure(&mut serve(&["--store", &wrong]));
    assert!(!message.contains("hunter2") && message.contains("cannot open the store"), "{message}");

    let cluster = TestCluster::new();
    let message = failure(cluster.serve("a").args(["--peer-listen", "0.0.0.0:0"]));
    assert!(message.contains("--peer-advertise"), "{message}");
    let message = failure(cluster.serve("a").args(["--history-days", "101"]));
    assert!(message.contains("100"), "{message}");
    let message = failure(cluster.serve("a").args(["--peer-advertise", "10.9.9.9"]));
    assert!(message.contains("HOST:PORT"), "{message}");
    let server = cluster.start("a");
    let message = failure(&mut cluster.serve("a"));
    assert!(message.contains("another member") && message.contains("--data"), "{message}");
    assert!(server.stop().success());
    let other = TestCluster::new();
    let message = failure(cluster.serve("b").args(["--coordination", &other.url]));
    assert!(message.contains("another coordination engine") && message.contains("--coordination"), "{message}");
    let mut alone = Command::new(BINARY);
    alone.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--data"]).arg(cluster.folder.path().join("a"));
    let message = failure(&mut alone);
    assert!(message.contains("--store") && !cluster.folder.path().join("a/store").exists(), "{message}");
    assert!(Server::start(&data).stop().success());
    let message = failure(&mut serve(&["--store", &cluster.url]));
    assert!(message.contains("reveille export"), "{message}");
    let mut elsewhere = Command::new(BINARY);
    elsewhere.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--store", &other.url, "--data"]);
    let message = failure(elsewhere.arg(cluster.folder.path().join("a")));
    assert!(message.contains("another cluster") && message.contains("--data"), "{message}");

    postgres::shared().sql(database(&cluster.url), "update reveille.meta set version = 1000").unwrap();
    let message = failure(&mut cluster.serve("b"));
    assert!(message.contains("1000") && message.contains("build"), "{message}");
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

#[test]
fn export_and_import_preserve_schedules_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let (data, back) = (folder.path().join("data"), folder.path().join("back"));
    let receiver = Receiver::start();
    let url = postgres::shared().create_database().unwrap();
    let transfer = |direction: &str, data: &Path| {
        let mut command = Command::new(BINARY);
        command.args([direction, "--store", &url, "--data"]).arg(data);
        command
    };

    let server = Server::start(&data);
    let key = server.key.clone();
    let due = now_millis() + 20_000;
    let mut client = server.client();
    for n in 0..20_u64 {
        let mut schedule = one_shot(&format!("n{n}"), due, &receiver.url(), &json!(n));
        schedule["target"]["http"]["headers"] = json!({ "authorization": format!("Bearer {n}") });
        assert_eq!(client.create(&schedule).status, 201);
    }
    let nowhere = json!({
        "id": "dead", "at": rfc3339(now_millis() + 100), "retry": { "attempts_max": 1 },
        "target": { "http": { "url": "http://127.0.0.1:9/" } },
    });
    assert_eq!(client.create(&nowhere).status, 201);
    let every = json!({ "id": "every", "every": "1h", "target": { "http": { "url": receiver.url() } } });
    assert_eq!(client.create(&every).status, 201);
    let before = client.get("/v1/schedules/every").json();
    until("the dead letter appears", || {
        client.get("/v1/runs?dead_letter=true").json()["runs"].as_array().is_some_and(|runs| !runs.is_empty())
    });
    let dead = client.get("/v1/runs?dead_letter=true").json()["runs"][0].clone();
    let message = failure(&mut transfer("export", &data));
    assert!(message.contains("in use by another Reveille"), "{message}");
    assert!(server.stop().success());

    let exported = run(&mut transfer("export", &data));
    let message = String::from_utf8_lossy(&exported.stdout).into_owned();
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    assert!(message.contains("1 tenants, 22 schedules") && message.contains("1 runs"), "{message}");
    let message = failure(&mut transfer("export", &data));
    assert!(message.contains("copy to an empty store"), "{message}");
    let message = failure(&mut transfer("export", &back));
    assert!(message.contains("contains no Reveille data") && !back.exists(), "{message}");
    // After the export, a server must not start on the data folder, because the server and the cluster would send the
    // same callbacks.
    let message = failure(&mut crate::server::serve(&data));
    assert!(message.contains("exported") && message.contains("--store"), "{message}");

    let mut member = Command::new(BINARY);
    member.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--store", &url, "--data"]);
    member.arg(folder.path().join("member")).arg("--store-key").arg(data.join("store.key"));
    let member = Server::start_where(member, |_| data.clone());
    assert_eq!(member.key, key);
    let message = failure(&mut transfer("import", &back));
    assert!(message.contains("stop the members"), "{message}");
    let mut client = member.client();
    assert_eq!(client.get("/v1/schedules/every").json(), before);
    assert_eq!(client.get("/v1/runs?dead_letter=true").json()["runs"][0], dead);
    let cancelled = client.send("DELETE", "/v1/schedules/n0", "").unwrap();
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    receiver.wait(|hits| hits.len() >= 19);
    assert!(member.stop().success());

    let imported = run(&mut transfer("import", &back));
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let message = failure(&mut crate::server::serve(&back));
    assert!(message.contains("missing key file"), "{message}");
    std::fs::copy(data.join("store.key"), back.join("store.key")).unwrap();
    let server = Server::start_where(crate::server::serve(&back), |_| data.clone());
    let mut client = server.client();
    assert_eq!(client.get("/v1/schedules/every").json(), before);
    assert_eq!(client.get("/v1/runs?dead_letter=true").json()["runs"][0], dead);
    assert!(server.stop().success());
    let hits = receiver.hits();
    assert_eq!((counts(&hits).len(), hits.len()), (19, 19), "each schedule fires once");
    assert!(
        hits.iter().all(|hit| hit.authorization == format!("Bearer {}", hit.body)),
        "each callback has its decrypted header"
    );
}

#[test]
fn leader_deletes_ended_schedules_older_than_history_limit() {
    let cluster = TestCluster::new();
    let receiver = Receiver::start();
    let server = cluster.start("a");
    cluster.wait_until_balanced(&["a"]);
    let mut client = server.client();
    for id in ["old", "young"] {
        assert_eq!(client.create(&one_shot(id, now_millis() + 3_600_000, &receiver.url(), &json!(id))).status, 201);
        assert_eq!(client.send("DELETE", &format!("/v1/schedules/{id}"), "").unwrap().status, 200);
    }
    assert!(server.stop().success());
    let age =
        "update reveille.schedule set ended_at = ended_at - 86400000::bigint * case id when 'old' then 31 else 29 end";
    postgres::shared().sql(database(&cluster.url), age).unwrap();

    let is_forgotten = |server: &Server, id: &str| {
        let is_logged = |line: &str| line.contains("housekeeping dropped").then_some(());
        server.log.wait(is_logged).expect("the log reports the deletion");
        assert_eq!(server.client().get(&format!("/v1/schedules/{id}")).status, 404, "{id}");
    };
    let server = cluster.start("b");
    is_forgotten(&server, "old");
    assert_eq!(server.client().get("/v1/schedules/young").json()["state"], "cancelled");
    assert!(server.stop().success());

    // This member retains a shorter history than the previous member, so it also deletes the schedule `young`.
    let mut command = cluster.serve("c");
    command.args(["--history-days", "28"]);
    let server = Server::start_where(command, |_| cluster.key_folder());
    is_forgotten(&server, "young");
    assert!(server.stop().success());
}

#[test]
fn tenant_and_key_changes_reach_all_members() {
    let cluster = TestCluster::new();
    let receiver = Receiver::start();
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    cluster.wait_until_balanced(&["a", "b"]);
    let operator = std::fs::read_to_string(cluster.key_folder().join("operator.key")).unwrap();
    let mut at_a = Client::connect(a.address, operator.trim()).unwrap();
    let created = at_a.send("POST", "/v1/tenants", r#"{"name":"billing","egress":{"allow":["loopback"]}}"#).unwrap();
    assert_eq!(created.status, 201, "{}", created.body);
    let tenant = created.json();
    let key = tenant["key"]["secret"].as_str().unwrap();
    let read = |server: &Server| Client::connect(server.address, key).unwrap().get("/v1/runs?dead_letter=true").status;
    assert_eq!(read(&a), 200, "the member that created the tenant accepts its key immediately");
    let await_status = |status: u16, server: &Server| until(&format!("status {status}"), || read(server) == status);
    await_status(200, &b);

    // Each member that owns a poller of the new tenant must accept schedules of this tenant.
    let mut at_b = Client::connect(b.address, key).unwrap();
    for n in 0..20 {
        let created = at_b.create(&one_shot(&format!("n{n}"), now_millis() + 200, &receiver.url(), &json!(n)));
        assert_eq!(created.status, 201, "{}", created.body);
    }
    let hits = receiver.wait(|hits| hits.len() >= 20);
    assert_eq!(counts(&hits).len(), 20);

    let id = tenant["key"]["id"].as_str().unwrap();
    let mut at_b = Client::connect(b.address, operator.trim()).unwrap();
    let path = format!("/v1/tenants/billing/keys/{id}");
    let revoked = at_b.send("DELETE", &path, "").unwrap();
    assert_eq!(revoked.status, 200, "{}", revoked.body);
    assert_eq!(read(&b), 401, "the member that revoked the key rejects it immediately");
    await_status(401, &a);
    assert!(a.stop().success() && b.stop().success());
}

/// Sends one request to each of two members at the same time. Both requests have the header `header`.
fn at_both(members: [&Server; 2], header: (&str, &str), method: &str, path: &str, bodies: [&str; 2]) -> [Response; 2] {
    std::thread::scope(|scope| {
        let send = |member: usize| {
            let mut client = members[member].client().with_header(header.0, header.1);
            scope.spawn(move || client.send(method, path, bodies[member]).unwrap())
        };
        [send(0), send(1)].map(|sent| sent.join().unwrap())
    })
}

#[test]
fn shard_owner_checks_the_preconditions_of_forwarded_requests() {
    let cluster = TestCluster::new();
    let receiver = Receiver::start();
    let (a, b) = (cluster.start("a"), cluster.start("b"));
    cluster.wait_until_balanced(&["a", "b"]);
    let members = [&a, &b];
    let far = now_millis() + 3_600_000;
    let statuses = |responses: &[Response; 2]| {
        let mut statuses = [responses[0].status, responses[1].status];
        statuses.sort_unstable();
        statuses
    };
    // With twelve ids, each of the two members owns some of the schedules.
    for n in 0..12 {
        let (path, schedule) =
            (format!("/v1/schedules/n{n}"), one_shot(&format!("n{n}"), far, &receiver.url(), &json!(n)));
        let schedule = schedule.to_string();
        let created = at_both(members, ("If-None-Match", "*"), "PUT", &path, [&schedule, &schedule]);
        assert_eq!(statuses(&created), [201, 412], "{created:?}");

        let labels = [r#"{"labels":{"a":"1"}}"#, r#"{"labels":{"b":"2"}}"#];
        let patched = at_both(members, ("X-Nothing", "-"), "PATCH", &path, labels);
        assert_eq!(statuses(&patched), [200, 200], "{patched:?}");
        let now = b.client().get(&path);
        assert_eq!((&now.json()["labels"], &now.json()["revision"]), (&json!({ "a": "1", "b": "2" }), &json!(2)));

        let tag = now.etag.unwrap();
        let patched = at_both(members, ("If-Match", &tag), "PATCH", &path, labels);
        assert_eq!(statuses(&patched), [200, 412], "{patched:?}");
        let stale = at_both(members, ("If-Match", &tag), "DELETE", &path, ["", ""]);
        assert_eq!(statuses(&stale), [412, 412], "{stale:?}");

        let key = format!("key-{n}");
        let schedule = json!({ "every": "1h", "target": { "http": { "url": receiver.url() } } }).to_string();
        let twice = at_both(members, ("Idempotency-Key", &key), "POST", "/v1/schedules", [&schedule, &schedule]);
        assert_eq!(
            (twice[0].status, &twice[0].body, &twice[0].etag),
            (201, &twice[1].body, &twice[1].etag),
            "{twice:?}"
        );
        let other = schedule.replace("1h", "2h");
        let reused = at_both(members, ("Idempotency-Key", &key), "POST", "/v1/schedules", [&other, &other]);
        assert_eq!(statuses(&reused), [422, 422], "{reused:?}");
    }
    for (n, member) in (0..12).zip(members.into_iter().cycle()) {
        let (path, soon) = (format!("/v1/schedules/n{n}"), rfc3339(now_millis() + 300));
        if n % 3 == 0 {
            let tag = member.client().get(&path).etag.unwrap();
            let cancelled = member.client().with_header("If-Match", &tag).send("DELETE", &path, "").unwrap();
            assert_eq!((cancelled.status, &cancelled.json()["result"]), (200, &json!("cancelled")));
        } else {
            let moved = member.client().send("PATCH", &path, &json!({ "at": soon }).to_string()).unwrap();
            assert_eq!(moved.status, 200, "{}", moved.body);
        }
    }
    let hits = receiver.wait(|hits| hits.len() >= 8);
    assert_eq!((counts(&hits).len(), hits.len()), (8, 8), "moved schedules fire once, cancelled ones never");
    assert!(a.stop().success() && b.stop().success());
}
