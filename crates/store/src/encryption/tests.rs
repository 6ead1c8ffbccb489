use std::time::Duration;

use domain::{Attempt, AttemptResult, Incarnation, Occurrence, Revision, RunState, Target, Timestamp};
use proptest::prelude::*;

use super::*;

/// Returns a runtime with real randomness. The tests do not use its clock.
fn real_runtime() -> Runtime {
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _inside = tokio.enter();
    Runtime::real()
}

fn keys<const COUNT: usize>() -> [StoreKey; COUNT] {
    std::array::from_fn(|_| StoreKey::generate(&real_runtime()).0)
}

const ORIGIN: &str = "https://example.com:443";

fn header<'a>(tenant: u32, schedule: &'a ScheduleId, name: &'a str) -> Place<'a> {
    Place::Header { tenant: TenantId(tenant), schedule, name, origin: ORIGIN }
}

fn id(text: &str) -> ScheduleId {
    ScheduleId::new(text).unwrap()
}

proptest! {
    #[test]
    fn ciphertext_does_not_contain_its_plaintext_and_decrypts_to_it(value in prop::collection::vec(any::<u8>(), 8..200)) {
        let [key] = keys();
        let keyring = Keyring::new(vec![key]);
        let schedule = id("a");
        let place = header(1, &schedule, "authorization");
        let encrypted = keyring.encrypt(&real_runtime(), place, &value.clone().into());
        prop_assert_eq!(keyring.open(place, &encrypted), Ok(value.clone().into()));
        prop_assert_eq!(encrypted.plain_len(), value.len());
        let Secret::Encrypted(bytes) = &encrypted else { panic!("the value is not encrypted") };
        prop_assert!(!bytes.windows(value.len()).any(|window| window == value));
    }

    #[test]
    fn changed_or_truncated_ciphertext_cannot_be_decrypted(at in any::<prop::sample::Index>(), by in 1..=u8::MAX) {
        let [key] = keys();
        let keyring = Keyring::new(vec![key]);
        let schedule = id("a");
        let place = header(1, &schedule, "x");
        let encrypted = keyring.encrypt(&real_runtime(), place, &"Bearer abc".into());
        let Secret::Encrypted(encrypted) = encrypted else { panic!("the value is not encrypted") };
        let at = at.index(encrypted.len());
        let mut changed = encrypted.to_vec();
        changed[at] ^= by;
        prop_assert!(keyring.open(place, &Secret::Encrypted(changed.into())).is_err());
        prop_assert!(keyring.open(place, &Secret::Encrypted(encrypted.slice(..at))).is_err());
    }
}

#[test]
fn keyring_decrypts_a_secret_only_in_its_original_place() {
    let [key] = keys();
    let keyring = Keyring::new(vec![key]);
    let (a, b) = (id("a"), id("b"));
    let place = header(1, &a, "x-token");
    let encrypted = keyring.encrypt(&real_runtime(), place, &"secret".into());
    let others = [
        header(2, &a, "x-token"),
        header(1, &b, "x-token"),
        header(1, &a, "x-other"),
        Place::Header { tenant: TenantId(1), schedule: &a, name: "x-token", origin: "https://example.com:8443" },
        Place::SigningSecret { tenant: TenantId(1), id: "a" },
        Place::AuthorityKey { number: 1 },
        Place::AuthorityKey { number: 2 },
        Place::HeaderBinding,
        Place::Excerpt { tenant: TenantId(1), run: &run_id(0), attempt: 1 },
    ];
    for other in others {
        assert_eq!(keyring.open(other, &encrypted), Err(OpenError::Forged), "{other:?}");
    }
    assert_eq!(keyring.open(place, &encrypted), Ok("secret".into()));
    let authority = keyring.encrypt(&real_runtime(), Place::AuthorityKey { number: 1 }, &"key".into());
    assert_eq!(keyring.open(Place::AuthorityKey { number: 2 }, &authority), Err(OpenError::Forged));
}

fn run_id(replay: u16) -> RunId {
    occurrence(replay).run_id()
}

fn occurrence(replay: u16) -> Occurrence {
    let nominal = Timestamp::from_millis(1_800_000_000_123);
    Occurrence { incarnation: Incarnation(7), nominal, revision: Revision(2), replay }
}

