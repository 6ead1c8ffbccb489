//! Payment reconciliation. A payment gateway timed out although the bank took the money. The handler of a recurring
//! schedule queries the bank until the bank reports that it took the money. The handler then refunds the payment, and
//! cancels the schedule at the next occurrence. Run `cargo run --example payment` while `reveille serve` runs.

#![expect(clippy::print_stdout, reason = "the example prints its progress")]

mod shop;

use std::time::Duration;

use axum::extract::State;
use axum::{Router, routing::post};
use reveille_client::{Client, ScheduleRequest};
use reveille_receiver::{Callback, Failed, Transaction};

use shop::{Shop, new_number};

const TABLES: &str = "\
create table if not exists bank (payment bigint primary key, status text not null);
create table if not exists queries (payment bigint not null, status text not null);
create table if not exists refunds (payment bigint primary key);";

/// Handler that queries the bank and refunds the payment if the bank has taken the money.
///
/// The handler cancels the schedule only at the occurrence after the refund, because the cancellation is not part of
/// the transaction. If the handler refunded the payment and cancelled the schedule at one occurrence, a failed commit
/// would leave a cancelled schedule without a refund.
async fn reconcile(State(reveille): State<Client>, callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let payment: i64 = callback.json()?;
    if transaction.query_opt("select 1 from refunds where payment = $1", &[&payment]).await?.is_some() {
        reveille.cancel(&name(payment)).await?;
        return Ok(());
    }
    let status = transaction.query_one("select status from bank where payment = $1", &[&payment]).await?;
    let status: String = status.get(0);
    transaction.execute("insert into queries values ($1, $2)", &[&payment, &status]).await?;
    if status == "taken" {
        transaction.execute("insert into refunds values ($1)", &[&payment]).await?;
    }
    Ok(())
}

fn name(payment: i64) -> String {
    format!("reconcile-{payment}")
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = Shop::open(TABLES).await?;
    let routes = Router::new().route("/reconcile", post(reconcile)).with_state(shop.reveille.clone());
    let url = shop.listen(routes).await?;
    let payment = new_number();
    shop.execute("insert into bank values ($1, 'unknown')", &[&payment]).await?;
    let request = ScheduleRequest::every(Duration::from_secs(1), format!("{url}/reconcile")).payload(&payment)?;
    shop.reveille.put(&name(payment), &request).await?;
    println!("the payment gateway did not respond for payment {payment}: the schedule queries the bank every second");

    shop.until("select count(*) = 2 from queries where payment = $1", &[&payment]).await?;
    shop.execute("update bank set status = 'taken' where payment = $1", &[&payment]).await?;
    println!("the bank has taken the money of payment {payment}");
    shop.until("select count(*) = 1 from refunds where payment = $1", &[&payment]).await?;
    println!("payment {payment} is refunded");
    while shop.reveille.get(&name(payment)).await?.next.is_some() {
        shop::sleep(Duration::from_millis(10)).await;
    }
    let queries: i64 = shop.query("select count(*) from queries where payment = $1", &[&payment]).await?;
    println!("the schedule queried the bank {queries} times; it is cancelled now");
    Ok(())
}
