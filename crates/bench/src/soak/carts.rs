//! What was asked for each cart, what was answered, and what arrived.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use cli_support::receiver::{Sink, header};
use domain::{RunId, Timestamp};
use hdrhistogram::Histogram;
use runtime::Runtime;
use serde::Serialize;

use crate::load::{Exchange, latencies};
use crate::message::{Head, Schedules, write_request};

/// How long after its instant a callback that has not come counts as lost, while others are still to come.
const LATE: Duration = Duration::from_secs(30);

/// Of one trial; a cart's id has the trial's number in it, so that those of an earlier one in the same folder are nobody's.
pub(super) struct Carts {
    prefix: String,
    kept: Mutex<Kept>,
}

struct Kept {
    /// By their number.
    carts: Vec<Cart>,
    /// Of what arrived since it was last taken.
    lateness: Histogram<u64>,
    doubled: u64,
    early: u64,
    unwanted: u64,
    last_due: Timestamp,
}

#[derive(Clone, Copy, Debug)]
struct Cart {
    state: State,
    /// What was asked for last, and may not have been answered yet.
    asked: Timestamp,
    /// When its callback is due, by the last answer.
    due: Timestamp,
    has_arrived: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// No answer says that there is one.
    Nothing,
    Wanted,
    /// That was asked for; whether it was done is not known until it is answered.
    CallingOff,
    CalledOff,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Counts {
    pub(super) made: u64,
    pub(super) called_off: u64,
    pub(super) arrived: u64,
    pub(super) lost: u64,
    pub(super) doubled: u64,
    pub(super) early: u64,
    /// Of carts that were called off, or at an instant that was moved.
    pub(super) unwanted: u64,
}

impl Counts {
    pub(super) fn in_words(&self) -> String {
        let Counts { made, called_off, arrived, lost, doubled, early, unwanted } = self;
        format!(
            "{made} carts, {called_off} called off, {arrived} callbacks: {lost} lost, {doubled} doubled, {early} early, {unwanted} \
             not wanted any more"
        )
    }

    pub(super) fn faults(&self) -> Vec<String> {
        let wrong = self.lost + self.doubled + self.early + self.unwanted;
        let mut faults = Vec::new();
        if wrong > 0 {
            faults.push(format!("{wrong} callbacks were lost, doubled, early or not wanted any more"));
        }
        if self.arrived == 0 {
            faults.push("no callback arrived".to_owned());
        }
        faults
    }
}

impl Carts {
    pub(super) fn new(trial: u64) -> Self {
        let kept = Kept {
            carts: Vec::new(),
            lateness: latencies(),
            doubled: 0,
            early: 0,
            unwanted: 0,
            last_due: Timestamp::MIN,
        };
        Carts { prefix: format!("cart-{trial:016x}-"), kept: Mutex::new(kept) }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no holder of this lock panics")
    }

    /// As of `now`.
    pub(super) fn counts(&self, now: Timestamp) -> Counts {
        let kept = self.kept();
        let mut counts =
            Counts { doubled: kept.doubled, early: kept.early, unwanted: kept.unwanted, ..Counts::default() };
        // Whoever waits for the last ones is told of each that is missing.
        let late = if now > kept.last_due { Duration::ZERO } else { LATE };
        for cart in &kept.carts {
            counts.made += u64::from(cart.state != State::Nothing);
            counts.called_off += u64::from(cart.state == State::CalledOff);
            counts.arrived += u64::from(cart.has_arrived);
            // Of a move that was not answered, nobody knows whether it was made.
            let is_due = now > cart.due.max(cart.asked) + late;
            counts.lost += u64::from(cart.state == State::Wanted && !cart.has_arrived && is_due);
        }
        counts
    }

    pub(super) fn take_lateness(&self) -> Histogram<u64> {
        std::mem::replace(&mut self.kept().lateness, latencies())
    }

    pub(super) fn last_due(&self) -> Timestamp {
        self.kept().last_due
    }

    fn id(&self, number: u64) -> String {
        format!("{}{number}", self.prefix)
    }

    fn asked(&self, number: u64, due: Timestamp) {
        let mut kept = self.kept();
        let at = usize::try_from(number).unwrap_or(usize::MAX);
        let nothing = Cart { state: State::Nothing, asked: due, due, has_arrived: false };
        if kept.carts.len() <= at {
            kept.carts.resize(at + 1, nothing);
        }
        kept.carts[at].asked = due;
        kept.last_due = kept.last_due.max(due);
    }

    /// From now on it may have gone, until the answer says that it has not.
    fn calling_off(&self, number: u64) {
        let mut kept = self.kept();
        let Some(cart) = usize::try_from(number).ok().and_then(|at| kept.carts.get_mut(at)) else { return };
        if cart.state == State::Wanted {
            cart.state = State::CallingOff;
        }
    }