#[test]
fn excerpt_decrypts_only_for_its_own_attempt() {
    let [old, new] = keys();
    let runtime = real_runtime();
    let attempt = |number, excerpt: Option<Secret>| Attempt {
        number,
        started_at: Timestamp::from_millis(5),
        duration: Duration::ZERO,
        result: AttemptResult::Answered(500),
        delay: None,
        excerpt,
    };
    let attempts = vec![attempt(3, Some("a".into())), attempt(4, None), attempt(5, Some("b".into()))];
    let run = Run { tenant: TenantId(1), occurrence: occurrence(1), state: RunState::Retrying, attempts };
    let mut encrypted = run.clone();
    Keyring::new(vec![old.clone()]).encrypt_run(&runtime, &mut encrypted);
    let excerpts = |run: &Run| run.attempts.iter().map(|attempt| attempt.excerpt.clone()).collect::<Vec<_>>();
    let [Some(a), None, Some(b)] = &excerpts(&encrypted)[..] else { panic!("two of three attempts have excerpts") };
    assert!(a.is_encrypted() && b.is_encrypted());
    assert_eq!(run.excerpt_bytes() + 2 * Secret::ENCRYPTION_OVERHEAD, encrypted.excerpt_bytes());

    // A retry writes the run again, after the operator has added a key. The earlier excerpts stay as they are.
    let rotated = Keyring::new(vec![new, old]);
    let mut again = encrypted.clone();
    again.attempts.push(attempt(6, Some("c".into())));
    rotated.encrypt_run(&runtime, &mut again);
    assert_eq!(excerpts(&again)[..3], excerpts(&encrypted)[..]);
    let c = excerpts(&again).pop().flatten().expect("the new attempt has an excerpt");
    assert!(rotated.is_current(&c) && !rotated.is_current(a));

    let place = |tenant, replay, attempt| (TenantId(tenant), run_id(replay), attempt);
    let open = |(tenant, run, attempt): (TenantId, RunId, u16), excerpt| {
        rotated.open(Place::Excerpt { tenant, run: &run, attempt }, excerpt)
    };
    assert_eq!(open(place(1, 1, 3), a), Ok("a".into()));
    assert_eq!(open(place(1, 1, 6), &c), Ok("c".into()));
    for (other, excerpt) in [(place(1, 1, 5), a), (place(1, 1, 3), b), (place(1, 0, 3), a), (place(2, 1, 3), a)] {
        assert_eq!(open(other, excerpt), Err(OpenError::Forged));
    }
}

#[test]
fn keyring_encrypts_with_its_first_key_and_decrypts_with_every_key() {
    let [old, new] = keys();
    let (before, after) = (Keyring::new(vec![old.clone()]), Keyring::new(vec![new.clone(), old.clone()]));
    let place = Place::SigningSecret { tenant: TenantId(1), id: "first" };
    let runtime = real_runtime();
    let of_old = before.encrypt(&runtime, place, &"1".into());
    let of_new = after.encrypt(&runtime, place, &"2".into());
    assert_eq!(after.open(place, &of_old), Ok("1".into()));
    assert_eq!(after.open(place, &of_new), Ok("2".into()));
    assert_eq!(before.open(place, &of_new), Err(OpenError::UnknownKey(new.id())));
    assert!(after.is_current(&of_new) && !after.is_current(&of_old) && !after.is_current(&"1".into()));
    assert_eq!(Keyring::NONE.open(place, &of_old), Err(OpenError::UnknownKey(old.id())));
}

#[test]
fn keyring_does_not_decrypt_plaintext_or_encrypt_ciphertext() {
    let [key] = keys();
    let keyring = Keyring::new(vec![key]);
    let place = Place::SigningSecret { tenant: TenantId(1), id: "first" };
    assert_eq!(Keyring::NONE.open(place, &"plaintext".into()), Ok("plaintext".into()));
    let encrypted = keyring.encrypt(&real_runtime(), place, &"1".into());
    assert_eq!(keyring.encrypt(&real_runtime(), place, &encrypted), encrypted);
}

#[test]
fn encrypting_a_value_twice_returns_unrelated_ciphertexts() {
    let [key] = keys();
    let keyring = Keyring::new(vec![key]);
    let place = Place::SigningSecret { tenant: TenantId(1), id: "first" };
    let encrypted = || match keyring.encrypt(&real_runtime(), place, &"the same value".into()) {
        Secret::Encrypted(bytes) => bytes.slice(1 + KEY_ID_LEN..),
        Secret::Plain(_) => panic!("the value is not encrypted"),
    };
    let (one, other) = (encrypted(), encrypted());
    assert!(one.windows(8).all(|window| other.windows(8).all(|its| its != window)));
}

#[test]
fn parser_of_store_keys_accepts_only_well_formed_keys() {
    let (key, text) = StoreKey::generate(&real_runtime());
    assert_eq!(StoreKey::parse(&text).unwrap().id(), key.id());
    for wrong in ["", "rvsk_", "rvsk_AAAA", &text[5..], &text[..text.len() - 4], &format!("{text}AAAA")] {
        assert_eq!(StoreKey::parse(wrong).map(|key| key.id()), Err(NoKey), "{wrong}");
    }
    let shown = format!("{key:?} {:?}", Keyring::new(vec![key.clone()]));
    assert!(!shown.contains(&text[5..20]), "{shown}");
}

