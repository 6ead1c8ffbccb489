//! Several processes over one PostgreSQL, which meet there or in a ZooKeeper: what a cluster promises, and how it refuses.

mod zookeeper;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use test_servers::postgres;
use test_servers::zookeeper::Zookeeper;

use crate::PATIENCE;
use crate::client::{Answer, Client, one_shot, rfc3339};
use crate::receiver::{Hit, Receiver};
use crate::server::{BINARY, Server};
use crate::{Stalls, now_millis, until};

/// A database with its schema, and a folder with its key.
pub(crate) struct Home {
    folder: tempfile::TempDir,
    url: String,
    /// Where its members meet, if not in the database.
    coordination: Option<String>,
}

fn run(command: &mut Command) -> Output {
    command.env("NO_COLOR", "1").env_remove("RUST_LOG").output().expect("the binary starts")
}

/// What a command that must fail says.
#[track_caller]
fn refusal(command: &mut Command) -> String {
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{}{said}", String::from_utf8_lossy(&output.stdout));
    assert!(!said.contains("panicked"), "{said}");
    said
}

fn migrate(url: &str, data: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["store", "migrate", "--allow-egress", "loopback", "--store", url, "--data"]).arg(data);
    command
}

impl Home {
    pub(crate) fn new() -> Self {
        Home::whose_members_meet(None)
    }

    /// Below a root of this home's own.
    fn on_zookeeper(servers: &Zookeeper) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let root = format!("cluster-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Home::whose_members_meet(Some(format!("zookeeper://{}/{root}", servers.addresses())))
    }

