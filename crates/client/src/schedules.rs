//! Schedules: making, reading, replacing and cancelling them.

use api::{Cancelled, DryRun, Schedule, SchedulePage, ScheduleRequest, ScheduleState, Time};
use futures_util::stream::BoxStream;
use http::{HeaderName, HeaderValue, Method, StatusCode};

use crate::pages::escape;
use crate::retry::Repeat;
use crate::transport::{Answer, Call};
use crate::{Client, Error, ScheduleSummary, Tag, clock};

const SCHEDULES: &str = "/v1/schedules";
pub(crate) const DRY_RUN: &str = "dry_run=true";
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The answer of [`Client::put`].
#[derive(Clone, PartialEq, Debug)]
pub struct Put {
    /// It was not there before.
    pub created: bool,
    /// As it is now.
    pub schedule: ScheduleSummary,
    /// What it is called now; `None` if something on the way took it off.
    pub tag: Option<Tag>,
}

/// What to list schedules by: one thing at a time, which is what every store can go along.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListBy {
    /// Every schedule of the tenant, in the order of their making, as those of a state or a label are.
    All,
    /// Those that are in this state.
    State(ScheduleState),
    /// Those that have this label.
    Label {
        /// The label's name, without `=`.
        name: String,
        /// The label's value.
        value: String,
    },
    /// Active ones whose next occurrence is due within a stretch of at most 24 h, the next one first.
    Due {
        /// The start, included.
        from: Time,
        /// The end, not included.
        until: Time,
    },
}

impl ListBy {
    fn path(&self) -> String {
        let query = match self {
            ListBy::All => String::new(),
            ListBy::State(ScheduleState::Active) => "?state=active".to_owned(),
            ListBy::State(ScheduleState::Ended) => "?state=ended".to_owned(),
            ListBy::State(ScheduleState::Cancelled) => "?state=cancelled".to_owned(),
            ListBy::Label { name, value } => format!("?label={}", escape(&format!("{name}={value}"))),
            ListBy::Due { from, until } => {
                format!("?due_from={}&due_until={}", escape(&from.to_string()), escape(&until.to_string()))
            }
        };
        format!("/v1/schedules{query}")
    }
}

impl Client {
    /// Makes a schedule. One without an id is sent with a new `Idempotency-Key`, so that it is made once however often it has to
    /// be sent.
    ///
    /// With an id of your own, an attempt whose outcome is not known is not repeated: the next could not tell what it made
    /// from what was there before. [`Client::put`] can be repeated.
    ///
    /// # Errors
    /// `invalid_schedule`, `schedule_exists`, and what [`Error`] lists.
    pub async fn create(&self, request: &ScheduleRequest) -> Result<ScheduleSummary, Error> {
        let call = |repeat| Call::with_body(Method::POST, SCHEDULES.to_owned(), repeat, request);
        let call = match request.id {
            Some(_) => call(Repeat::IfUntouched),
            None => Call { headers: vec![(IDEMPOTENCY_KEY, new_key())], ..call(Repeat::Always) },
        };
        summary(&self.0.call(&call).await?)
    }

    /// What [`Client::create`] would make, and when it would fire: the server checks everything, and writes nothing.
    ///
    /// # Errors
    /// Those of [`Client::create`].
    pub async fn dry_run(&self, request: &ScheduleRequest) -> Result<DryRun, Error> {
        let path = format!("{SCHEDULES}?{DRY_RUN}");
        self.0.call(&Call::with_body(Method::POST, path, Repeat::Always, request)).await?.read()
    }

    /// What [`Client::put`] would make, or replace, likewise.
    ///
    /// # Errors
    /// Those of [`Client::put`].
    pub async fn dry_run_put(&self, id: &str, request: &ScheduleRequest) -> Result<DryRun, Error> {
        let path = format!("{}?{DRY_RUN}", path_of(id));
        self.0.call(&Call::with_body(Method::PUT, path, Repeat::Always, request)).await?.read()
    }

    /// Makes the schedule of this id, or replaces it. It can be sent again after any failure.
    ///
    /// # Errors
    /// `invalid_schedule`, and what [`Error`] lists.
    pub async fn put(&self, id: &str, request: &ScheduleRequest) -> Result<Put, Error> {
        put(&self.0.call(&Call::with_body(Method::PUT, path_of(id), Repeat::Always, request)).await?)
    }

    /// Reads a schedule.
    ///
    /// # Errors
    /// `schedule_not_found`, and what [`Error`] lists.
    pub async fn get(&self, id: &str) -> Result<Schedule, Error> {
        self.0.call(&Call::get(path_of(id))).await?.read()
    }

    /// All schedules that are as was asked for, as a stream that asks for a page when it needs one.
    #[must_use]
    pub fn schedules(&self, by: &ListBy) -> BoxStream<'static, Result<Schedule, Error>> {
        self.pages::<SchedulePage>(by.path())
    }

    /// A page of [`Client::schedules`], from `token`, the `next_page_token` of the page before. It may be short, or empty,
    /// and yet not the last.
    ///
    /// # Errors
    /// `invalid_parameter`, and what [`Error`] lists.
    pub async fn schedule_page(&self, by: &ListBy, limit: u16, token: Option<&str>) -> Result<SchedulePage, Error> {
        self.page(&by.path(), limit, token).await
    }

    /// Cancels a schedule; again is harmless. The answer says whether a callback is in flight.
    ///
    /// # Errors
    /// `schedule_not_found`, and what [`Error`] lists.
    pub async fn cancel(&self, id: &str) -> Result<Cancelled, Error> {
        self.0.call(&Call::delete(path_of(id))).await?.read()
    }
}

pub(crate) fn path_of(id: &str) -> String {
    format!("/v1/schedules/{}", escape(id))
}

/// 128 random bits: nobody else's.
fn new_key() -> HeaderValue {
    let key = format!("{:016x}{:016x}", clock::random(), clock::random());
    HeaderValue::from_str(&key).expect("hexadecimal digits are text")
}

pub(crate) fn summary(answer: &Answer) -> Result<ScheduleSummary, Error> {
    answer.read_with(api::ScheduleSummary::into_owned)
}

pub(crate) fn put(answer: &Answer) -> Result<Put, Error> {
    let created = answer.status == StatusCode::CREATED;
    Ok(Put { created, schedule: summary(answer)?, tag: answer.tag.clone() })
}
