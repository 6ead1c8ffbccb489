//! A store under a key keeps the engine's promises, and the engine sees nothing in plain.

use std::sync::Arc;

use domain::{Audit, Secret, SigningSecret, Target, Tenant};
use runtime::Runtime;
use store::memory::{MemoryOptions, MemoryStore};
use store::{Change, Insert, OwnerWrite, Seal, SealKey, SealedStore, Store};
use store_conformance::{Case, Subject};

use crate::support::{Memory, POLLER, TENANT, insert, minute, on_real};

store_conformance::conformance_tests!(run);

/// These compare what they wrote with what they read, in plain.
const OF_PLAIN_SECRETS: [&str; 3] = [
    "every_field_and_every_byte_of_a_schedule_is_kept",
    "tenants_are_kept_and_replaced",
    "a_tenant_is_changed_by_who_knows_its_last_version",
];

fn run(case: Case<dyn Subject>) {
    if !OF_PLAIN_SECRETS.contains(&case.name) {
        on_real(async |runtime| {
            let options = MemoryOptions::default();
            let world = runtime.clone();
            let memory =
                Memory::new(runtime, options).broken(move |store| Arc::new(under_a_key(&world, Arc::new(store))));
            case.run(&memory).await;
        });
    }
}

fn under_a_key(runtime: &Runtime, store: Arc<dyn Store>) -> SealedStore {
    let (key, _) = SealKey::generate(runtime);
    SealedStore::new(runtime, store, Arc::new(Seal::new(vec![key])))
}

fn with_header(number: u128) -> Insert {
    let mut insert = insert(number, Some("a"));
    let Target::Http(http) = &mut Arc::make_mut(&mut insert.schedule).spec.target;
    http.headers = vec![("authorization".to_owned(), "Bearer hunter2".into())];
    insert
}

#[test]
fn the_engine_sees_nothing_in_plain_whoever_writes() {
    on_real(async |runtime| {
        let engine = Arc::new(MemoryStore::new(runtime.clone(), MemoryOptions::default()));
        let store = under_a_key(&runtime, engine.clone());
        let header = async || {
            let schedule =
                engine.get(vec![(TENANT, insert(1, Some("a")).schedule.id.clone())]).await.unwrap().remove(0);
            let Target::Http(http) = &schedule.unwrap().spec.target;
            http.headers[0].1.clone()
        };
        let made = with_header(1);
        store.insert(vec![made.clone()]).await.unwrap();
        let first = header().await;
        assert!(first.is_sealed());
        assert!(
            matches!(&made.schedule.spec.target, Target::Http(http) if !http.headers[0].1.is_sealed()),
            "the caller's stays"
        );

        let term = store.take(vec![POLLER.shard()]).await.unwrap()[0];
        let put = OwnerWrite { term, poller: POLLER, change: Change::Put(with_header(2)) };
        store.write(vec![put]).await.unwrap()[0].as_ref().unwrap();
        let second = header().await;
        assert!(second.is_sealed() && second != first);
        let seen = store.get(vec![(TENANT, made.schedule.id.clone())]).await.unwrap().remove(0).map(|now| now.seen());
        let change = Change::PutIf { insert: with_header(3), seen };
        store.write(vec![OwnerWrite { term, poller: POLLER, change }]).await.unwrap()[0].as_ref().unwrap();
        let third = header().await;
        assert!(third.is_sealed() && third != second);

        let secret = SigningSecret::first(vec![7; 24], minute(0));
        let tenant = Tenant::new(TENANT, "default", 1, secret);
        let entry = Audit::of(&tenant, minute(0), "test", "tenant.create", "default");
        store.put_tenant(tenant, entry).await.unwrap().unwrap();
        let kept = engine.tenants().await.unwrap().remove(0).signing_secrets.remove(0).secret;
        assert!(kept.is_sealed() && kept != Secret::from(vec![7; 24]));
    });
}
