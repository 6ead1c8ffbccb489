//! Tests that run each example to its end, with a real server and a new database. The tests check the output of the
//! example and the rows in its database.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use test_servers::postgres;

use crate::server::Server;

/// Output of an example that has ended, and the name of its database.
struct Finished {
    text: String,
    database: String,
}

impl Finished {
    /// Checks that the output has this line, with `N` in place of the numbers of orders and payments. These numbers
    /// differ in each run and have more digits than all other numbers.
    #[track_caller]
    fn printed(&self, sentence: &str) {
        let plain = |line: &str| -> String {
            let words = line.split(' ').map(|word| match word.trim_end_matches(':') {
                digits if digits.len() > 12 && digits.bytes().all(|byte| byte.is_ascii_digit()) => "N",
                _ => word,
            });
            words.collect::<Vec<_>>().join(" ")
        };
        assert!(self.text.lines().any(|line| plain(line) == sentence), "{sentence:?} is not in\n{}", self.text);
    }

    fn query(&self, query: &str) -> String {
        postgres::shared().sql(&self.database, query).unwrap().trim().to_owned()
    }
}

/// Returns the path of an example. `cargo test` builds the examples into the folder beside the tests.
pub(crate) fn program(name: &str) -> PathBuf {
    let tests = std::env::current_exe().unwrap();
    tests.parent().unwrap().parent().unwrap().join("examples").join(name)
}

fn run(name: &str) -> Finished {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let server = Server::start(&data);
    let url = postgres::shared().create_database().unwrap();
    let mut command = Command::new(program(name));
    for variable in ["REVEILLE_URL", "REVEILLE_KEY_FILE", "REVEILLE_SECRET_FILE", "RUST_LOG"] {
        command.env_remove(variable);
    }
    command.env("REVEILLE_DATA", &data).env("DATABASE_URL", &url).stdin(Stdio::null());
    let output = command.output().expect("the example is built; `cargo build --examples` builds it");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    assert!(server.stop().success());
    Finished { text, database: url.rsplit_once('/').unwrap().1.to_owned() }
}

#[test]
fn sla_example_escalates_only_the_late_order_and_only_once() {
    let example = run("sla");
    example.printed("order N late with shipping");
    example.printed("order N late with nothing");
    assert_eq!(example.query("select count(*), min(stage) from escalations"), "1|shipping");
}

#[test]
fn retry_example_retries_a_callback_until_it_succeeds() {
    let example = run("retry");
    example.printed("attempt 1: status 500");
    example.printed("attempt 2: status 500");
    let last = example.text.lines().rfind(|line| line.starts_with("attempt")).unwrap();
    assert!(last.ends_with("status 200"), "{}", example.text);
    assert_eq!(example.query("select is_filed from invoices"), "t");
}

#[test]
fn discount_example_turns_a_discount_on_and_off_exactly_once() {
    let example = run("discount");
    example.printed("the schedules changed the discount 2 times");
    assert_eq!(example.query("select string_agg(is_active::text, ' ' order by at) from switched"), "true false");
    assert_eq!(example.query("select is_active, is_over from discounts"), "f|t");
}

#[test]
fn campaign_example_notifies_each_customer_at_most_once() {
    let example = run("campaign");
    example.printed("49 notifications went to 49 customers");
    assert_eq!(
        example.query("select count(*), count(distinct customer) from notifications where customer <> 17"),
        "49|49"
    );
    assert_eq!(example.query("select count(*) from notifications where customer = 17"), "0");
}

#[test]
fn payment_example_refunds_a_payment_exactly_once() {
    let example = run("payment");
    example.printed("payment N is refunded");
    let statuses = example.query("select status, count(*) from queries group by status order by status desc");
    let (unknown, taken) = statuses.split_once('\n').unwrap();
    assert!(unknown.starts_with("unknown|") && unknown != "unknown|1", "{statuses}");
    assert_eq!(taken, "taken|1");
    assert_eq!(example.query("select count(*) from refunds"), "1");
}

#[test]
fn activation_example_activates_a_rescheduled_product_once() {
    let example = run("activation");
    example.printed("style N is in the shop's listing; number of activations: 1");
    let on_day_4 =
        "select is_listed and at >= onboarded_at + interval '4 s' from styles join activations on style = number";
    assert_eq!(example.query(on_day_4), "t");
}

#[test]
fn feedback_example_sends_one_mail_for_two_delivery_reports() {
    let example = run("feedback");
    example.printed("order N is delivered: the feedback mail is already scheduled");
    example.printed("order N 1 mail");
    assert_eq!(example.query("select count(*) from mails"), "1");
}

#[test]
fn nudge_example_reminds_a_customer_once_but_not_after_a_purchase() {
    let example = run("nudge");
    example.printed("customer N is reminded of nothing");
    assert_eq!(example.query("select count(*), min(cart) from nudges"), "1|a phone, a case");
}

#[test]
fn example_error_names_the_serve_command_if_no_server_runs() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(program("sla")).env_remove("REVEILLE_URL").env("REVEILLE_DATA", folder.path()).output();
    let output = output.unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && message.contains("reveille serve") && message.contains("--data"), "{message}");
}