/// Key of the golden files. The key and the golden files never change.
const KEY: &str = "rvsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// Returns a schedule with the id `order-7` of the tenant 7, with these headers.
fn schedule(url: &str, headers: &[(&str, Secret)]) -> Arc<Schedule> {
    let headers = headers.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
    let timeout = Duration::from_secs(1);
    Arc::new(Schedule {
        tenant: TenantId(7),
        id: id("order-7"),
        incarnation: Incarnation(1),
        poller: domain::PollerId { tenant: TenantId(7), generation: 0, number: 0 },
        revision: Revision(0),
        status: domain::Status::Active,
        created_at: Timestamp::MIN,
        updated_at: Timestamp::MIN,
        next: None,
        spec: domain::Spec {
            when: domain::When::At(Timestamp::MIN),
            target: Target::Http(domain::HttpTarget {
                url: url.to_owned(),
                method: "POST".to_owned(),
                headers,
                timeout,
            }),
            payload: Bytes::new(),
            labels: std::collections::BTreeMap::new(),
            retry: domain::retry::RetryPolicy::default(),
        },
    })
}

fn headers(schedule: &Schedule) -> &[(String, Secret)] {
    let Target::Http(http) = &schedule.spec.target else { panic!("the target is an HTTP target") };
    &http.headers
}

fn ciphertext_of_version_1() -> Secret {
    Secret::Encrypted(Bytes::from_static(include_bytes!("../../testdata/sealed-v1.bin")))
}

/// The first version stored headers without the origins of their targets. Every build must be able to bind them.
#[test]
fn current_build_binds_ciphertext_of_the_first_version() {
    let keyring = Keyring::new(vec![StoreKey::parse(KEY).unwrap()]);
    let old = ciphertext_of_version_1();
    let mut schedule = schedule("https://Example.com/hook", &[("authorization", old.clone())]);
    let order = id("order-7");
    let place = header(7, &order, "authorization");
    assert_eq!(keyring.open(place, &old), Err(OpenError::NotBound), "only the migration decrypts the value");
    keyring.bind_schedule(&real_runtime(), &mut schedule).unwrap();
    let (_, bound) = &headers(&schedule)[0];
    assert_eq!(keyring.open(place, bound), Ok("Bearer abc".into()));
    let Secret::Encrypted(bytes) = bound else { panic!("the value is not encrypted") };
    for form in [FORM_1, 3] {
        let mut changed = bytes.to_vec();
        changed[0] = form;
        assert!(keyring.open(place, &Secret::Encrypted(changed.into())).is_err(), "another form has other keys");
    }
}

/// Every build must decrypt the values that this version stored.
#[test]
fn current_build_decrypts_ciphertext_of_the_second_version() {
    let keyring = Keyring::new(vec![StoreKey::parse(KEY).unwrap()]);
    let order = id("order-7");
    let encrypted = Secret::Encrypted(Bytes::from_static(include_bytes!("../../testdata/sealed-v2.bin")));
    assert_eq!(keyring.open(header(7, &order, "authorization"), &encrypted), Ok("Bearer abc".into()));
}

#[test]
fn binding_a_schedule_keeps_headers_that_no_key_decrypts() {
    let keyring = Keyring::new(vec![StoreKey::parse(KEY).unwrap()]);
    let (old, plain) = (ciphertext_of_version_1(), Secret::from("plain"));
    // The name of the second header differs from the name that is part of the ciphertext.
    let all = [("authorization", old.clone()), ("x-moved", old.clone()), ("x-plain", plain)];
    let mut schedule = schedule("https://example.com", &all);
    assert!(has_unbound_header(&schedule) && !has_bound_header(&schedule));
    assert_eq!(keyring.bind_schedule(&real_runtime(), &mut schedule), Err(OpenError::Forged));
    let (order, now) = (id("order-7"), headers(&schedule));
    assert_eq!(now[1].1, old);
    for (name, value, expected) in [("authorization", &now[0].1, "Bearer abc"), ("x-plain", &now[2].1, "plain")] {
        assert_eq!(keyring.open(header(7, &order, name), value), Ok(expected.into()));
    }
    assert!(has_unbound_header(&schedule) && has_bound_header(&schedule));
}

#[test]
fn header_cannot_be_decrypted_for_another_origin() {
    let keyring = Keyring::new(vec![StoreKey::parse(KEY).unwrap()]);
    let mut bound = schedule("https://example.com/hook?a=b", &[("authorization", "Bearer abc".into())]);
    keyring.encrypt_schedule(&real_runtime(), &mut bound);
    let order = id("order-7");
    let open = |url: &str| {
        let origin = domain::target::origin(url);
        let place = Place::Header { tenant: TenantId(7), schedule: &order, name: "authorization", origin: &origin };
        keyring.open(place, &headers(&bound)[0].1)
    };
    for same in ["https://example.com", "HTTPS://EXAMPLE.com.:443/other/path#f"] {
        assert_eq!(open(same), Ok("Bearer abc".into()), "{same}");
    }
    let others = ["http://example.com", "https://example.com:444", "https://example.com.evil.example", "https://evil"];
    for other in others {
        assert_eq!(open(other), Err(OpenError::Forged), "{other}");
    }
}
