//! Service-level agreements. Each stage of an order has a time limit. When the time limit passes, a schedule fires, and
//! the application escalates the breach. If the stage ends earlier, the application cancels the schedule. Run `cargo
//! run --example sla` while `reveille serve` runs.

#![expect(clippy::print_stdout, reason = "the example prints its progress")]

mod shop;

use std::time::Duration;

use axum::{Router, routing::post};
use reveille_client::{Client, Error, ScheduleRequest};
use reveille_receiver::{Callback, Failed, Transaction};
use serde::{Deserialize, Serialize};

use shop::{Shop, after, new_number};

/// Duration that represents one hour in this example.
const HOUR: Duration = Duration::from_secs(1);
const TABLES: &str =
    "create table if not exists escalations (order_id bigint, stage text, primary key (order_id, stage))";

#[derive(Serialize, Deserialize)]
struct Stage {
    order: i64,
    stage: String,
}

/// Handler that escalates a stage that did not end in time.
async fn breach(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let Stage { order, stage } = callback.json()?;
    transaction.execute("insert into escalations values ($1, $2)", &[&order, &stage]).await?;
    Ok(())
}

/// Returns the id of the schedule for a stage. The function derives the id from the stage, so that the application does
/// not need to store the id.
fn name(order: i64, stage: &str) -> String {
    format!("sla-{order}-{stage}")
}

async fn begin(reveille: &Client, url: &str, order: i64, stage: &str, hours: u32) -> anyhow::Result<()> {
    let payload = Stage { order, stage: stage.to_owned() };
    let breach = ScheduleRequest::at(after(HOUR * hours), format!("{url}/breach")).payload(&payload)?;
    reveille.put(&name(order, stage), &breach).await?;
    println!("order {order}: the stage `{stage}` must end within {hours} hours");
    Ok(())
}

async fn finish(reveille: &Client, order: i64, stage: &str) -> Result<(), Error> {
    let cancelled = reveille.cancel(&name(order, stage)).await?;
    println!("order {order}: the stage `{stage}` ended; the result of the cancellation is {:?}", cancelled.result);
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = Shop::open(TABLES).await?;
    let url = shop.listen(Router::new().route("/breach", post(breach))).await?;
    let (quick, slow) = (new_number(), new_number());
    for order in [quick, slow] {
        begin(&shop.reveille, &url, order, "packing", 3).await?;
        begin(&shop.reveille, &url, order, "shipping", 4).await?;
        finish(&shop.reveille, order, "packing").await?;
    }
    finish(&shop.reveille, quick, "shipping").await?;

    shop.until("select count(*) = 1 from escalations where order_id = $1", &[&slow]).await?;
    // The example has cancelled all other schedules, so no further escalation can follow.
    for order in [quick, slow] {
        let late: Option<String> =
            shop.query("select string_agg(stage, ', ') from escalations where order_id = $1", &[&order]).await?;
        println!("order {order}: late with {}", late.as_deref().unwrap_or("nothing"));
    }
    Ok(())
}
