//! Support for the tests: a listening receiver, a new database, and callbacks with the signature of Reveille.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use deadpool_postgres::{Manager, Pool};
use reveille_receiver::{Options, Verifier, create_table};
use runtime::Runtime;
use test_servers::http::AsyncConnection;
use test_servers::postgres::shared;
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::NoTls;

/// Time limit of a test step. A normal step takes less time, so only a test that hangs fails at the limit.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(30);
pub(crate) const KEY: [u8; 32] = [7; 32];
pub(crate) const OTHER_KEY: [u8; 32] = [8; 32];

pub(crate) fn on_real(test: impl AsyncFnOnce(Runtime)) {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    tokio.block_on(async {
        let runtime = Runtime::real();
        let ended = runtime.timeout(TEST_TIMEOUT * 2, test(runtime.clone())).await;
        assert!(ended.is_some(), "the test exceeds its time limit");
    });
}

pub(crate) fn secret(key: &[u8]) -> String {
    format!("whsec_{}", STANDARD.encode(key))
}

pub(crate) fn verifier() -> Verifier {
    Verifier::new(secret(&KEY).parse().unwrap(), Options::default())
}

/// Returns a connection pool for a new database, which contains the receiver's table and a table for effects of
/// handlers.
pub(crate) async fn pool() -> Pool {
    let pool = pool_of(&shared().create_database().unwrap());
    let connection = pool.get().await.unwrap();
    create_table(&connection).await.unwrap();
    connection.batch_execute("create table effects (what text not null)").await.unwrap();
    pool
}

pub(crate) fn pool_of(url: &str) -> Pool {
    Pool::builder(Manager::new(url.parse().unwrap(), NoTls)).max_size(4).build().unwrap()
}

pub(crate) async fn count(pool: &Pool, table: &str) -> i64 {
    let query = format!("select count(*) from {table}");
    pool.get().await.unwrap().query_one(&query, &[]).await.unwrap().get(0)
}

/// Serves requests until the test ends.
pub(crate) async fn listen(runtime: &Runtime, routes: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn("receiver", async move { axum::serve(listener, routes).await.unwrap() });
    address
}

/// Callback in Reveille's format, with a current signature.
pub(crate) struct Sent {
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
}

impl Sent {
    pub(crate) fn new(runtime: &Runtime, id: &str, body: &str) -> Self {
        let timestamp_s = runtime.now().as_millis() / 1000;
        let signature = callback::sign(&KEY, id, timestamp_s, body.as_bytes());
        Sent {
            headers: vec![
                ("webhook-id", id.to_owned()),
                ("webhook-timestamp", timestamp_s.to_string()),
                ("webhook-signature", signature),
            ],
            body: body.as_bytes().to_vec(),
        }
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        let headers: String = self.headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let length = self.body.len();
        let head =
            format!("POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n");
        [head.as_bytes(), &self.body].concat()
    }

    /// Sends the callback, and returns the status and body of the response. The status is 0 if the connection ends
    /// without a response.
    pub(crate) async fn to(&self, address: SocketAddr) -> (u16, String) {
        answer_to(address, &self.text()).await
    }
}

pub(crate) async fn answer_to(address: SocketAddr, request: &[u8]) -> (u16, String) {
    let mut connection = AsyncConnection::new(TcpStream::connect(address).await.unwrap());
    // The test ignores a write error, because the receiver may reject the request before the request ends.
    let _rejected = connection.write(request).await;
    let answer = connection.read().await.ok();
    answer.map_or((0, String::new()), |answer| (answer.status().unwrap_or(0), answer.text()))
}
