//! Activation of styles. A style is a product of the shop. It appears in the shop's listing and search at a scheduled
//! time, which the shop can change. Run `cargo run --example activation` while `reveille serve` runs.

#![expect(clippy::print_stdout, reason = "the example prints its progress")]

mod shop;

use std::time::Duration;

use axum::{Router, routing::post};
use reveille_client::ScheduleRequest;
use reveille_receiver::{Callback, Failed, Transaction};

use shop::{Shop, after, new_number};

/// Duration that represents one day in this example.
const DAY: Duration = Duration::from_secs(1);
const TABLES: &str = "\
create table if not exists styles (
    number bigint primary key, is_listed bool not null default false, onboarded_at timestamptz not null default now()
);
create table if not exists activations (style bigint not null, at timestamptz not null default now());";

async fn activate(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let style: i64 = callback.json()?;
    transaction.execute("update styles set is_listed = true where number = $1", &[&style]).await?;
    transaction.execute("insert into activations values ($1)", &[&style]).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = Shop::open(TABLES).await?;
    let url = shop.listen(Router::new().route("/activate", post(activate))).await?;
    let style = new_number();
    shop.execute("insert into styles values ($1)", &[&style]).await?;
    let name = format!("activate-{style}");
    let on_day = |day: u32| ScheduleRequest::at(after(DAY * day), format!("{url}/activate")).payload(&style);

    shop.reveille.put(&name, &on_day(2)?).await?;
    println!("the activation of style {style} is scheduled for day 2");
    let moved = shop.reveille.put(&name, &on_day(4)?).await?;
    println!(
        "the photos are late, so the shop moves the activation to day 4: the schedule now has revision {}",
        moved.schedule.revision
    );

    shop.until("select is_listed from styles where number = $1", &[&style]).await?;
    let activations: i64 = shop.query("select count(*) from activations where style = $1", &[&style]).await?;
    println!("style {style} is in the shop's listing; number of activations: {activations}");
    Ok(())
}
