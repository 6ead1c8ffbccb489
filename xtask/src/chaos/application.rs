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

use super::clients::Workload;
use super::database::Database;
use super::faults::wait_until;
use super::instant;
use super::judge::{Records, earlier_owners_until};
use super::log::{Answer, Callback, Operation, Request, now_millis};
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
    random: Random,
    requests: Vec<(Kind, Request)>,
}

impl Application {
    /// Creates the table of the application.
    ///
    /// # Errors
    /// Returns an error if the database rejects the statement.
    pub(super) fn new(workload: &Arc<Workload>, database: &Database, random: Random) -> anyhow::Result<Self> {
        database.sql("create table orders (token text primary key)")?;
        Ok(Application { workload: workload.clone(), random, requests: Vec::new() })
    }

    /// Makes transactions until the run ends.
    pub(super) fn run(&mut self, database: &Database) {
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
            self.transact(database, kind);
        }
    }

    fn transact(&mut self, database: &Database, kind: Kind) {
        let token = format!("sql-{}", self.requests.len());
        let ahead_ms = self.random.between(1_000, self.workload.ahead_ms.min(20_000));
        let at_ms = now_millis() + ahead_ms;
        let mut spec = json!({
            "target": self.workload.target(&mut self.random),
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
        let request = self.request(database, Operation::Create, &token, at_ms, &statements);
        self.requests.push((kind, request.clone()));
        if kind == Kind::Cancels {
            self.cancel(database, &request);
        }
    }

    fn cancel(&mut self, database: &Database, created: &Request) {
        let (token, at_ms) = (&created.token, created.at_ms.unwrap_or(0));
        let statement = format!("select reveille.cancel('default', '{token}')");
        let mut request = self.request(database, Operation::Cancel, token, at_ms, &statement);
        if request.answer == Answer::Acknowledged {
            let count = format!("select count(*) from reveille.inbox where id = '{token}'");
            let is_moved = || database.sql(&count).is_ok_and(|count| count.trim() == "0");
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
    fn request(&self, database: &Database, operation: Operation, token: &str, at_ms: u64, statements: &str) -> Request {
        let asked_ms = now_millis();
        let made = database.sql(statements);
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
            is_kept: false,
            too_late: false,
            said,
        }
    }

    /// Waits until the members have moved all requests. Then logs the requests whose transactions committed, because only
    /// the table shows at the end which transactions the database has. The caller calls this function after all faults
    /// have ended.
    ///
    /// # Errors
    /// Returns an error if requests stay in the inbox, or if no transaction committed.
    pub(super) fn finish(&mut self, database: &Database) -> anyhow::Result<()> {
        let is_empty = || {
            let count = database.sql("select count(*) from reveille.inbox");
            count.is_ok_and(|count| count.trim() == "0")
        };
        ensure!(wait_until(MOVING_TIMEOUT, is_empty), "requests stay in the inbox although all faults have ended");
        let committed = self.committed(database)?;
        ensure!(!committed.is_empty(), "no transaction of the application committed");
        for (kind, request) in &mut self.requests {
            request.is_kept = *kind != Kind::RollsBack && committed.contains(&request.token);
            if request.is_kept {
                request.answer = Answer::Acknowledged;
            }
            if matches!(kind, Kind::Commits | Kind::Cancels) && request.answer == Answer::Acknowledged {
                self.workload.log.write(request);
            }
        }
        Ok(())
    }

    fn committed(&self, database: &Database) -> anyhow::Result<BTreeSet<String>> {
        let rows = database.sql("select token from orders")?;
        Ok(rows.lines().map(str::to_owned).collect())
    }

    /// Returns the failures that the logs alone do not show: an acknowledged transaction without its row, a callback
    /// of a transaction that did not commit, and dead letters other than the invalid requests.
    ///
    /// # Errors
    /// Returns an error if the database or the logs cannot be read.
    pub(super) fn check(&self, database: &Database, folder: &Path) -> anyhow::Result<Vec<String>> {
        let committed = self.committed(database)?;
        let records = Records::read(folder)?;
        let mut failures = broken_transactions(&self.requests, &committed, &records);
        let letters = database.sql("select id from reveille.inbox_dead_letter")?;
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

/// Returns the transactions that the database has lost, and the schedules that fired although their transactions did not
/// commit. A fail-over explains these if the database may have lost the commit of the transaction in it.
fn broken_transactions(requests: &[(Kind, Request)], committed: &BTreeSet<String>, records: &Records) -> Vec<String> {
    let mut failures = Vec::new();
    for (kind, request) in requests.iter().filter(|(_, request)| !committed.contains(&request.token)) {
        let commits = *kind != Kind::RollsBack;
        let lost = records.loss_of(request).filter(|_| commits);
        if commits && request.answer == Answer::Acknowledged && lost.is_none() {
            failures.push(format!("the database lost the transaction of {}", request.token));
        }
        // Until an owner notices the fail-over, it may fire a schedule whose transaction the database has lost.
        let is_permitted =
            |callback: &Callback| lost.is_some_and(|lost| callback.started_ms <= earlier_owners_until(lost));
        let history = records.histories.get(&request.token);
        if history.is_some_and(|history| !history.callbacks.iter().all(is_permitted)) {
            failures.push(format!("{} fired, but its transaction did not commit", request.token));
        }
    }
    failures
}

#[cfg(test)]
mod tests {
    use super::super::judge::tests::{DUE, callback, create, failover};
    use super::*;

    #[test]
    fn transaction_may_be_missing_only_after_a_fail_over_that_lost_it() {
        let failures = |kind, lost: (u64, u64), started_ms: Option<u64>| {
            let callbacks = started_ms.map(|started_ms| callback(started_ms, "a")).into_iter().collect();
            let records = Records::new(vec![create()], callbacks, vec![failover(lost.0, lost.1)], vec![], vec![]);
            broken_transactions(&[(kind, create())], &BTreeSet::new(), &records).len()
        };
        let lost = (90_005, DUE + 1_000);
        assert_eq!(failures(Kind::Commits, lost, None), 0);
        assert_eq!(failures(Kind::Commits, (90_011, DUE), None), 1);
        assert_eq!(failures(Kind::Commits, lost, Some(DUE + 4_000)), 0);
        assert_eq!(failures(Kind::Commits, lost, Some(DUE + 4_001)), 1);
        assert_eq!(failures(Kind::RollsBack, lost, None), 0);
        assert_eq!(failures(Kind::RollsBack, lost, Some(DUE)), 1);
    }
}
