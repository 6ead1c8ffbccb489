//! Test of callbacks from the real server to a service. The service dies after its handler has written a row and before
//! the transaction commits. The service is a separate process with the middleware of the crate `receiver` and a
//! PostgreSQL database.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use axum::middleware::from_fn_with_state;
use axum::{Router, routing::post};
use deadpool_postgres::{Manager, Pool};
use reveille_receiver::{Callback, Failed, Once, Options, Transaction, Verifier};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use test_servers::postgres;
use tokio_postgres::NoTls;

use crate::TIMEOUT;
use crate::client::one_shot;
use crate::now_millis;
use crate::server::Server;

/// Name of the test function that acts as the service. The process of the service runs this test program with only this
/// test.
const SERVICE: &str = "receiving::callback_service_runs_only_as_a_child_process_of_another_test";
const DATABASE: &str = "RECEIVING_DATABASE";
const SECRET: &str = "RECEIVING_SECRET";
const DIES: &str = "RECEIVING_DIES";

/// Process of the service. The drop of this value kills the process.
struct Service(Child);

impl Service {
    /// Starts the service. `listener` remains open in the test process. After the service process dies, the kernel
    /// therefore keeps new connections in a queue until the next process of the service accepts them.
    fn start(listener: &TcpListener, database: &str, secret: &Path, dies: bool) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", SERVICE, "--nocapture"]).env(DATABASE, database).env(SECRET, secret);
        if dies {
            command.env(DIES, "yes");
        }
        command.stdin(Stdio::from(OwnedFd::from(listener.try_clone().unwrap()))).stdout(Stdio::null());
        Service(command.spawn().unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // The drop ignores the errors of `kill` and `wait`, because the process may already have ended.
        let _killed = self.0.kill();
        let _waited = self.0.wait();
    }
}

async fn handle(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let order: i64 = callback.json()?;
    transaction.execute("insert into effects (order_id) values ($1)", &[&order]).await?;
    if std::env::var(DIES).is_ok() {
        kill_process(getpid(), Signal::KILL)?;
    }
    Ok(())
}

#[test]
fn callback_service_runs_only_as_a_child_process_of_another_test() {
    let Ok(database) = std::env::var(DATABASE) else { return };
    let secret = std::fs::read_to_string(std::env::var(SECRET).unwrap()).unwrap();
    let pool = Pool::builder(Manager::new(database.parse().unwrap(), NoTls)).build().unwrap();
    let once = Once::new(Verifier::new(secret.parse().unwrap(), Options::default()), pool.clone());
    let routes = Router::new().route("/", post(handle)).route_layer(from_fn_with_state(once, reveille_receiver::once));
    let listener = TcpListener::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    listener.set_nonblocking(true).unwrap();
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio.block_on(async {
        reveille_receiver::create_table(&pool.get().await.unwrap()).await.unwrap();
        axum::serve(tokio::net::TcpListener::from_std(listener).unwrap(), routes).await.unwrap();
    });
}

#[test]
fn callback_takes_effect_once_if_its_receiver_dies_before_commit() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let database = postgres::shared().create_database().unwrap();
    let name = database.rsplit_once('/').unwrap().1;
    let sql = |statements: &str| postgres::shared().sql(name, statements).unwrap().trim().to_owned();
    sql("create table effects (order_id bigint not null)");
    let server = Server::start(&data);
    let secret = data.join("signing.secret");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());

    let mut first = Service::start(&listener, &database, &secret, true);
    let mut request = one_shot("order", now_millis(), &url, &json!(17));
    request["retry"] = json!({"attempts_max": 20, "backoff": "100ms", "backoff_max": "100ms"});
    assert_eq!(server.client().create(&request).status, 201);
    assert_eq!(first.0.wait().unwrap().signal(), Some(9), "the handler kills its process");
    assert_eq!(sql("select count(*) from effects"), "0");

    let _second = Service::start(&listener, &database, &secret, false);
    let mut client = server.client();
    let deadline = Instant::now() + TIMEOUT;
    let run = loop {
        assert!(Instant::now() < deadline, "the callback does not succeed in time");
        let runs = client.send("GET", "/v1/schedules/order/runs", "").unwrap().json();
        if runs["runs"][0]["state"] == "succeeded" {
            break runs["runs"][0].clone();
        }
    };
    let attempts = run["attempts"].as_array().unwrap();
    assert!(attempts.len() >= 2 && attempts[0].get("error").is_some(), "{run}");
    assert_eq!(sql("select order_id from effects"), "17");
    assert_eq!(sql("select id from reveille_callbacks"), run["id"].as_str().unwrap());
    assert!(server.stop().success());
}
