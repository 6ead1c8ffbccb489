//! Requests sent for each cart, their responses, and the callbacks that arrived.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cli_support::receiver::{Sink, header};
use domain::{RunId, Timestamp};
use hdrhistogram::Histogram;
use runtime::Runtime;
use serde::Serialize;

use crate::load::{Exchange, latencies};
use crate::message::{Head, Schedules, write_request};

/// Time from a callback's due instant until the callback counts as lost. This time applies while the trial still
/// expects later callbacks.
const LATE: Duration = Duration::from_secs(30);

/// Carts of one trial. A cart's id contains the trial's number, so that the trial ignores callbacks of an earlier trial
/// in the same folder.
pub(super) struct Carts {
    prefix: String,
    records: Mutex<Records>,
}

struct Records {
    /// Carts by number.
    carts: Vec<Cart>,
    /// Lateness of the callbacks that arrived since the last call of [`Carts::take_lateness`].
    lateness: Histogram<u64>,
    doubled: u64,
    early: u64,
    unwanted: u64,
    last_due: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Cart {
    state: State,
    /// Due instant that the last request set. The trial may still wait for the response to this request.
    requested: Timestamp,
    /// Due instant that the last response confirmed.
    due: Timestamp,
    has_arrived: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No response has confirmed the cart's schedule.
    Nothing,
    Wanted,
    /// The trial requested the cancellation but has no response yet, so it does not know whether the schedule is
    /// cancelled.
    Cancelling,
    Cancelled,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Counts {
    pub(super) made: u64,
    pub(super) called_off: u64,
    pub(super) arrived: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) early: u64,
    /// Number of callbacks for cancelled or unknown carts, and of callbacks at a due instant that a move has replaced.
    pub(super) unwanted: u64,
}

impl Counts {
    pub(super) fn summary(&self) -> String {
        let Counts { made, called_off, arrived, lost, doubled, early, unwanted } = self;
        format!(
            "{made} carts created, {called_off} carts cancelled, {arrived} callbacks arrived; \
             callbacks: {lost} lost, {doubled} duplicated, {early} early, {unwanted} unwanted"
        )
    }

    pub(super) fn faults(&self) -> Vec<String> {
        let wrong = self.lost + self.doubled + self.early + self.unwanted;
        let mut faults = Vec::new();
        if wrong > 0 {
            faults.push(format!("{wrong} callbacks were lost, duplicated, early or unwanted"));
        }
        if self.arrived == 0 {
            faults.push("no callback arrived".to_owned());
        }
        faults
    }
}

impl Carts {
    pub(super) fn new(trial: u64) -> Self {
        let records = Records {
            carts: Vec::new(),
            lateness: latencies(),
            doubled: 0,
            early: 0,
            unwanted: 0,
            last_due: Timestamp::MIN,
        };
        Carts { prefix: format!("cart-{trial:016x}-"), records: Mutex::new(records) }
    }

    fn records(&self) -> MutexGuard<'_, Records> {
        self.records.lock().expect("no task panics while it holds this lock")
    }

    /// Returns the counts as of `now`.
    pub(super) fn counts(&self, now: Timestamp) -> Counts {
        let records = self.records();
        let mut counts =
            Counts { doubled: records.doubled, early: records.early, unwanted: records.unwanted, ..Counts::default() };
        // After the last due instant, every missing callback counts as lost at once.
        let late = if now > records.last_due { Duration::ZERO } else { LATE };
        for cart in &records.carts {
            counts.made += u64::from(cart.state != State::Nothing);
            counts.called_off += u64::from(cart.state == State::Cancelled);
            counts.arrived += u64::from(cart.has_arrived);
            // The server may have applied a move whose response the trial has not received, so the callback may be due
            // at the old or at the new instant. The trial waits for the later instant.
            let is_due = now > cart.due.max(cart.requested) + late;
            counts.lost += u64::from(cart.state == State::Wanted && !cart.has_arrived && is_due);
        }
        counts
    }

    pub(super) fn take_lateness(&self) -> Histogram<u64> {
        std::mem::replace(&mut self.records().lateness, latencies())
    }

    pub(super) fn last_due(&self) -> Timestamp {
        self.records().last_due
    }

    fn id(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }

    fn record_request(&self, number: u64, due: Timestamp) {
        let mut records = self.records();
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let nothing = Cart { state: State::Nothing, requested: due, due, has_arrived: false };
        if records.carts.len() <= at {
            records.carts.resize(at + 1, nothing);
        }
        records.carts[at].requested = due;
        records.last_due = records.last_due.max(due);
    }

    /// Records that the trial requests a cancellation. Until the response arrives, the trial does not know whether the
    /// schedule is cancelled.
    fn record_cancellation(&self, number: u64) {
        let mut records = self.records();
        let Some(cart) = usize::try_from(number).ok().and_then(|at| records.carts.get_mut(at)) else { return };
        if cart.state == State::Wanted {
            cart.state = State::Cancelling;
        }
    }

    fn record_response(&self, number: u64, state: State) {
        let mut records = self.records();
        let Some(cart) = usize::try_from(number).ok().and_then(|at| records.carts.get_mut(at)) else { return };
        (cart.state, cart.due) = (state, cart.requested);
    }

    fn arrived_for(&self, number: u64, nominal: Timestamp, at_micros: i64) {
        let mut records = self.records();
        let Some(cart) = usize::try_from(number).ok().and_then(|at| records.carts.get_mut(at)) else {
            records.unwanted += 1;
            return;
        };
        let is_duplicate = std::mem::replace(&mut cart.has_arrived, true);
        // The trial accepts a callback at the old or at the new due instant of a move, because the server may have
        // applied a move whose response was lost.
        let is_wanted = cart.state != State::Cancelled && (nominal == cart.due || nominal == cart.requested);
        let late = at_micros - nominal.as_millis() * 1_000;
        records.doubled += u64::from(is_duplicate);
        records.unwanted += u64::from(!is_wanted);
        records.early += u64::from(late < 0);
        records.lateness.saturating_record(u64::try_from(late).unwrap_or(0));
    }
}

