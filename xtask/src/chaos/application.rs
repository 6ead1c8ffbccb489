//! Application of a chaos test. It requests schedules and cancellations in SQL, in the same transactions as rows of its
//! own table, and logs the requests. At the end, the table shows which transactions committed.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::json;
use test_servers::postgres::Postgres;

use super::clients::Workload;
use super::faults::wait_until;
use super::instant;
use super::judge::Records;
use super::log::{Answer, Operation, Request, now_millis};
use super::random::Random;

/// Time between two transactions.
const PERIOD: Duration = Duration::from_millis(150);
/// Time in milliseconds after which no callback of a cancelled schedule starts, once an owner has processed the
/// cancellation: the lease of 2 s, and the largest difference between the clocks.
const DECIDED_MS: u64 = 2_500;
/// Longest wait until the members have processed a cancellation, or all requests at the end.
const MOVING_TIMEOUT: Duration = Duration::from_secs(60);

/// Kinds of transactions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Commits,
    RollsBack,
    /// The transaction commits, but its schedule is invalid. The owner of the shard has to reject it.
    Invalid,
    Cancels,
}

pub(super) struct Application {
    workload: Arc<Workload>,
    database: String,
    random: Random,
    requests: Vec<(Kind, Request)>,
}

impl Application {
    /// Creates the table of the application.
    ///
    /// # Errors
    /// Returns an error if the database rejects the statement.
    pub(super) fn new(
        workload: &Arc<Workload>,
        postgres: &Postgres,
        database: &str,
        random: Random,
    ) -> anyhow::Result<Self> {
        postgres.sql(database, "create table orders (token text primary key)")?;
        Ok(Application { workload: workload.clone(), database: database.to_owned(), random, requests: Vec::new() })
    }

    /// Makes transactions until the run ends.
    pub(super) fn run(&mut self, postgres: &Postgres) {
        let mut next = Instant::now();
        while !self.workload.is_over.load(Ordering::Relaxed) {
            thread::sleep(next.saturating_duration_since(Instant::now()));
            next = (next + PERIOD).max(Instant::now());
            let kind = match self.random.between(1, 20) {
                1..=2 => Kind::RollsBack,
                3 => Kind::Invalid,
                4..=5 => Kind::Cancels,
                _ => Kind::Commits,
            };
            self.transact(postgres, kind);
        }
    }

    fn transact(&mut self, postgres: &Postgres, kind: Kind) {
        let token = format!("sql-{}", self.requests.len());
        let ahead_ms = self.random.between(1_000, self.workload.ahead_ms.min(20_000));
        let at_ms = now_millis() + ahead_ms;
        let mut spec = json!({
            "target": { "http": { "url": self.workload.target, "timeout": "5s" } },
            "payload": { "token": token, "version": 1 },
            "retry": { "attempts_max": 20, "backoff": "500ms", "backoff_max": "2s" },
        });
        match kind {
            Kind::Invalid => spec["cron"] = json!("0 25 * * *"),
            Kind::Commits | Kind::RollsBack | Kind::Cancels => spec["at"] = json!(instant::text(at_ms)),
        }
        let end = if kind == Kind::RollsBack { "rollback" } else { "commit" };
        let statements = format!(
            "begin; insert into orders values ('{token}'); select reveille.schedule('default', '{token}', '{spec}'); {end}"
        );
        let request = self.request(postgres, Operation::Create, &token, at_ms, &statements);
        self.requests.push((kind, request.clone()));
        // Of the other transactions, only the table shows at the end whether they committed.
        if matches!(kind, Kind::Commits | Kind::Cancels) && request.answer == Answer::Acknowledged {
            self.workload.log.write(&request);
        }
        if kind == Kind::Cancels {
            self.cancel(postgres, &request);
        }
    }

    fn cancel(&mut self, postgres: &Postgres, created: &Request) {
        let (token, at_ms) = (&created.token, created.at_ms.unwrap_or(0));
        let statement = format!("select reveille.cancel('default', '{token}')");
        let mut request = self.request(postgres, Operation::Cancel, token, at_ms, &statement);
        if request.answer == Answer::Acknowledged {
            let count = format!("select count(*) from reveille.inbox where id = '{token}'");
            let is_moved = || postgres.sql(&self.database, &count).is_ok_and(|count| count.trim() == "0");
            request.answer = Answer::Unknown;
            if wait_until(MOVING_TIMEOUT, is_moved) {
                request.answer = Answer::Pending;
                request.answered_ms = now_millis();
                request.decided_by_ms = Some(request.answered_ms + DECIDED_MS);
            }
        }
        self.workload.log.write(&request);
    }

