//! Checks that cron schedules fire only at the instants that their expressions name. The oracle that computes these
//! instants shares no code with Reveille.

use cron_oracle::{Expression, Zone};

use super::super::log::{Answer, Request};
use super::{History, Promise, Verdict, Violation};

/// Time in milliseconds after a response in which the check looks for an earlier instant than the instant that the
/// response names.
const NEXT_MS_MAX: u64 = 3_600_000;

/// Cron expression of a request, in its time zone.
pub(super) struct Cron {
    expression: Expression,
    zone: &'static Zone,
}

impl Cron {
    /// Returns the expression of the request. Returns `None` if the request has no cron expression, or if the oracle
    /// does not know the expression or the time zone.
    pub(super) fn of(request: &Request) -> Option<Cron> {
        let (expression, zone) = request.cron.as_ref()?;
        Some(Cron { expression: Expression::parse(expression)?, zone: Zone::named(zone)? })
    }

    /// Returns the instants from `first_ms` to `last_ms`, both inclusive, in milliseconds since 1970.
    pub(super) fn instants(&self, first_ms: u64, last_ms: u64) -> Vec<u64> {
        let unix = |ms: u64| i64::try_from(ms / 1_000).unwrap_or(i64::MAX);
        let before_first = unix(first_ms.saturating_sub(1)) - i64::from(first_ms == 0);
        let instants = self.expression.instants(self.zone, before_first, unix(last_ms));
        instants.into_iter().filter_map(|unix| Some(u64::try_from(unix).ok()? * 1_000)).collect()
    }

    fn has(&self, at_ms: u64) -> bool {
        self.instants(at_ms, at_ms) == [at_ms]
    }

    /// Returns true if `next_ms` can be the first instant after a request that the service handled between `asked_ms`
    /// and `answered_ms`.
    fn may_be_next(&self, next_ms: u64, asked_ms: u64, answered_ms: u64) -> bool {
        let before_next = self.instants(answered_ms + 1, (next_ms - 1).min(answered_ms + NEXT_MS_MAX));
        next_ms > asked_ms && self.has(next_ms) && before_next.is_empty()
    }
}

pub(super) fn judge(token: &str, history: &History, verdict: &mut Verdict) {
    let mut broken = |how: String| {
        verdict.broken.push(Violation { promise: Promise::CronInstants, token: token.to_owned(), how });
    };
    for request in history.requests.iter().filter(|request| request.answer == Answer::Acknowledged) {
        let (Some(cron), Some(next_ms)) = (Cron::of(request), request.next_ms) else { continue };
        if !cron.may_be_next(next_ms, request.asked_ms, request.answered_ms) {
            broken(format!("the response names {next_ms} ms since 1970 as the next instant of {:?}", request.cron));
        }
    }
    for callback in &history.callbacks {
        let Some(request) = history.requested(callback.version) else { continue };
        let Some(cron) = Cron::of(request) else { continue };
        if !cron.has(callback.nominal_ms) {
            broken(format!("{:?} fired for {} ms since 1970", request.cron, callback.nominal_ms));
        }
    }
}
