//! Campaigns. One batch schedules a notification for each customer of a segment. A customer that opts out gets no
//! notification. Run `cargo run --example campaign` while `reveille serve` runs.

#![expect(clippy::print_stdout, reason = "the example prints its progress")]

mod shop;

use std::time::Duration;

use axum::{Router, routing::post};
use futures_util::stream;
use reveille_client::{ScheduleRequest, TryStreamExt as _};
use reveille_receiver::{Callback, Failed, Transaction};
use serde::{Deserialize, Serialize};

use shop::{Shop, after, new_number, sleep};

/// Duration that represents one day in this example.
const DAY: Duration = Duration::from_secs(1);
const CUSTOMERS: u32 = 50;
const TABLES: &str = "create table if not exists notifications (campaign bigint not null, customer bigint not null)";

#[derive(Serialize, Deserialize)]
struct Notification {
    campaign: i64,
    customer: u32,
}

/// Handler that inserts a row for a notification. In a real shop, another service would send the notifications.
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
    // The application chooses the ids of the schedules. If a batch fails before its end, the application can send it
    // again, and the server creates no schedule twice.
    let requests = (1..=CUSTOMERS).map(|customer| {
        let request = ScheduleRequest::at(at, format!("{url}/notify")).id(name(campaign, customer));
        request.label("campaign", campaign.to_string()).payload(&Notification { campaign, customer })
    });
    let requests: Vec<_> = requests.collect::<Result<_, _>>()?;
    let mut results = shop.reveille.create_many(stream::iter(requests));
    let mut created = 0;
    while let Some(result) = results.try_next().await? {
        match result.problem {
            None => created += 1,
            Some(problem) => println!("line {} is rejected: {}", result.line, problem.detail),
        }
    }
    println!("{created} notifications of campaign {campaign} are scheduled");
    shop.reveille.cancel(&name(campaign, 17)).await?;
    println!("customer 17 opts out");

    let sent = "select count(distinct customer) from notifications where campaign = $1";
    shop.until(&format!("select ({sent}) = $2"), &[&campaign, &i64::from(CUSTOMERS - 1)]).await?;
    sleep(DAY / 2).await;
    let customers: i64 = shop.query(sent, &[&campaign]).await?;
    let all: i64 = shop.query("select count(*) from notifications where campaign = $1", &[&campaign]).await?;
    println!("{all} notifications went to {customers} customers");
    Ok(())
}
