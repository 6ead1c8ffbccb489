//! Campaigns: a notification for each customer of a segment, all asked for in one batch; who opts out gets none.
//! `cargo run --example campaign`, beside a `reveille serve`.

#![expect(clippy::print_stdout, reason = "it tells its story")]

mod shop;

use std::time::Duration;

use axum::{Router, routing::post};
use futures_util::stream;
use reveille_client::{ScheduleRequest, TryStreamExt as _};
use reveille_receiver::{Callback, Failed, Transaction};
use serde::{Deserialize, Serialize};

use shop::{Shop, after, new_number, sleep};

/// A second of the example.
const DAY: Duration = Duration::from_secs(1);
const CUSTOMERS: u32 = 50;
const TABLES: &str = "create table if not exists notifications (campaign bigint not null, customer bigint not null)";

#[derive(Serialize, Deserialize)]
struct Notification {
    campaign: i64,
    customer: u32,
}

/// Notifications are written down, for whatever sends them.
async fn notify(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let Notification { campaign, customer } = callback.json()?;
    transaction.execute("insert into notifications values ($1, $2)", &[&campaign, &i64::from(customer)]).await?;
    Ok(())
}

fn name(campaign: i64, customer: u32) -> String {
    format!("campaign-{campaign}-{customer}")
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = Shop::open(TABLES).await?;
    let url = shop.listen(Router::new().route("/notify", post(notify))).await?;
    let campaign = new_number();
    let at = after(3 * DAY);
    // Names of our own: if the batch broke off, another one would refuse those that are there already.
    let asks = (1..=CUSTOMERS).map(|customer| {
        let ask = ScheduleRequest::at(at, format!("{url}/notify")).id(name(campaign, customer));
        ask.label("campaign", campaign.to_string()).payload(&Notification { campaign, customer })
    });
    let asks: Vec<_> = asks.collect::<Result<_, _>>()?;
    let mut answers = shop.reveille.create_many(stream::iter(asks));
    let mut made = 0;
    while let Some(answer) = answers.try_next().await? {
        match answer.problem {
            None => made += 1,
            Some(problem) => println!("line {} is refused: {}", answer.line, problem.detail),
        }
    }
    println!("{made} notifications of campaign {campaign} are to come");
    shop.reveille.cancel(&name(campaign, 17)).await?;
    println!("customer 17 opts out");

    let sent = "select count(distinct customer) from notifications where campaign = $1";
    shop.until(&format!("select ({sent}) = $2"), &[&campaign, &i64::from(CUSTOMERS - 1)]).await?;
    sleep(DAY / 2).await;
    let customers: i64 = shop.ask(sent, &[&campaign]).await?;
    let all: i64 = shop.ask("select count(*) from notifications where campaign = $1", &[&campaign]).await?;
    println!("{all} notifications went to {customers} customers");
    Ok(())
}
