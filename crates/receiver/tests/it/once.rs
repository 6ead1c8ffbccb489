//! Tests of the middleware `once` and its transactions: duplicates, failures and disconnects.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::Router;
use axum::handler::Handler;
use axum::middleware::from_fn_with_state;
use axum::routing::post;
use deadpool_postgres::Pool;
use reveille_receiver::{Callback, Failed, Once, Transaction};
use runtime::Runtime;
use test_servers::postgres::Postgres;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::support::{Sent, count, listen, on_real, pool, pool_of, verifier};

async fn receiver<T: 'static>(runtime: &Runtime, pool: &Pool, handler: impl Handler<T, ()>) -> SocketAddr {
    let once = Once::new(verifier(), pool.clone());
    let routes = Router::new().route("/", post(handler)).route_layer(from_fn_with_state(once, reveille_receiver::once));
    listen(runtime, routes).await
}

async fn effect(transaction: &Transaction, what: &str) -> Result<(), Failed> {
    transaction.execute("insert into effects (what) values ($1)", &[&what]).await?;
    Ok(())
}

/// Waits until exactly `waiters` transactions of this database wait for a lock.
async fn wait_for_waiters(runtime: &Runtime, pool: &Pool, waiters: i64) {
    let query = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
    let connection = pool.get().await.unwrap();
    while connection.query_one(query, &[]).await.unwrap().get::<_, i64>(0) != waiters {
        runtime.sleep(Duration::from_millis(5)).await;
    }
}

/// Gate at which a handler waits until the test opens the gate. The test can wait for the arrival of the handler.
#[derive(Clone)]
struct Gate {
    entered: Arc<Semaphore>,
    permits: Arc<Semaphore>,
}

impl Gate {
    fn new() -> Self {
        Gate { entered: Arc::new(Semaphore::new(0)), permits: Arc::new(Semaphore::new(0)) }
    }

    async fn pass(&self) {
        self.entered.add_permits(1);
        self.permits.acquire().await.unwrap().forget();
    }

    async fn wait_entered(&self) {
        self.entered.acquire().await.unwrap().forget();
    }

    fn release(&self) {
        self.permits.add_permits(1);
    }
}

#[test]
fn duplicate_receives_200_without_a_handler_call() {
    on_real(async |runtime| {
        let pool = pool().await;
        let handler = async |callback: Callback, transaction: Transaction| effect(&transaction, &callback.id).await;
        let address = receiver(&runtime, &pool, handler).await;
        for _ in 0..3 {
            assert_eq!(Sent::new(&runtime, "one", "1").to(address).await.0, 200);
        }
        assert_eq!(Sent::new(&runtime, "two", "1").to(address).await.0, 200);
        assert_eq!((count(&pool, "effects").await, count(&pool, "reveille_callbacks").await), (2, 2));
        assert!(pool.status().size <= 2, "connections are reused: {:?}", pool.status());
    });
}

#[test]
fn concurrent_duplicate_waits_for_the_first_callback() {
    on_real(async |runtime| {
        let pool = pool().await;
        let gate = Gate::new();
        let (inside, calls) = (gate.clone(), Arc::new(AtomicU32::new(0)));
        let counted = calls.clone();
        let handler = async move |transaction: Transaction| {
            counted.fetch_add(1, Ordering::Relaxed);
            effect(&transaction, "done").await?;
            inside.pass().await;
            Ok::<_, Failed>(())
        };
        let address = receiver(&runtime, &pool, handler).await;
        let sent = Sent::new(&runtime, "one", "1");
        let (first, second, ()) = tokio::join!(sent.to(address), sent.to(address), async {
            gate.wait_entered().await;
            wait_for_waiters(&runtime, &pool, 1).await;
            gate.release();
        });
        assert_eq!((first.0, second.0), (200, 200));
        assert_eq!((calls.load(Ordering::Relaxed), count(&pool, "effects").await), (1, 1));
    });
}

#[test]
fn handler_receives_the_duplicate_if_the_first_callback_fails() {
    on_real(async |runtime| {
        let pool = pool().await;
        let gate = Gate::new();
        let (inside, calls) = (gate.clone(), Arc::new(AtomicU32::new(0)));
        let handler = async move |transaction: Transaction| {
            effect(&transaction, "done").await?;
            inside.pass().await;
            match calls.fetch_add(1, Ordering::Relaxed) {
                0 => Err(Failed::from("intended failure")),
                _ => Ok(()),
            }
        };
        let address = receiver(&runtime, &pool, handler).await;
        let sent = Sent::new(&runtime, "one", "1");
        let (first, second, ()) = tokio::join!(sent.to(address), sent.to(address), async {
            gate.wait_entered().await;
            wait_for_waiters(&runtime, &pool, 1).await;
            gate.release();
            gate.wait_entered().await;
            gate.release();
        });
        let mut answers = [first.0, second.0];
        answers.sort_unstable();
        assert_eq!((answers, count(&pool, "effects").await), ([200, 500], 1));
    });
}

#[test]
fn waiting_duplicate_receives_503_after_the_time_limit() {
    on_real(async |runtime| {
        let pool = pool().await;
        let gate = Gate::new();
        let inside = gate.clone();
        let once = Once::new(verifier(), pool.clone()).wait_max(Duration::from_millis(50));
        let handler = async move |transaction: Transaction| {
            effect(&transaction, "done").await?;
            inside.pass().await;
            Ok::<_, Failed>(())
        };
        let routes =
            Router::new().route("/", post(handler)).route_layer(from_fn_with_state(once, reveille_receiver::once));
        let address = listen(&runtime, routes).await;
        let sent = Sent::new(&runtime, "one", "1");
        let (first, ()) = tokio::join!(sent.to(address), async {
            gate.wait_entered().await;
            assert_eq!(sent.to(address).await.0, 503);
            // The database also stops waiting, although the first callback still holds its transaction open.
            wait_for_waiters(&runtime, &pool, 0).await;
            gate.release();
        });
        assert_eq!((first.0, sent.to(address).await.0, count(&pool, "effects").await), (200, 200, 1));
    });
}