    /// Runs the statements. The answer is `Unknown` if the statements failed, because they may have committed.
    fn request(&self, postgres: &Postgres, operation: Operation, token: &str, at_ms: u64, statements: &str) -> Request {
        let asked_ms = now_millis();
        let made = postgres.sql(&self.database, statements);
        self.workload.requests.fetch_add(1, Ordering::Relaxed);
        let said = made.as_ref().err().map(|error| format!("{error:#}").chars().take(300).collect());
        Request {
            token: token.to_owned(),
            operation,
            version: 1,
            at_ms: Some(at_ms),
            every_ms: None,
            cron: None,
            member: "SQL".to_owned(),
            asked_ms,
            answered_ms: now_millis(),
            answer: if made.is_ok() { Answer::Acknowledged } else { Answer::Unknown },
            status: 0,
            id: Some(token.to_owned()),
            next_ms: None,
            decided_by_ms: None,
            too_late: false,
            said,
        }
    }

    /// Waits until the members have moved all requests, and logs the requests whose transactions committed although
    /// the application received no response. The caller calls this function after all faults have ended.
    ///
    /// # Errors
    /// Returns an error if requests stay in the inbox, or if no transaction committed.
    pub(super) fn finish(&mut self, postgres: &Postgres) -> anyhow::Result<()> {
        let is_empty = || {
            let count = postgres.sql(&self.database, "select count(*) from reveille.inbox");
            count.is_ok_and(|count| count.trim() == "0")
        };
        ensure!(wait_until(MOVING_TIMEOUT, is_empty), "requests stay in the inbox although all faults have ended");
        let committed = self.committed(postgres)?;
        ensure!(!committed.is_empty(), "no transaction of the application committed");
        for (kind, request) in &mut self.requests {
            let is_open = matches!(kind, Kind::Commits | Kind::Cancels) && request.answer == Answer::Unknown;
            if is_open && committed.contains(&request.token) {
                request.answer = Answer::Acknowledged;
                self.workload.log.write(request);
            }
        }
        Ok(())
    }

    fn committed(&self, postgres: &Postgres) -> anyhow::Result<BTreeSet<String>> {
        let rows = postgres.sql(&self.database, "select token from orders")?;
        Ok(rows.lines().map(str::to_owned).collect())
    }

    /// Returns the failures that the logs alone do not show: an acknowledged transaction without its row, a callback
    /// of a transaction that did not commit, and dead letters other than the invalid requests.
    ///
    /// # Errors
    /// Returns an error if the database or the logs cannot be read.
    pub(super) fn check(&self, postgres: &Postgres, folder: &Path) -> anyhow::Result<Vec<String>> {
        let committed = self.committed(postgres)?;
        let records = Records::read(folder)?;
        let mut failures = Vec::new();
        for (kind, request) in &self.requests {
            let is_committed = committed.contains(&request.token);
            if *kind != Kind::RollsBack && request.answer == Answer::Acknowledged && !is_committed {
                failures.push(format!("the database lost the transaction of {}", request.token));
            }
            let has_fired = records.histories.get(&request.token).is_some_and(|it| !it.callbacks.is_empty());
            if has_fired && !is_committed {
                failures.push(format!("{} fired, but its transaction did not commit", request.token));
            }
        }
        let letters = postgres.sql(&self.database, "select id from reveille.inbox_dead_letter")?;
        let letters: BTreeSet<String> = letters.lines().map(str::to_owned).collect();
        let is_invalid =
            |(kind, request): &&(Kind, Request)| *kind == Kind::Invalid && committed.contains(&request.token);
        let invalid: BTreeSet<String> =
            self.requests.iter().filter(is_invalid).map(|(_, request)| request.token.clone()).collect();
        if letters != invalid {
            failures.push(format!("the dead letters of the inbox are {letters:?} instead of {invalid:?}"));
        }
        Ok(failures)
    }
}
