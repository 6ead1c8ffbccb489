//! Feedback mailers: some days after a delivery the customer is asked how it was, once, however often the courier tells us.
//! `cargo run --example feedback`, beside a `reveille serve`.

#![expect(clippy::print_stdout, reason = "it tells its story")]

mod shop;

use std::time::Duration;

use axum::{Router, routing::post};
use reveille_client::{Client, ScheduleRequest};
use reveille_receiver::{Callback, Failed, Transaction};

use shop::{Shop, after, new_number, sleep};

/// A second of the example.
const DAY: Duration = Duration::from_secs(1);
const TABLES: &str = "create table if not exists mails (order_id bigint not null, subject text not null)";

/// A mail that was sent is not unsent by a rollback, so it is written down here, for whatever sends mails.
async fn ask_how_it_was(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let order: i64 = callback.json()?;
    transaction.execute("insert into mails values ($1, 'How was it?')", &[&order]).await?;
    Ok(())
}

/// What the courier says may come again, even after the mail: the name is then taken. (A put would make it a new schedule.)
async fn delivered(reveille: &Client, url: &str, order: i64) -> anyhow::Result<()> {
    let ask = ScheduleRequest::at(after(DAY), format!("{url}/feedback")).payload(&order)?;
    let news = match reveille.create(&ask.id(format!("feedback-{order}"))).await {
        Ok(_) => "noted",
        Err(error) if error.code() == Some("schedule_exists") => "known",
        Err(error) => return Err(error.into()),
    };
    println!("order {order} is delivered, says the courier: {news}");
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = Shop::open(TABLES).await?;
    let url = shop.listen(Router::new().route("/feedback", post(ask_how_it_was))).await?;
    let order = new_number();
    delivered(&shop.reveille, &url, order).await?;
    delivered(&shop.reveille, &url, order).await?;

    shop.until("select count(*) > 0 from mails where order_id = $1", &[&order]).await?;
    delivered(&shop.reveille, &url, order).await?;
    sleep(2 * DAY).await;
    let mails: i64 = shop.ask("select count(*) from mails where order_id = $1", &[&order]).await?;
    println!("order {order}: {mails} mail");
    Ok(())
}