#[test]
fn handler_keeps_the_lock_timeout_of_its_connection() {
    on_real(async |runtime| {
        let pool = pool().await;
        pool.get().await.unwrap().batch_execute("set lock_timeout = '7s'").await.unwrap();
        let handler = async |transaction: Transaction| {
            let row = transaction.query_one("show lock_timeout", &[]).await?;
            effect(&transaction, row.get(0)).await
        };
        let address = receiver(&runtime, &pool, handler).await;
        assert_eq!(Sent::new(&runtime, "one", "1").to(address).await.0, 200);
        let row = pool.get().await.unwrap().query_one("select what from effects", &[]).await.unwrap();
        assert_eq!(row.get::<_, String>(0), "7s");
    });
}

#[test]
fn middleware_rolls_back_transaction_of_failed_handler() {
    on_real(async |runtime| {
        let pool = pool().await;
        let calls = Arc::new(AtomicU32::new(0));
        let handler = async move |transaction: Transaction| {
            effect(&transaction, "done").await?;
            match calls.fetch_add(1, Ordering::Relaxed) {
                0 => Err(Failed::from("the mail server is down")),
                1 => panic!("intended panic"),
                _ => Ok(()),
            }
        };
        let address = receiver(&runtime, &pool, handler).await;
        let sent = Sent::new(&runtime, "one", "1");
        assert_eq!(sent.to(address).await.0, 500);
        assert_eq!(sent.to(address).await.0, 0, "the connection ends with the handler");
        assert_eq!((count(&pool, "effects").await, count(&pool, "reveille_callbacks").await), (0, 0));
        assert_eq!(sent.to(address).await.0, 200);
        assert_eq!(count(&pool, "effects").await, 1);
    });
}

#[test]
fn middleware_rolls_back_if_the_handler_ignores_an_error() {
    on_real(async |runtime| {
        let pool = pool().await;
        let calls = Arc::new(AtomicU32::new(0));
        let handler = async move |transaction: Transaction| {
            let is_first = calls.fetch_add(1, Ordering::Relaxed) == 0;
            if is_first && transaction.execute("insert into nowhere values (1)", &[]).await.is_err() {
                return Ok(());
            }
            effect(&transaction, "done").await
        };
        let address = receiver(&runtime, &pool, handler).await;
        let sent = Sent::new(&runtime, "one", "1");
        assert_eq!(sent.to(address).await.0, 503);
        assert_eq!((sent.to(address).await.0, count(&pool, "effects").await), (200, 1));
    });
}

#[test]
fn middleware_rolls_back_if_the_handler_keeps_its_transaction() {
    on_real(async |runtime| {
        let pool = pool().await;
        let (keep, kept) = tokio::sync::mpsc::unbounded_channel();
        let handler = async move |transaction: Transaction| {
            effect(&transaction, "done").await?;
            keep.send(transaction).unwrap();
            Ok::<_, Failed>(())
        };
        let address = receiver(&runtime, &pool, handler).await;
        let (status, text) = Sent::new(&runtime, "one", "1").to(address).await;
        assert_eq!(status, 500, "{text}");
        drop(kept);
        assert_eq!((count(&pool, "effects").await, count(&pool, "reveille_callbacks").await), (0, 0));
    });
}

#[test]
fn middleware_rolls_back_the_transaction_if_the_client_disconnects() {
    on_real(async |runtime| {
        let pool = pool().await;
        let gate = Gate::new();
        let inside = gate.clone();
        let handler = async move |transaction: Transaction| {
            effect(&transaction, "done").await?;
            inside.pass().await;
            Ok::<_, Failed>(())
        };
        let address = receiver(&runtime, &pool, handler).await;
        let sent = Sent::new(&runtime, "one", "1");
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(&sent.text()).await.unwrap();
        gate.wait_entered().await;
        drop(stream);
        // The disconnect rolls the transaction of the first attempt back. The second attempt waits for this rollback.
        // The second attempt is not a duplicate, because the rollback removes the id of the callback from the table.
        let (answer, ()) = tokio::join!(sent.to(address), async {
            gate.wait_entered().await;
            gate.release();
        });
        assert_eq!((answer.0, count(&pool, "effects").await), (200, 1));
    });
}

#[test]
fn callback_receives_503_until_the_database_is_available() {
    on_real(async |runtime| {
        let postgres = Postgres::start().unwrap();
        let pool = pool_of(&postgres.create_database().unwrap());
        let connection = pool.get().await.unwrap();
        reveille_receiver::create_table(&connection).await.unwrap();
        connection.batch_execute("create table effects (what text not null)").await.unwrap();
        drop(connection);
        let handler = async |transaction: Transaction| effect(&transaction, "done").await;
        let address = receiver(&runtime, &pool, handler).await;
        let sent = Sent::new(&runtime, "one", "1");
        postgres.stop().unwrap();
        let (status, text) = sent.to(address).await;
        assert_eq!(status, 503);
        assert!(!text.contains("postgres"), "{text}");
        postgres.restart().unwrap();
        assert_eq!((sent.to(address).await.0, count(&pool, "effects").await), (200, 1));
    });
}
