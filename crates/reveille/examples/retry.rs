//! Retries. Reveille retries a failed operation at increasing intervals, even if the application or the server
//! restarts. Run `cargo run --example retry` while `reveille serve` runs.

#![expect(clippy::print_stdout, reason = "the example prints its progress")]

mod shop;

use std::time::Duration;

use axum::{Router, routing::post};
use reveille_client::{Client, Run, ScheduleRequest, TryStreamExt as _};
use reveille_receiver::{Callback, Failed, Transaction};

use shop::{Shop, after, new_number, sleep};

const TABLES: &str = "\
create table if not exists invoices (number bigint primary key, is_filed bool not null default false);
create table if not exists tax_office (is_open bool not null);";

/// Handler that files an invoice. After any error, the middleware rolls the transaction back and responds with status
/// 500. Reveille sends the callback again later.
async fn file(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let invoice: i64 = callback.json()?;
    transaction.execute("update invoices set is_filed = true where number = $1", &[&invoice]).await?;
    let is_open: bool = transaction.query_one("select is_open from tax_office", &[]).await?.get(0);
    match is_open {
        true => Ok(()),
        false => Err(Failed::from("the tax office is closed")),
    }
}

/// Returns the only run of this schedule, or `None` if the run does not exist yet.
async fn run_of(reveille: &Client, schedule: &str) -> anyhow::Result<Option<Run>> {
    Ok(reveille.runs(schedule).try_next().await?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = Shop::open(TABLES).await?;
    let url = shop.listen(Router::new().route("/file", post(file))).await?;
    let invoice = new_number();
    shop.execute("insert into invoices values ($1)", &[&invoice]).await?;
    shop.execute("delete from tax_office", &[]).await?;
    shop.execute("insert into tax_office values (false)", &[]).await?;

    // The run has at most five attempts, with random waits of at most 200 ms, 400 ms, 800 ms and 1.6 s.
    let schedule = format!("file-{invoice}");
    let request = ScheduleRequest::at(after(Duration::ZERO), format!("{url}/file"))
        .payload(&invoice)?
        .retry(5, Duration::from_millis(200));
    shop.reveille.put(&schedule, &request).await?;
    println!("the filing of invoice {invoice} is scheduled, but the tax office is closed");

    while run_of(&shop.reveille, &schedule).await?.is_none_or(|run| run.attempts.len() < 2) {
        sleep(Duration::from_millis(10)).await;
    }
    shop.execute("update tax_office set is_open = true", &[]).await?;
    println!("the tax office opens");

    shop.until("select is_filed from invoices where number = $1", &[&invoice]).await?;
    while run_of(&shop.reveille, &schedule).await?.is_some_and(|run| run.state != reveille_client::RunState::Succeeded)
    {
        sleep(Duration::from_millis(10)).await;
    }
    for attempt in run_of(&shop.reveille, &schedule).await?.into_iter().flat_map(|run| run.attempts) {
        println!("attempt {}: status {}", attempt.number, attempt.status.unwrap_or_default());
    }
    println!("invoice {invoice} is filed");
    Ok(())
}
