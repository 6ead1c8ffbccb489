//! The examples, run to their end against the real server, each with a database of its own: what they tell, and what they leave.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use test_servers::postgres;

use crate::server::Server;

/// What an example told, and the database that it left.
struct Told {
    text: String,
    database: String,
}

impl Told {
    /// Numbers of orders and payments are longer than this, and different each time.
    #[track_caller]
    fn says(&self, sentence: &str) {
        let plain = |line: &str| -> String {
            let words = line.split(' ').map(|word| match word.trim_end_matches(':') {
                digits if digits.len() > 12 && digits.bytes().all(|byte| byte.is_ascii_digit()) => "N",
                _ => word,
            });
            words.collect::<Vec<_>>().join(" ")
        };
        assert!(self.text.lines().any(|line| plain(line) == sentence), "{sentence:?} is not in\n{}", self.text);
    }

    fn asks(&self, query: &str) -> String {
        postgres::shared().sql(&self.database, query).unwrap().trim().to_owned()
    }
}

/// `cargo test` builds the examples beside the tests.
fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().parent().unwrap().join("examples").join(name)
}

fn run(name: &str) -> Told {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let url = postgres::shared().create_database().unwrap();
    let mut command = Command::new(program(name));
    for variable in ["REVEILLE_URL", "REVEILLE_KEY_FILE", "REVEILLE_SECRET_FILE", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command.env("REVEILLE_DATA", &data).env("DATABASE_URL", &url).stdin(Stdio::null());
    let output = command.output().expect("`cargo test` has built the example, or `cargo build --examples` does");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(server.stop().success());
    Told { text, database: url.rsplit_once('/').unwrap().1.to_owned() }
}

#[test]
fn an_sla_that_is_missed_is_escalated_once_and_one_that_is_met_is_not() {
    let told = run("sla");
    told.says("order N late with shipping");
    told.says("order N late with nothing");
    assert_eq!(told.asks("select count(*), min(stage) from escalations"), "1|shipping");
}

#[test]
fn what_fails_is_tried_again_until_it_can_be_done() {
    let told = run("retry");
    told.says("attempt 1: status 500");
    told.says("attempt 2: status 500");
    let last = told.text.lines().rfind(|line| line.starts_with("attempt")).unwrap();
    assert!(last.ends_with("status 200"), "{}", told.text);
    assert_eq!(told.asks("select is_filed from invoices"), "t");
}

#[test]
fn a_discount_is_turned_on_and_then_off_exactly_once_each() {
    let told = run("discount");
    told.says("it was switched 2 times");
    assert_eq!(told.asks("select string_agg(is_active::text, ' ' order by at) from switched"), "true false");
    assert_eq!(told.asks("select is_active, is_over from discounts"), "f|t");
}

#[test]
fn a_campaign_reaches_all_of_its_segment_once_but_for_who_opted_out() {
    let told = run("campaign");
    told.says("49 notifications went to 49 customers");
    assert_eq!(told.asks("select count(*), count(distinct customer) from notifications where customer <> 17"), "49|49");
    assert_eq!(told.asks("select count(*) from notifications where customer = 17"), "0");
}

#[test]
fn a_payment_is_asked_for_until_it_is_settled_and_refunded_once() {
    let told = run("payment");
    told.says("payment N is refunded");
    let statuses = told.asks("select status, count(*) from queries group by status order by status desc");
    let (unknown, taken) = statuses.split_once('\n').unwrap();
    assert!(unknown.starts_with("unknown|") && unknown != "unknown|1", "{statuses}");
    assert_eq!(taken, "taken|1");
    assert_eq!(told.asks("select count(*) from refunds"), "1");
}

#[test]
fn a_product_is_activated_at_the_time_that_it_was_moved_to_and_not_again() {
    let told = run("activation");
    told.says("style N is listed: it was activated 1 time");
    let on_day_4 =
        "select is_listed and at >= onboarded_at + interval '4 s' from styles join activations on style = number";
    assert_eq!(told.asks(on_day_4), "t");
}

#[test]
fn a_delivery_that_is_told_twice_is_followed_by_one_mail() {
    let told = run("feedback");
    told.says("order N is delivered, says the courier: known");
    told.says("order N 1 mail");
    assert_eq!(told.asks("select count(*) from mails"), "1");
}

#[test]
fn who_leaves_a_cart_is_reminded_of_all_of_it_once_and_who_buys_is_not() {
    let told = run("nudge");
    told.says("customer N is reminded of nothing");
    assert_eq!(told.asks("select count(*), min(cart) from nudges"), "1|a phone, a case");
}

#[test]
fn an_example_without_a_server_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program("sla")).env_remove("REVEILLE_URL").env("REVEILLE_DATA", folder.path()).output();
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("reveille serve") && said.contains("--data"), "{said}");
}