impl Sink for Carts {
    fn arrived(&self, at_micros: i64, head: &httparse::Request<'_, '_>, _body: &[u8]) {
        let number = header(head, "reveille-schedule-id").strip_prefix(&self.prefix).and_then(|rest| rest.parse().ok());
        if let (Some(number), Some(occurrence)) = (number, RunId::parse(header(head, "webhook-id"))) {
            self.arrived_for(number, occurrence.nominal, at_micros);
        }
    }
}

/// Kind of requests for carts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestKind {
    Create,
    Move,
    /// Cancels every second cart.
    Cancel,
}

pub(super) struct CartRequests {
    pub(super) kind: RequestKind,
    /// Number of the cart that the first request concerns.
    pub(super) first: u64,
    pub(super) carts: Arc<Carts>,
    pub(super) head: Head,
    pub(super) target_url: String,
    pub(super) runtime: Runtime,
    /// Time from the request to the due instant of the callback.
    pub(super) due_in: Duration,
}

impl CartRequests {
    fn number(&self, index: u64) -> u64 {
        match self.kind {
            RequestKind::Create | RequestKind::Move => self.first + index,
            RequestKind::Cancel => self.first + 2 * index,
        }
    }
}

impl Exchange for CartRequests {
    fn write(&self, index: u64, out: &mut Vec<u8>) {
        let number = self.number(index);
        let path = format!("/v1/schedules/{}", self.carts.id(number));
        if self.kind == RequestKind::Cancel {
            self.carts.record_cancellation(number);
            return write_request("DELETE", &path, &self.head, b"", out);
        }
        let due = self.runtime.now() + self.due_in;
        self.carts.record_request(number, due);
        let mut body = Vec::with_capacity(1_200);
        let schedules = Schedules { targets: vec![self.target_url.clone()].into(), first_at: due, gap_micros: 0 };
        schedules.write_json(number, &mut body);
        write_request("PUT", &path, &self.head, &body, out);
    }

    fn accept(&self, index: u64, status: u16, body: &[u8]) -> bool {
        let number = self.number(index);
        let (is_good, state) = match self.kind {
            RequestKind::Create => (status == 201, State::Wanted),
            RequestKind::Move => (status == 200, State::Wanted),
            RequestKind::Cancel => (status == 200 && body == br#"{"result":"cancelled"}"#, State::Cancelled),
        };
        if is_good {
            self.carts.record_response(number, state);
        } else if self.kind == RequestKind::Cancel && status == 200 {
            // The response reports that the cancellation came too late.
            self.carts.record_response(number, State::Wanted);
        }
        is_good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: i64 = 1_800_000_000_000;

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(DUE + millis)
    }

    /// Returns five carts: a cart without a response, a wanted cart, a cart moved by one second, a cancelled cart, and
    /// a wanted cart.
    fn carts() -> Carts {
        let carts = Carts::new(7);
        for number in 0..5 {
            carts.record_request(number, at(0));
            if number > 0 {
                carts.record_response(number, State::Wanted);
            }
        }
        carts.record_request(2, at(1_000));
        carts.record_response(2, State::Wanted);
        carts.record_response(3, State::Cancelled);
        carts
    }

    fn arrive(carts: &Carts, number: u64, nominal: i64, late_micros: i64) {
        carts.arrived_for(number, at(nominal), (DUE + nominal) * 1_000 + late_micros);
    }

    #[test]
    fn wanted_callback_that_does_not_arrive_in_time_counts_as_lost() {
        let carts = carts();
        arrive(&carts, 1, 0, 5);
        arrive(&carts, 2, 1_000, 700);
        let counts = carts.counts(at(500));
        assert_eq!((counts.made, counts.called_off, counts.arrived, counts.lost), (4, 1, 2, 0));
        assert_eq!(carts.counts(at(1_001)).lost, 1, "no later callback is expected");
        assert_eq!(carts.take_lateness().max(), 700);
        assert_eq!(carts.take_lateness().len(), 0);
        arrive(&carts, 4, 0, 9);
        assert_eq!(carts.counts(at(1_001)).faults(), [] as [String; 0]);
    }

    #[test]
    fn callback_does_not_count_as_lost_during_a_change_of_its_schedule() {
        let carts = carts();
        carts.record_cancellation(1);
        carts.record_request(4, at(60_000));
        for number in [0, 2] {
            arrive(&carts, number, 1_000, 5);
        }
        assert_eq!(carts.counts(at(31_000)).lost, 0);
        assert_eq!(
            carts.counts(at(60_001)).lost,
            1,
            "the callback arrived neither at the old nor at the moved instant"
        );
        carts.record_response(1, State::Wanted);
        assert_eq!(carts.counts(at(60_001)).lost, 2, "the response reports that the cancellation came too late");
    }

    #[test]
    fn soak_test_counts_duplicate_early_and_unwanted_callbacks() {
        let carts = carts();
        arrive(&carts, 1, 0, 5);
        arrive(&carts, 1, 0, 6);
        arrive(&carts, 2, 0, 1);
        arrive(&carts, 3, 0, 1);
        arrive(&carts, 4, 0, -1);
        arrive(&carts, 9, 0, 1);
        let counts = carts.counts(at(1_001));
        assert_eq!((counts.doubled, counts.unwanted, counts.early, counts.lost), (1, 3, 1, 0));
        assert_eq!(counts.faults().len(), 1);
        assert_eq!(Counts::default().faults(), ["no callback arrived"]);
    }
}
