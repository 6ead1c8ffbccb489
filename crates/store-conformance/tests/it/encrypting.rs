//! Tests of the encrypting store. The store passes the conformance suite, and its engine receives no plaintext secret.

use std::sync::Arc;
use std::time::Duration;

use domain::occurrence::Run;
use domain::{Attempt, AttemptResult, Audit, DueKey, RunState, Secret, SigningSecret, Target, Tenant};
use runtime::Runtime;
use store::memory::{MemoryOptions, MemoryStore};
use store::{Change, EncryptedStore, Insert, Keyring, OwnerWrite, Store, StoreKey};
use store_conformance::{Case, Subject};

use crate::support::{Memory, POLLER, TENANT, insert, minute, on_real};

store_conformance::conformance_tests!(run);

/// Names of the conformance cases that write secrets and compare them with the secrets that the store returns.
const OF_PLAIN_SECRETS: [&str; 3] = [
    "every_field_of_a_schedule_is_preserved",
    "tenants_are_stored_and_replaced",
    "tenant_change_requires_the_latest_version",
];

fn run(case: Case<dyn Subject>) {
    if !OF_PLAIN_SECRETS.contains(&case.name) {
        on_real(async |runtime| {
            let options = MemoryOptions::default();
            let key_runtime = runtime.clone();
            let memory =
                Memory::new(runtime, options).broken(move |store| Arc::new(encrypting(&key_runtime, Arc::new(store))));
            case.run(&memory).await;
        });
    }
}

fn encrypting(runtime: &Runtime, store: Arc<dyn Store>) -> EncryptedStore {
    let (key, _) = StoreKey::generate(runtime);
    EncryptedStore::new(runtime, store, Arc::new(Keyring::new(vec![key])))
}

fn with_header(number: u128) -> Insert {
    let mut insert = insert(number, Some("a"));
    let Target::Http(http) = &mut Arc::make_mut(&mut insert.schedule).spec.target else {
        panic!("the target is an HTTP target")
    };
    http.headers = vec![("authorization".to_owned(), "Bearer hunter2".into())];
    insert
}

#[test]
fn encrypted_store_passes_only_encrypted_secrets_to_its_engine() {
    on_real(async |runtime| {
        let engine = Arc::new(MemoryStore::new(runtime.clone(), MemoryOptions::default()));
        let store = encrypting(&runtime, engine.clone());
        let header = async || {
            let schedule =
                engine.get(vec![(TENANT, insert(1, Some("a")).schedule.id.clone())]).await.unwrap().remove(0);
            let Target::Http(http) = &schedule.unwrap().spec.target else { panic!("the target is an HTTP target") };
            http.headers[0].1.clone()
        };
        let created = with_header(1);
        store.insert(vec![created.clone()]).await.unwrap();
        let first = header().await;
        assert!(first.is_encrypted());
        assert!(
            matches!(&created.schedule.spec.target, Target::Http(http) if !http.headers[0].1.is_encrypted()),
            "the caller's schedule stays unchanged"
        );

        let term = store.take(vec![POLLER.shard()]).await.unwrap()[0];
        let put = OwnerWrite { term, poller: POLLER, change: Change::Put(with_header(2)) };
        store.write(vec![put]).await.unwrap()[0].as_ref().unwrap();
        let second = header().await;
        assert!(second.is_encrypted() && second != first);
        let seen =
            store.get(vec![(TENANT, created.schedule.id.clone())]).await.unwrap().remove(0).map(|now| now.seen());
        let change = Change::PutIf { insert: with_header(3), seen };
        store.write(vec![OwnerWrite { term, poller: POLLER, change }]).await.unwrap()[0].as_ref().unwrap();
        let third = header().await;
        assert!(third.is_encrypted() && third != second);

        let secret = SigningSecret::first(vec![7; 24], minute(0));
        let tenant = Tenant::new(TENANT, "default", 1, secret);
        let entry = Audit::of(&tenant, minute(0), "test", "tenant.create", "default");
        store.put_tenant(tenant, entry).await.unwrap().unwrap();
        let kept = engine.tenants().await.unwrap().remove(0).signing_secrets.remove(0).secret;
        assert!(kept.is_encrypted() && kept != Secret::from(vec![7; 24]));

        let current = engine.get(vec![(TENANT, created.schedule.id.clone())]).await.unwrap().remove(0).unwrap();
        let mut due = with_header(3).due;
        (due.occurrence.incarnation, due.occurrence.revision) = (current.incarnation, current.revision);
        let occurrence = due.occurrence;
        let attempt = |number| Attempt {
            number,
            started_at: minute(0),
            duration: Duration::ZERO,
            result: AttemptResult::Answered(500),
            delay: None,
            excerpt: Some("hunter2".into()),
        };
        let mut run = Run { tenant: TENANT, occurrence, state: RunState::Retrying, attempts: vec![attempt(1)] };
        let excerpts = async |run: &Run| {
            let retry = DueKey { position: minute(2), attempt: 3, ..due };
            let change = Change::Run { run: run.clone(), then: Some(retry), ends: false, origin: None };
            store.write(vec![OwnerWrite { term, poller: POLLER, change }]).await.unwrap()[0].as_ref().unwrap();
            let stored = engine.find_runs(vec![occurrence]).await.unwrap().remove(0).unwrap();
            (stored.attempts.iter().map(|attempt| attempt.excerpt.clone().unwrap()).collect::<Vec<_>>(), stored)
        };
        let (first, stored) = excerpts(&run).await;
        assert!(first[0].is_encrypted());
        run.attempts = [stored.attempts, vec![attempt(2)]].concat();
        let (second, _) = excerpts(&run).await;
        assert!(second[1].is_encrypted() && second[0] == first[0], "a retry does not encrypt an excerpt again");
    });
}
