//! Reminders about shopping carts. A customer that leaves items in the cart gets a reminder, and a customer that buys
//! the items gets no reminder. Each change of the cart postpones the reminder. Run `cargo run --example nudge` while
//! `reveille serve` runs.

#![expect(clippy::print_stdout, reason = "the example prints its progress")]

mod shop;

use std::time::Duration;

use axum::{Router, routing::post};
use reveille_client::ScheduleRequest;
use reveille_receiver::{Callback, Failed, Transaction};
use serde::{Deserialize, Serialize};

use shop::{Shop, after, new_number};

/// Duration that represents one hour in this example.
const HOUR: Duration = Duration::from_secs(1);
const TABLES: &str = "create table if not exists nudges (customer bigint not null, cart text not null)";

#[derive(Serialize, Deserialize)]
struct Cart {
    customer: i64,
    items: Vec<String>,
}

async fn nudge(callback: Callback, transaction: Transaction) -> Result<(), Failed> {
    let Cart { customer, items } = callback.json()?;
    transaction.execute("insert into nudges values ($1, $2)", &[&customer, &items.join(", ")]).await?;
    Ok(())
}

fn name(customer: i64) -> String {
    format!("nudge-{customer}")
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let shop = Shop::open(TABLES).await?;
    let url = shop.listen(Router::new().route("/nudge", post(nudge))).await?;
    let (leaves, buys) = (new_number(), new_number());
    for customer in [leaves, buys] {
        let mut cart = Cart { customer, items: Vec::new() };
        for item in ["a phone", "a case"] {
            cart.items.push(item.to_owned());
            // Each change of the cart replaces the reminder. The new reminder is due three hours after the change, and
            // lists the current items of the cart.
            let request = ScheduleRequest::at(after(3 * HOUR), format!("{url}/nudge")).payload(&cart)?;
            shop.reveille.put(&name(customer), &request).await?;
            println!("customer {customer} puts {item} into the cart");
        }
    }
    shop.reveille.cancel(&name(buys)).await?;
    println!("customer {buys} buys");

    shop.until("select count(*) > 0 from nudges where customer = $1", &[&leaves]).await?;
    for customer in [leaves, buys] {
        let reminded: Option<String> =
            shop.query("select string_agg(cart, '; ') from nudges where customer = $1", &[&customer]).await?;
        println!("customer {customer} is reminded of {}", reminded.as_deref().unwrap_or("nothing"));
    }
    Ok(())
}
