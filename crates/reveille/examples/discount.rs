//! Discounts. One schedule turns a discount on and another schedule turns it off, each exactly once. Run `cargo run
//! --example discount` while `reveille serve` runs.

#![expect(clippy::print_stdout, reason = "the example prints its progress")]

mod shop;

use std::time::Duration;

use axum::{Router, routing::post};
use reveille_client::ScheduleRequest;
use reveille_receiver::{Callback, Failed, Transaction};
use serde::{Deserialize, Serialize};

use shop::{Shop, after, new_number};

/// Duration that represents one day in this example.
const DAY: Duration = Duration::from_secs(1);
const TABLES: &str = "\
create table if not exists discounts (name text primary key, is_active bool not null, is_over bool not null);
create table if not exists switched (name text not null, is_active bool not null, at timestamptz not null default now());";

#[derive(Serialize, Deserialize)]
struct Switch {
    discount: String,
    is_active: bool,
}

/// Handler that turns the discount on or off. A retry may change the order of the two callbacks. The handler therefore
/// does not turn on a discount that is already over.
async fn switch(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let Switch { discount, is_active } = callback.json()?;
    let update = "update discounts set is_active = $2 and not is_over, is_over = is_over or not $2 where name = $1";
    transaction.execute(update, &[&discount, &is_active]).await?;
    transaction.execute("insert into switched values ($1, $2)", &[&discount, &is_active]).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = Shop::open(TABLES).await?;
    let url = shop.listen(Router::new().route("/switch", post(switch))).await?;
    let discount = format!("summer-{}", new_number());
    shop.execute("insert into discounts values ($1, false, false)", &[&discount]).await?;

    let start = after(Duration::ZERO);
    // The program schedules the end of the discount first. If it then fails before it schedules the start, the discount
    // never starts.
    for (is_active, at) in [(false, start + DAY * 3), (true, start + DAY * 2)] {
        let payload = Switch { discount: discount.clone(), is_active };
        let request = ScheduleRequest::at(at, format!("{url}/switch"))
            .payload(&payload)?
            .label("discount", &discount)
            .retry(20, Duration::from_secs(1));
        let name = format!("{discount}-{}", if is_active { "on" } else { "off" });
        shop.reveille.put(&name, &request).await?;
        println!("{name} is scheduled at {at}");
    }

    shop.until("select count(*) = 1 from switched where name = $1 and is_active", &[&discount]).await?;
    println!("{discount} is on");
    shop.until("select is_over from discounts where name = $1", &[&discount]).await?;
    println!("{discount} is off");
    let switched: i64 = shop.query("select count(*) from switched where name = $1", &[&discount]).await?;
    println!("the schedules changed the discount {switched} times");
    Ok(())
}
