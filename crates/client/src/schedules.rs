//! Calls that create, read, replace and cancel schedules.

use api::{
    Cancelled, DryRun, Explanation, Preview, Schedule, ScheduleCount, SchedulePage, ScheduleRequest, ScheduleState,
    Time,
};
use futures_util::stream::BoxStream;
use http::{HeaderName, Method, StatusCode};

use crate::idempotency::{Created, IdempotencyKey};
use crate::pages::escape;
use crate::retry::Repeat;
use crate::transport::{Call, SuccessResponse};
use crate::{Client, Error, ScheduleSummary, Tag};

const SCHEDULES: &str = "/v1/schedules";
pub(crate) const DRY_RUN: &str = "dry_run=true";
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Result of [`Client::put`].
#[derive(Clone, PartialEq, Debug)]
pub struct Put {
    /// True if the call created the schedule, and false if it replaced an existing schedule.
    pub created: bool,
    /// State of the schedule after the call.
    pub schedule: ScheduleSummary,
    /// Tag of the schedule after the call; `None` if a proxy removed the `ETag` header.
    pub tag: Option<Tag>,
}

/// Order of a list of schedules.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Order {
    /// The oldest schedules are first. A list with the filter [`ListBy::Due`] also requires this value, although the
    /// server sorts that list by due time.
    #[default]
    Oldest,
    /// The newest schedules are first. The list does not contain schedules that are created after the client has
    /// fetched the first page.
    Newest,
    /// The schedules are in the byte order of their ids. The server accepts this value only with the filters
    /// [`ListBy::All`] and [`ListBy::State`].
    Id,
}

/// Filter for a list of schedules. It has only one criterion, because every storage engine must serve the filter from
/// an index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ListBy {
    /// All schedules of the tenant.
    All,
    /// Schedules that are in this state.
    State(ScheduleState),
    /// Schedules that have this label.
    Label {
        /// The label's name, without `=`.
        name: String,
        /// The label's value.
        value: String,
    },
    /// Active schedules whose next occurrence is due within a period of at most 24 h, in the order of their due
    /// times.
    Due {
        /// Start of the period in which the next occurrences are due, inclusive.
        from: Time,
        /// End of the period in which the next occurrences are due, exclusive.
        until: Time,
    },
}

impl ListBy {
    fn path(&self, order: Order) -> String {
        let filter = match self {
            ListBy::All => None,
            ListBy::State(state) => {
                let state = serde_json::to_value(state).expect("a schedule's state serializes to a JSON string");
                Some(format!("state={}", state.as_str().unwrap_or_default()))
            }
            ListBy::Label { name, value } => Some(format!("label={}", escape(&format!("{name}={value}")))),
            ListBy::Due { from, until } => {
                Some(format!("due_from={}&due_until={}", escape(&from.to_string()), escape(&until.to_string())))
            }
        };
        let order = match order {
            Order::Oldest => None,
            Order::Newest => Some("order=newest".to_owned()),
            Order::Id => Some("order=id".to_owned()),
        };
        let parameters: Vec<String> = filter.into_iter().chain(order).collect();
        match parameters.is_empty() {
            true => SCHEDULES.to_owned(),
            false => format!("{SCHEDULES}?{}", parameters.join("&")),
        }
    }
}

impl Client {
    /// Creates a schedule. If the request has no id, the client sends it with a new `Idempotency-Key`. The server then
    /// creates only one schedule even if the client sends the request several times.
    ///
    /// If the request has an id, the client does not repeat it after an attempt with an unknown outcome. After a second
    /// attempt, the client could not distinguish a schedule that the first attempt created from a schedule that existed
    /// before. For a request that the client can repeat, use [`Client::put`].
    ///
    /// # Errors
    /// Returns an error with the code `invalid_schedule` or `schedule_exists`, or another variant of [`Error`].
    pub async fn create(&self, request: &ScheduleRequest) -> Result<ScheduleSummary, Error> {
        let call = |repeat| Call::with_body(Method::POST, SCHEDULES.to_owned(), repeat, request);
        let call = match request.id {
            Some(_) => call(Repeat::IfUntouched),
            None => {
                let IdempotencyKey(key) = IdempotencyKey::random();
                Call { headers: vec![(IDEMPOTENCY_KEY, key)], ..call(Repeat::Always) }
            }
        };
        summary(&self.0.call(&call).await?)
    }

    /// Creates only one schedule, even if several processes send requests with the idempotency key `key`. The request
    /// must not have an id, because the key determines the id.
    ///
    /// # Errors
    /// Returns an error with the code `idempotency_key_reused` if an earlier, different request used this key, or
    /// one of the errors of [`Client::create`].
    pub async fn create_with_key(&self, request: &ScheduleRequest, key: &IdempotencyKey) -> Result<Created, Error> {
        let call = Call::with_body(Method::POST, SCHEDULES.to_owned(), Repeat::Always, request);
        let response = self.0.call(&Call { headers: vec![(IDEMPOTENCY_KEY, key.0.clone())], ..call }).await?;
        Ok(Created { schedule: summary(&response)?, is_replay: response.is_replay })
    }

