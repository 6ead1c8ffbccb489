//! Feedback mails. Some days after a delivery, the customer gets one mail, even if the courier reports the delivery
//! several times. Run `cargo run --example feedback` while `reveille serve` runs.

#![expect(clippy::print_stdout, reason = "the example prints its progress")]

mod shop;

use std::time::Duration;

use axum::{Router, routing::post};
use reveille_client::{Client, ScheduleRequest};
use reveille_receiver::{Callback, Failed, Transaction};

use shop::{Shop, after, new_number, sleep};

/// Duration that represents one day in this example.
const DAY: Duration = Duration::from_secs(1);
const TABLES: &str = "create table if not exists mails (order_id bigint not null, subject text not null)";

/// Handler that inserts a row for the mail, which another service would send. The handler does not send the mail
/// itself, because a rollback cannot undo a mail.
async fn request_feedback(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let order: i64 = callback.json()?;
    transaction.execute("insert into mails values ($1, 'How was it?')", &[&order]).await?;
    Ok(())
}

/// Handles a delivery report of the courier. If the courier repeats the report, even after the mail, `create` fails,
/// because a schedule with the same id already exists. The method `put` would instead replace the schedule and cause a
/// second mail.
async fn delivered(reveille: &Client, url: &str, order: i64) -> anyhow::Result<()> {
    let request = ScheduleRequest::at(after(DAY), format!("{url}/feedback")).payload(&order)?;
    let outcome = match reveille.create(&request.id(format!("feedback-{order}"))).await {
        Ok(_) => "the feedback mail is scheduled",
        Err(error) if error.code() == Some("schedule_exists") => "the feedback mail is already scheduled",
        Err(error) => return Err(error.into()),
    };
    println!("order {order} is delivered: {outcome}");
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = Shop::open(TABLES).await?;
    let url = shop.listen(Router::new().route("/feedback", post(request_feedback))).await?;
    let order = new_number();
    delivered(&shop.reveille, &url, order).await?;
    delivered(&shop.reveille, &url, order).await?;

    shop.until("select count(*) > 0 from mails where order_id = $1", &[&order]).await?;
    delivered(&shop.reveille, &url, order).await?;
    sleep(2 * DAY).await;
    let mails: i64 = shop.query("select count(*) from mails where order_id = $1", &[&order]).await?;
    println!("order {order}: {mails} mail");
    Ok(())
}
