//! Test of a server whose disk is full.

use std::time::Duration;

use store::{Health, Store, StoreError};
use store_postgres::{Options, migrate};
use test_servers::postgres::{Options as ServerOptions, Postgres};

use crate::support::{Home, name_of, on_real, one_shot};

const DISK_BYTES: u64 = 48 << 20;

#[test]
fn store_on_full_disk_rejects_new_schedules_until_space_is_free() {
    let options = ServerOptions { disk_bytes: Some(DISK_BYTES), ..ServerOptions::default() };
    let postgres = Postgres::start_with(options).unwrap();
    let disk = postgres.folder().join("disk").display().to_string();
    postgres.sql("postgres", &format!("create tablespace small location '{disk}'")).unwrap();
    postgres.sql("postgres", "create database small tablespace small").unwrap();
    let url = postgres.url("small");
    on_real(async |runtime| {
        migrate(&runtime, &url, &Options::default()).await.unwrap();
        let home = Home::open(&runtime, &url).await;
        let store = &*home.store;
        let soon = || one_shot(&runtime, runtime.now() + Duration::from_secs(60));
        let before = soon();
        store.insert(vec![before.clone()]).await.unwrap();

        postgres.sql(name_of(&url), "create table ballast (bytes text)").unwrap();
        let fill = "insert into ballast select repeat('x', 1000) from generate_series(1, 500)";
        while postgres.sql(name_of(&url), fill).is_ok() {}
        let rejected = loop {
            match store.insert((0..100).map(|_| soon()).collect()).await {
                Ok(_) => {}
                Err(error) => break error,
            }
        };
        assert!(matches!(&rejected, StoreError::Full(why) if why.contains("No space left on device")), "{rejected}");
        assert_eq!(store.health(), Health::Full);
        let loaded = store.load(vec![before.schedule.incarnation]).await.unwrap();
        assert_eq!(loaded, [Some(before.schedule.clone())]);

        postgres.sql(name_of(&url), "drop table ballast").unwrap();
        let after = soon();
        store.insert(vec![after.clone()]).await.unwrap();
        assert_eq!(store.load(vec![after.schedule.incarnation]).await.unwrap(), [Some(after.schedule)]);
        home.close().await;
    });
}