    /// Returns the schedule that [`Client::create`] would create, with its next occurrences. The server makes the same
    /// checks as for a creation but writes nothing.
    ///
    /// # Errors
    /// Returns the same errors as [`Client::create`].
    pub async fn dry_run(&self, request: &ScheduleRequest) -> Result<DryRun, Error> {
        let path = format!("{SCHEDULES}?{DRY_RUN}");
        self.0.call(&Call::with_body(Method::POST, path, Repeat::Always, request)).await?.read()
    }

    /// Returns the schedule that [`Client::put`] would create or replace, with its next occurrences. The server
    /// writes nothing.
    ///
    /// # Errors
    /// Returns the same errors as [`Client::put`].
    pub async fn dry_run_put(&self, id: &str, request: &ScheduleRequest) -> Result<DryRun, Error> {
        let path = format!("{}?{DRY_RUN}", path_of(id));
        self.0.call(&Call::with_body(Method::PUT, path, Repeat::Always, request)).await?.read()
    }

    /// Returns the next occurrences of the schedule that [`Client::create`] would create: at most `count`, from 1 to
    /// 100, at or after `from`. Without `from`, the list starts with the first occurrence. The server checks the request
    /// and writes nothing.
    ///
    /// # Errors
    /// Returns an error with the code `invalid_schedule` or `invalid_parameter`, or another variant of [`Error`].
    pub async fn preview(&self, request: &ScheduleRequest, count: u16, from: Option<Time>) -> Result<Preview, Error> {
        let from = from.map_or_else(String::new, |from| format!("&from={}", escape(&from.to_string())));
        let path = format!("{SCHEDULES}/preview?count={count}{from}");
        self.0.call(&Call::with_body(Method::POST, path, Repeat::Always, request)).await?.read()
    }

    /// Creates the schedule with this id, or replaces it. The client may repeat this request after any failure.
    ///
    /// # Errors
    /// Returns an error with the code `invalid_schedule`, or another variant of [`Error`].
    pub async fn put(&self, id: &str, request: &ScheduleRequest) -> Result<Put, Error> {
        put(&self.0.call(&Call::with_body(Method::PUT, path_of(id), Repeat::Always, request)).await?)
    }

    /// Reads a schedule.
    ///
    /// # Errors
    /// Returns an error with the code `schedule_not_found`, or another variant of [`Error`].
    pub async fn get(&self, id: &str) -> Result<Schedule, Error> {
        self.0.call(&Call::get(path_of(id))).await?.read()
    }

    /// Streams all schedules that match the filter, in the given order. The client fetches the schedules page by page.
    #[must_use]
    pub fn schedules(&self, by: &ListBy, order: Order) -> BoxStream<'static, Result<Schedule, Error>> {
        self.pages::<SchedulePage>(by.path(order))
    }

    /// Returns one page of the schedules that [`Client::schedules`] streams. `token` is the `next_page_token` of the
    /// previous page. A page can be short or empty although further pages follow.
    ///
    /// # Errors
    /// Returns an error with the code `invalid_parameter`, or another variant of [`Error`].
    pub async fn schedule_page(
        &self,
        by: &ListBy,
        order: Order,
        limit: u16,
        token: Option<&str>,
    ) -> Result<SchedulePage, Error> {
        self.page(&by.path(order), limit, token).await
    }

    /// Returns the number of the tenant's active schedules.
    ///
    /// # Errors
    /// Returns an [`Error`] if the call fails.
    pub async fn count_schedules(&self) -> Result<ScheduleCount, Error> {
        self.0.call(&Call::get(format!("{SCHEDULES}:count"))).await?.read()
    }

    /// Explains why a schedule did, did not or will not fire at the instant `at`.
    ///
    /// # Errors
    /// Returns an error with the code `schedule_not_found`, or another variant of [`Error`].
    pub async fn explain(&self, id: &str, at: Time) -> Result<Explanation, Error> {
        let path = format!("{}/explain?at={}", path_of(id), escape(&at.to_string()));
        self.0.call(&Call::get(path)).await?.read()
    }

    /// Cancels a schedule. A second cancellation has no effect. The result states whether a callback is in flight.
    ///
    /// # Errors
    /// Returns an error with the code `schedule_not_found`, or another variant of [`Error`].
    pub async fn cancel(&self, id: &str) -> Result<Cancelled, Error> {
        self.0.call(&Call::delete(path_of(id))).await?.read()
    }
}

pub(crate) fn path_of(id: &str) -> String {
    format!("/v1/schedules/{}", escape(id))
}

pub(crate) fn summary(response: &SuccessResponse) -> Result<ScheduleSummary, Error> {
    response.read_with(api::ScheduleSummary::into_owned)
}

pub(crate) fn put(response: &SuccessResponse) -> Result<Put, Error> {
    let created = response.status == StatusCode::CREATED;
    Ok(Put { created, schedule: summary(response)?, tag: response.tag.clone() })
}