    fn answered(&self, number: u64, state: State) {
        let mut kept = self.kept();
        let Some(cart) = usize::try_from(number).ok().and_then(|at| kept.carts.get_mut(at)) else { return };
        (cart.state, cart.due) = (state, cart.asked);
    }

    fn arrived_for(&self, number: u64, nominal: Timestamp, at_micros: i64) {
        let mut kept = self.kept();
        let Some(cart) = usize::try_from(number).ok().and_then(|at| kept.carts.get_mut(at)) else {
            kept.unwanted += 1;
            return;
        };
        let is_double = std::mem::replace(&mut cart.has_arrived, true);
        // A change whose answer was lost may have been made.
        let is_wanted = cart.state != State::CalledOff && (nominal == cart.due || nominal == cart.asked);
        let late = at_micros - nominal.as_millis() * 1_000;
        kept.doubled += u64::from(is_double);
        kept.unwanted += u64::from(!is_wanted);
        kept.early += u64::from(late < 0);
        kept.lateness.saturating_record(u64::try_from(late).unwrap_or(0));
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

/// What is asked about carts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    Make,
    Move,
    /// Every second one.
    CallOff,
}

pub(super) struct Ask {
    pub(super) what: What,
    /// The cart of the first request.
    pub(super) first: u64,
    pub(super) carts: Arc<Carts>,
    pub(super) head: Head,
    pub(super) target_url: String,
    pub(super) runtime: Runtime,
    /// From the request to the callback.
    pub(super) due_in: Duration,
}

impl Ask {
    fn number(&self, index: u64) -> u64 {
        match self.what {
            What::Make | What::Move => self.first + index,
            What::CallOff => self.first + 2 * index,
        }
    }
}

impl Exchange for Ask {
    fn write(&self, index: u64, out: &mut Vec<u8>) {
        let number = self.number(index);
        let path = format!("/v1/schedules/{}", self.carts.id(number));
        if self.what == What::CallOff {
            self.carts.calling_off(number);
            return write_request("DELETE", &path, &self.head, b"", out);
        }
        let due = self.runtime.now() + self.due_in;
        self.carts.asked(number, due);
        let mut body = Vec::with_capacity(1_200);
        let schedules = Schedules { target_url: self.target_url.clone(), first_at: due, gap_micros: 0 };
        schedules.write_json(number, &mut body);
        write_request("PUT", &path, &self.head, &body, out);
    }

    fn accept(&self, index: u64, status: u16, body: &[u8]) -> bool {
        let number = self.number(index);
        let (is_good, state) = match self.what {
            What::Make => (status == 201, State::Wanted),
            What::Move => (status == 200, State::Wanted),
            What::CallOff => (status == 200 && body == br#"{"result":"cancelled"}"#, State::CalledOff),
        };
        if is_good {
            self.carts.answered(number, state);
        } else if self.what == What::CallOff && status == 200 {
            // It is too late.
            self.carts.answered(number, State::Wanted);
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

    /// Five carts: never answered, wanted, moved to a second later, called off, wanted.
    fn carts() -> Carts {
        let carts = Carts::new(7);
        for number in 0..5 {
            carts.asked(number, at(0));
            if number > 0 {
                carts.answered(number, State::Wanted);
            }
        }
        carts.asked(2, at(1_000));
        carts.answered(2, State::Wanted);
        carts.answered(3, State::CalledOff);
        carts
    }

    fn arrive(carts: &Carts, number: u64, nominal: i64, late_micros: i64) {
        carts.arrived_for(number, at(nominal), (DUE + nominal) * 1_000 + late_micros);
    }

    #[test]
    fn each_that_is_wanted_is_to_arrive_once_and_what_does_not_in_time_is_lost() {
        let carts = carts();
        arrive(&carts, 1, 0, 5);
        arrive(&carts, 2, 1_000, 700);
        let counts = carts.counts(at(500));
        assert_eq!((counts.made, counts.called_off, counts.arrived, counts.lost), (4, 1, 2, 0));
        assert_eq!(carts.counts(at(1_001)).lost, 1, "nothing else is waited for");
        assert_eq!(carts.take_lateness().max(), 700);
        assert_eq!(carts.take_lateness().len(), 0);
        arrive(&carts, 4, 0, 9);
        assert_eq!(carts.counts(at(1_001)).faults(), [] as [String; 0]);
    }

    #[test]
    fn of_what_was_not_answered_nobody_knows_whether_it_is_lost() {
        let carts = carts();
        carts.calling_off(1);
        carts.asked(4, at(60_000));
        for number in [0, 2] {
            arrive(&carts, number, 1_000, 5);
        }
        assert_eq!(carts.counts(at(31_000)).lost, 0);
        assert_eq!(carts.counts(at(60_001)).lost, 1, "it was moved or not, and has not come at either instant");
        carts.answered(1, State::Wanted);
        assert_eq!(carts.counts(at(60_001)).lost, 2, "the answer says that it was too late to call it off");
    }

    #[test]
    fn what_comes_twice_too_early_or_though_it_was_moved_or_called_off_is_told() {
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
