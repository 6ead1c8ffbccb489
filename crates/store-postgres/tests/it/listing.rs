//! Tests of the database rows that the store writes for labels. The conformance suite does not test these rows.

use std::sync::Arc;
use std::time::Duration;

use domain::{Incarnation, Timestamp};
use runtime::Runtime;
use store::listing::{By, Listing, ListingOrder, page};
use store::{Cancellation, Change, Insert, Store};
use store_postgres::{Options, SCHEMA_VERSION, migrate};
use test_servers::postgres::shared;

use crate::support::{Home, POLLER, TENANT, database, name_of, on_real, one_shot, outcome, owned, undo_to};

fn labelled(runtime: &Runtime, at: Timestamp) -> Insert {
    let mut insert = one_shot(runtime, at);
    let labels = [("team", "blue"), ("order", "7")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    Arc::make_mut(&mut insert.schedule).spec.labels.extend(labels);
    insert
}

async fn listed(store: &dyn Store, by: By<'_>) -> Vec<Incarnation> {
    let listing = Listing { tenant: TENANT, by, order: ListingOrder::default(), after: None, limit: 100 };
    let page = page(store, &listing, || async {}).await.unwrap();
    page.schedules.iter().map(|schedule| schedule.incarnation).collect()
}

const BLUE: By<'_> = By::Label { name: "team", value: "blue" };

#[test]
fn migration_creates_label_rows_for_schedules_of_earlier_builds() {
    let url = database();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let now = runtime.now();
        let mut expected: Vec<Incarnation> = Vec::new();
        let mut inserts = Vec::new();
        for number in 0..5_000_u64 {
            let at = now + Duration::from_secs(number);
            let is_labelled = number.is_multiple_of(100);
            let insert = if is_labelled { labelled(&runtime, at) } else { one_shot(&runtime, at) };
            expected.extend(is_labelled.then_some(insert.schedule.incarnation));
            inserts.push(insert);
        }
        home.store.insert(inserts).await.unwrap();
        home.close().await;
        expected.sort();

        shared().sql(name_of(&url), &undo_to(4)).unwrap();
        let migrated = migrate(&runtime, &url, &Options::default()).await.unwrap();
        assert_eq!((migrated.from, migrated.to), (Some(4), SCHEMA_VERSION));
        let home = Home::open(&runtime, &url).await;
        assert_eq!(listed(&*home.store, BLUE).await, expected);
        assert_eq!(listed(&*home.store, By::All).await.len(), 100);
        home.close().await;
    });
}

#[test]
fn deletion_of_a_schedule_deletes_its_label_rows() {
    let url = database();
    let rows = || shared().sql(name_of(&url), "select count(*) from reveille.schedule_label").unwrap();
    on_real(async |runtime| {
        let home = Home::open(&runtime, &url).await;
        let now = runtime.now();
        let term = home.store.take(vec![POLLER.shard()]).await.unwrap()[0];
        let inserts = [(); 3].map(|()| labelled(&runtime, now));
        home.store.insert(inserts.to_vec()).await.unwrap();
        assert_eq!(rows().trim(), "6");
        let ended = owned(term, outcome(&inserts[0]));
        let cancelled = Cancellation { tenant: TENANT, id: inserts[1].schedule.id.clone(), author: None };
        let mut put = one_shot(&runtime, now + Duration::from_secs(10 * 86_400));
        Arc::make_mut(&mut put.schedule).id = inserts[2].schedule.id.clone();
        Arc::make_mut(&mut put.schedule).spec.labels.insert("team".to_owned(), "blue".to_owned());
        home.store.write(vec![ended, owned(term, Change::Put(put))]).await.unwrap();
        home.store.append_cancellations(vec![cancelled]).await.unwrap();
        assert_eq!(rows().trim(), "5", "one spec has one label less");

        let done = store::Positions { closed: now, done: now };
        home.store.write(vec![owned(term, Change::Positions(done))]).await.unwrap();
        let later = now + Duration::from_secs(3 * 86_400);
        while home.store.maintain(now, later).await.unwrap() > 0 {}
        assert_eq!(listed(&*home.store, BLUE).await, [inserts[2].schedule.incarnation]);
        assert_eq!(rows().trim(), "1");
        home.close().await;
    });
}
