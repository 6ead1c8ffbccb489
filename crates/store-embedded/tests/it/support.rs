//! Helpers for tests: a store in a separate folder, and schedules for the store.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use domain::retry::RetryPolicy;
use domain::{
    DueKey, HttpTarget, Incarnation, Occurrence, PollerId, Revision, Schedule, ScheduleId, Spec, Status, Target,
    TargetKey, TenantId, Timestamp, When,
};
use runtime::{Runtime, TaskSet};
use store::Insert;
use store_embedded::{EmbeddedStore, IndexKind, OpenError, Options};

/// Opened store, together with its tasks.
pub(crate) struct Home {
    pub(crate) store: Arc<EmbeddedStore>,
    tasks: TaskSet,
}

impl Home {
    pub(crate) async fn try_open(runtime: &Runtime, dir: &Path, options: Options) -> Result<Self, OpenError> {
        let tasks = TaskSet::new(runtime);
        let store = EmbeddedStore::open(runtime, &tasks, dir, options).await?;
        Ok(Home { store: Arc::new(store), tasks })
    }

    pub(crate) async fn open(runtime: &Runtime, dir: &Path, options: Options) -> Self {
        Home::try_open(runtime, dir, options).await.unwrap()
    }

    pub(crate) async fn close(self) {
        self.store.close().await;
        drop(self.store);
        for (name, end) in self.tasks.join().await {
            assert_eq!(end, runtime::TaskEnd::Finished, "{name}");
        }
    }
}

/// Options for tests, with small journal segments and entries.
pub(crate) fn small(index: IndexKind) -> Options {
    let mut options = Options { index, free_bytes_floor: 0, ..Options::default() };
    options.journal.segment_bytes = 1 << 20;
    options.journal.entry_bytes_max = 512 << 10;
    options.journal.batch_bytes_max = 256 << 10;
    options.entry_bytes = 64 << 10;
    options
}

pub(crate) fn on_real<T>(test: impl AsyncFnOnce(Runtime) -> T) -> T {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    tokio.block_on(async { test(Runtime::real()).await })
}

pub(crate) const TENANT: TenantId = TenantId(7);
pub(crate) const POLLER: PollerId = PollerId { tenant: TENANT, generation: 0, number: 3 };

/// Returns the insert of a one-shot schedule that is due at `at`. If `id` is `None`, the schedule has a server-made id.
pub(crate) fn one_shot(number: u64, at: Timestamp, id: Option<&str>, payload: &[u8]) -> Insert {
    let incarnation = Incarnation::new(Timestamp::from_millis(1_700_000_000_000), u128::from(number));
    let id = id.map_or_else(|| ScheduleId::from_incarnation(incarnation), |id| ScheduleId::new(id).unwrap());
    let target = Target::Http(HttpTarget {
        url: "http://127.0.0.1:9/hook".to_owned(),
        method: "POST".to_owned(),
        headers: vec![("x-trace".to_owned(), "1".into())],
        timeout: Duration::from_secs(10),
    });
    let retry = RetryPolicy { attempts_max: 3, backoff: Duration::from_secs(1), backoff_max: Duration::from_secs(60) };
    let schedule = Schedule {
        tenant: TENANT,
        id,
        incarnation,
        poller: POLLER,
        revision: Revision(0),
        status: Status::Active,
        created_at: Timestamp::from_millis(1_700_000_000_000),
        updated_at: Timestamp::from_millis(1_700_000_000_000),
        next: Some(at),
        spec: Spec {
            when: When::At(at),
            target,
            payload: Bytes::copy_from_slice(payload),
            labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
            retry,
        },
    };
    let occurrence = Occurrence { incarnation, nominal: at, revision: Revision(0), replay: 0 };
    let due = DueKey { position: at, occurrence, attempt: 1, target: TargetKey(9) };
    Insert { schedule: Arc::new(schedule), due, by: None }
}