    fn whose_members_meet(coordination: Option<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = postgres::shared().create_database().unwrap();
        let home = Home { folder, url, coordination };
        let mut migrate = migrate(&home.url, &home.key_folder());
        let output = run(home.meeting(&mut migrate));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("made the schema") && said.contains("admin.key"), "{said}");
        home
    }

    fn meeting<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        command.args(self.coordination.iter().flat_map(|url| ["--coordination", url]))
    }

    fn key_folder(&self) -> PathBuf {
        self.folder.path().join("operator")
    }

    fn serve(&self, name: &str) -> Command {
        let mut command = self.serve_without_key(name);
        command.arg("--store-key").arg(self.key_folder().join("store.key"));
        command
    }

    pub(crate) fn serve_without_key(&self, name: &str) -> Command {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--store", &self.url]);
        command.args(["--lease", "2", "--name", name, "--data"]).arg(self.folder.path().join(name));
        self.meeting(&mut command);
        command
    }

    pub(crate) fn start(&self, name: &str) -> Server {
        Server::start_where(self.serve(name), |_| self.key_folder())
    }

    fn status(&self) -> Value {
        let mut command = Command::new(BINARY);
        command.args(["cluster", "status", "--json", "--store", &self.url]);
        let output = run(self.meeting(&mut command));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Waits until the members named, and no others, own all shards in even shares.
    pub(crate) fn settle(&self, names: &[&str]) {
        let deadline = Instant::now() + PATIENCE;
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
            assert!(Instant::now() < deadline, "the shards are not shared out: {status}");
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
fn members_share_the_work_take_any_request_and_a_polite_stop_doubles_nothing() {
    share_the_work(&Home::new());
}

fn share_the_work(home: &Home) {
    let receiver = Receiver::start();
    let (a, b) = (home.start("a"), home.start("b"));
    home.settle(&["a", "b"]);

    // After all are made, on a slow machine, too: one that has fired and is moved fires twice.
    let from = now_millis() + 6_000;
    let mut clients = [a.client(), b.client()];
    for n in 0..200_u64 {
        let schedule = one_shot(&format!("n{n}"), from + 10 * n, &receiver.url(), &json!(n));
        let created = clients[usize::from(n % 2 == 0)].create(&schedule);
        assert_eq!(created.status, 201, "{}", created.body);
    }
    let again = clients[0].create(&one_shot("n0", from, &receiver.url(), &json!(0)));
    assert_eq!(again.status, 409, "{}", again.body);
    let cancelled = clients[1].send("DELETE", "/v1/schedules/n199", "").unwrap();
    assert_eq!((cancelled.status, cancelled.json()["result"].clone()), (200, json!("cancelled")), "{}", cancelled.body);
    let moved = one_shot("n198", from + 100, &receiver.url(), &json!(198)).to_string();
    assert_eq!(clients[0].send("PUT", "/v1/schedules/n198", &moved).unwrap().status, 200);
    assert!(now_millis() < from, "this machine is too slow for what comes");

    receiver.wait(|hits| hits.len() >= 60);
    let leads = |status: Value| -> Vec<String> {
        let members = status["members"].as_array().unwrap().clone();
        let leaders = members.iter().filter(|member| member["leads"] == true);
        leaders.map(|member| member["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(leads(home.status()).len(), 1, "one member leads");
    assert!(a.stop().success());
    home.settle(&["b"]);
    let hits = receiver.wait(|hits| hits.len() >= 199);
    assert!(!hits.iter().any(|hit| hit.schedule == "n199"), "it was cancelled");
    let runs_of =
        |n: u64| hits.iter().filter(|hit| hit.schedule == format!("n{n}")).map(|hit| &hit.run).collect::<Vec<_>>();
    let not_once: Vec<_> = (0..199).map(|n| (n, runs_of(n))).filter(|(_, runs)| runs.len() != 1).collect();
    assert!(not_once.is_empty() && counts(&hits).len() == 199, "each once, but for {not_once:?}");
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
fn the_shards_of_a_killed_member_fire_again_within_its_lease_and_a_second() {
    kill_a_member(&Home::new());
}

fn kill_a_member(home: &Home) {
    let receiver = Receiver::start();
    let (a, b) = (home.start("a"), home.start("b"));
    home.settle(&["a", "b"]);
    // On a slow machine making them takes longer than they have: due is what is made and whose time has come.
    let from = now_millis() + 1_000;
    let mut client = b.client();
    let due: Vec<u64> = (0..400)
        .map(|n| {
            let at = from + 10 * n;
            let made = client.create(&one_shot(&format!("n{n}"), at, &receiver.url(), &json!(n)));
            assert_eq!(made.status, 201, "{}", made.body);
            at.max(now_millis())
        })
        .collect();
    receiver.wait(|hits| hits.len() >= 40);
    let stalls = Stalls::watch();
    let killed = now_millis();
    a.kill();
    let hits = receiver.wait(|hits| counts(hits).len() == 400);
    let stood = stalls.millis();
    let late = hits.iter().map(|hit| {
        let due = due[hit.schedule[1..].parse::<usize>().unwrap()];
        (hit.at_millis.saturating_sub(due), &hit.schedule, hit.at_millis.cast_signed() - killed.cast_signed())
    });
    let (late, which, after) = late.max().unwrap();
    assert!(
        late < 2_000 + 1_000 + 500 + stood,
        "{which} was {late} ms late, {after} ms after the kill: a lease of 2 s, a second, and {stood} ms of noise"
    );
    assert!(hits.len() < 410, "few were in flight at the kill: {} callbacks for 400", hits.len());
    assert!(b.stop().success());
}

#[test]
fn a_member_may_answer_only_or_own_only() {
    let home = Home::new();
    let receiver = Receiver::start();
    let mut answers = home.serve("answers");
    answers.args(["--roles", "api"]);
    let answers = Server::start_where(answers, |_| home.key_folder());
    let mut owns = home.serve("owns");
    owns.args(["--roles", "pollers"]);
    let owns = Server::start_where(owns, |_| home.key_folder());
    home.settle(&["owns"]);

    let schedule = one_shot("n1", now_millis() + 300, &receiver.url(), &json!(1));
    let refused = owns.client().create(&schedule);
    assert_eq!(refused.status, 404, "{}", refused.body);
    assert!(refused.body.contains("role `api`"), "{}", refused.body);
    assert_eq!(owns.client().get("/readyz").status, 200);
    assert_eq!(answers.client().create(&schedule).status, 201);
    receiver.wait(|hits| hits.len() == 1);
    assert!(owns.stop().success() && answers.stop().success());
}

#[test]
fn what_cannot_be_a_cluster_is_refused_with_the_next_step_and_without_a_password() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let serve = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver"]).args(arguments).arg("--data").arg(&data);
        command
    };
    let empty = postgres::shared().create_database().unwrap();
    let said = refusal(&mut serve(&["--store", &empty]));
    assert!(said.contains("reveille store migrate"), "{said}");

    let said = refusal(&mut serve(&["--coordination", &empty]));
    assert!(said.contains("--store postgres://") && said.contains("leave out --coordination"), "{said}");

    let said = refusal(&mut serve(&["--store", "mysql://someone:hunter2@db/x"]));
    assert!(said.contains("postgres://") && !said.contains("hunter2"), "{said}");
    let said = refusal(&mut serve(&["--store", "postgres://someone:hun@ter2@127.0.0.1:9/reveille"]));
    assert!(said.contains("%40") && !said.contains("ter2"), "{said}");

    let nobody = "postgres://someone:hunter2@127.0.0.1:9/reveille";
    let said = refusal(&mut serve(&["--store", nobody]));
    assert!(said.contains("127.0.0.1:9") && !said.contains("hunter2"), "{said}");

    let wrong = empty.replacen("postgres:", "postgres_wrong:", 2).replacen("postgres_wrong://", "postgres://", 1);
    let said = refusal(&mut serve(&["--store", &wrong]));
    assert!(!said.contains("hunter2") && said.contains("cannot open the store"), "{said}");

    let home = Home::new();
    let said = refusal(home.serve("a").args(["--peer-listen", "0.0.0.0:0"]));
    assert!(said.contains("--peer-advertise"), "{said}");
    let said = refusal(home.serve("a").args(["--history-days", "101"]));
    assert!(said.contains("100"), "{said}");
    let said = refusal(home.serve("a").args(["--peer-advertise", "10.9.9.9"]));
    assert!(said.contains("HOST:PORT"), "{said}");
    let server = home.start("a");
    let said = refusal(&mut home.serve("a"));
    assert!(said.contains("another member") && said.contains("--data"), "{said}");
    assert!(server.stop().success());
    let other = Home::new();
    let said = refusal(home.serve("b").args(["--coordination", &other.url]));
    assert!(said.contains("meet elsewhere") && said.contains("--coordination"), "{said}");
    let mut alone = Command::new(BINARY);
    alone.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--data"]).arg(home.folder.path().join("a"));
    let said = refusal(&mut alone);
    assert!(said.contains("--store") && !home.folder.path().join("a/store").exists(), "{said}");
    assert!(Server::start(&data).stop().success());
    let said = refusal(&mut serve(&["--store", &home.url]));
    assert!(said.contains("reveille export"), "{said}");
    let mut elsewhere = Command::new(BINARY);
    elsewhere.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--store", &other.url, "--data"]);
    let said = refusal(elsewhere.arg(home.folder.path().join("a")));
    assert!(said.contains("another cluster") && said.contains("--data"), "{said}");

    postgres::shared().sql(database(&home.url), "update reveille.meta set version = 1000").unwrap();
    let said = refusal(&mut home.serve("b"));
    assert!(said.contains("1000") && said.contains("build"), "{said}");
}

fn database(url: &str) -> &str {
    url.rsplit('/').next().unwrap()
}

#[test]
fn what_one_process_began_a_cluster_goes_on_with_and_back() {
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
    until("the dead letter comes", || {
        client.get("/v1/runs?dead_letter=true").json()["runs"].as_array().is_some_and(|runs| !runs.is_empty())
    });
    let dead = client.get("/v1/runs?dead_letter=true").json()["runs"][0].clone();
    let said = refusal(&mut transfer("export", &data));
    assert!(said.contains("in use by another Reveille"), "{said}");
    assert!(server.stop().success());

    let exported = run(&mut transfer("export", &data));
    let said = String::from_utf8_lossy(&exported.stdout).into_owned();
    assert!(exported.status.success(), "{}", String::from_utf8_lossy(&exported.stderr));
    assert!(said.contains("1 tenants, 22 schedules") && said.contains("1 runs"), "{said}");
    let said = refusal(&mut transfer("export", &data));
    assert!(said.contains("copy to an empty one"), "{said}");
    let said = refusal(&mut transfer("export", &back));
    assert!(said.contains("holds no schedules") && !back.exists(), "{said}");
    // By mistake: the same callbacks would be made twice.
    let said = refusal(&mut crate::server::serve(&data));
    assert!(said.contains("exported") && said.contains("--store"), "{said}");

    let mut member = Command::new(BINARY);
    member.args(["serve", "--listen", "127.0.0.1:0", "--no-receiver", "--store", &url, "--data"]);
    member.arg(folder.path().join("member")).arg("--store-key").arg(data.join("store.key"));
    let member = Server::start_where(member, |_| data.clone());
    assert_eq!(member.key, key);
    let said = refusal(&mut transfer("import", &back));
    assert!(said.contains("stop the members"), "{said}");
    let mut client = member.client();
    assert_eq!(client.get("/v1/schedules/every").json(), before);
    assert_eq!(client.get("/v1/runs?dead_letter=true").json()["runs"][0], dead);
    let cancelled = client.send("DELETE", "/v1/schedules/n0", "").unwrap();
    assert_eq!(cancelled.status, 200, "{}", cancelled.body);
    receiver.wait(|hits| hits.len() >= 19);
    assert!(member.stop().success());

    let imported = run(&mut transfer("import", &back));
    assert!(imported.status.success(), "{}", String::from_utf8_lossy(&imported.stderr));
    let said = refusal(&mut crate::server::serve(&back));
    assert!(said.contains("bring a copy"), "{said}");
    std::fs::copy(data.join("store.key"), back.join("store.key")).unwrap();
    let server = Server::start_where(crate::server::serve(&back), |_| data.clone());
    let mut client = server.client();
    assert_eq!(client.get("/v1/schedules/every").json(), before);
    assert_eq!(client.get("/v1/runs?dead_letter=true").json()["runs"][0], dead);
    assert!(server.stop().success());
    let hits = receiver.hits();
    assert_eq!((counts(&hits).len(), hits.len()), (19, 19), "each once");
    assert!(
        hits.iter().all(|hit| hit.authorization == format!("Bearer {}", hit.body)),
        "with the header that was sealed"
    );
}

#[test]
fn a_row_and_its_callback_commit_together_or_not_at_all() {
    let home = Home::new();
    let receiver = Receiver::start();
    let server = home.start("a");
    home.settle(&["a"]);
    let sql = |text: &str| postgres::shared().sql(database(&home.url), text).unwrap();
    let spec = |millis: u64, n: u64| {
        let at = rfc3339(millis);
        json!({ "at": at, "target": { "http": { "url": receiver.url() } }, "payload": { "n": n } })
    };
    sql("create table orders (id text primary key)");
    let due = now_millis() + 2_500;
    let ask = |id: &str, spec: &Value| format!("select reveille.schedule('default', '{id}', '{spec}')");
    sql(&format!("begin; insert into orders values ('one'); {}; commit", ask("one", &spec(due, 1))));
    sql(&format!("begin; insert into orders values ('two'); {}; rollback", ask("two", &spec(due, 2))));
    sql(&format!("begin; {}; select reveille.cancel('default', 'three'); commit", ask("three", &spec(due, 3))));
    // Its instant is long past when it commits.
    sql(&ask("four", &spec(now_millis() - 600_000, 4)));
    sql("select reveille.schedule('default', 'broken', '{\"at\": \"never\"}')");
    sql(&ask("one", &spec(due, 5)));

    let hits = receiver.wait(|hits| hits.len() >= 2);
    assert!(hits.iter().any(|hit| hit.schedule == "four" && hit.at_millis < due), "it fires at once: {hits:?}");
    server.log.wait(|line| line.contains("the id is taken").then_some(())).expect("it is told");
    server.log.wait(|line| (line.contains("broken") && line.contains("/at")).then_some(())).expect("it is told");
    std::thread::sleep(Duration::from_millis(500));
    let bodies: Vec<String> = receiver.hits().into_iter().map(|hit| hit.body).collect();
    assert_eq!(bodies.len(), 2, "{bodies:?}");
    assert_eq!(sql("select count(*) from reveille.inbox").trim(), "0");
    assert_eq!(server.client().get("/v1/schedules/three").json()["state"], "cancelled");
    assert!(server.stop().success());
}

#[test]
fn what_was_over_for_a_month_is_forgotten_by_the_leading_member() {
    let home = Home::new();
    let receiver = Receiver::start();
    let server = home.start("a");
    home.settle(&["a"]);
    let mut client = server.client();
    for id in ["old", "young"] {
        assert_eq!(client.create(&one_shot(id, now_millis() + 3_600_000, &receiver.url(), &json!(id))).status, 201);
        assert_eq!(client.send("DELETE", &format!("/v1/schedules/{id}"), "").unwrap().status, 200);
    }
    assert!(server.stop().success());
    let age =
        "update reveille.schedule set ended_at = ended_at - 86400000::bigint * case id when 'old' then 31 else 29 end";
    postgres::shared().sql(database(&home.url), age).unwrap();

    let is_forgotten = |server: &Server, id: &str| {
        server.log.wait(|line| line.contains("housekeeping dropped").then_some(())).expect("it is told");
        assert_eq!(server.client().get(&format!("/v1/schedules/{id}")).status, 404, "{id}");
    };
    let server = home.start("b");
    is_forgotten(&server, "old");
    assert_eq!(server.client().get("/v1/schedules/young").json()["state"], "cancelled");
    assert!(server.stop().success());

    // Somebody who keeps less.
    let mut command = home.serve("c");
    command.args(["--history-days", "28"]);
    let server = Server::start_where(command, |_| home.key_folder());
    is_forgotten(&server, "young");
    assert!(server.stop().success());
}

#[test]
fn a_tenant_made_at_one_member_is_served_by_all_and_its_revoked_key_by_none() {
    let home = Home::new();
    let receiver = Receiver::start();
    let (a, b) = (home.start("a"), home.start("b"));
    home.settle(&["a", "b"]);
    let operator = std::fs::read_to_string(home.key_folder().join("operator.key")).unwrap();
    let mut at_a = Client::connect(a.address, operator.trim()).unwrap();
    let made = at_a.send("POST", "/v1/tenants", r#"{"name":"billing","egress":{"allow":["loopback"]}}"#).unwrap();
    assert_eq!(made.status, 201, "{}", made.body);
    let made = made.json();
    let key = made["key"]["secret"].as_str().unwrap();
    let read = |server: &Server| Client::connect(server.address, key).unwrap().get("/v1/runs?dead_letter=true").status;
    assert_eq!(read(&a), 200, "the member that was asked knows at once");
    let answers = |wanted: u16, server: &Server| until(&format!("{wanted} is answered"), || read(server) == wanted);
    answers(200, &b);

    // Whichever member owns its new pollers.
    let mut at_b = Client::connect(b.address, key).unwrap();
    for n in 0..20 {
        let created = at_b.create(&one_shot(&format!("n{n}"), now_millis() + 200, &receiver.url(), &json!(n)));
        assert_eq!(created.status, 201, "{}", created.body);
    }
    let hits = receiver.wait(|hits| hits.len() >= 20);
    assert_eq!(counts(&hits).len(), 20);

    let id = made["key"]["id"].as_str().unwrap();
    let mut at_b = Client::connect(b.address, operator.trim()).unwrap();
    let path = format!("/v1/tenants/billing/keys/{id}");
    let revoked = at_b.send("DELETE", &path, "").unwrap();
    assert_eq!(revoked.status, 200, "{}", revoked.body);
    assert_eq!(read(&b), 401, "the member that was asked knows at once");
    answers(401, &a);
    assert!(a.stop().success() && b.stop().success());
}

/// One request of each member at the same time, each with this header.
fn at_both(members: [&Server; 2], header: (&str, &str), method: &str, path: &str, bodies: [&str; 2]) -> [Answer; 2] {
    std::thread::scope(|scope| {
        let send = |member: usize| {
            let mut client = members[member].client().with_header(header.0, header.1);
            scope.spawn(move || client.send(method, path, bodies[member]).unwrap())
        };
        [send(0), send(1)].map(|asked| asked.join().unwrap())
    })
}

#[test]
fn what_is_there_decides_at_its_owner_whichever_member_is_asked() {
    let home = Home::new();
    let receiver = Receiver::start();
    let (a, b) = (home.start("a"), home.start("b"));
    home.settle(&["a", "b"]);
    let members = [&a, &b];
    let far = now_millis() + 3_600_000;
    let statuses = |answers: &[Answer; 2]| {
        let mut statuses = [answers[0].status, answers[1].status];
        statuses.sort_unstable();
        statuses
    };
    // Of so many ids, each member owns some.
    for n in 0..12 {
        let (path, schedule) =
            (format!("/v1/schedules/n{n}"), one_shot(&format!("n{n}"), far, &receiver.url(), &json!(n)));
        let schedule = schedule.to_string();
        let made = at_both(members, ("If-None-Match", "*"), "PUT", &path, [&schedule, &schedule]);
        assert_eq!(statuses(&made), [201, 412], "{made:?}");

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
        let made = at_both(members, ("Idempotency-Key", &key), "POST", "/v1/schedules", [&schedule, &schedule]);
        assert_eq!((made[0].status, &made[0].body, &made[0].etag), (201, &made[1].body, &made[1].etag), "{made:?}");
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
    assert_eq!((counts(&hits).len(), hits.len()), (8, 8), "what was moved fires once, and nothing that was cancelled");
    assert!(a.stop().success() && b.stop().success());
}
