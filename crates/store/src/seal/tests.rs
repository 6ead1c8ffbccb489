use proptest::prelude::*;

use super::*;

/// Real numbers: the clock that comes with them is never asked.
fn chance() -> Runtime {
    let tokio = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let _inside = tokio.enter();
    Runtime::real()
}

fn keys<const COUNT: usize>() -> [SealKey; COUNT] {
    std::array::from_fn(|_| SealKey::generate(&chance()).0)
}

fn header<'a>(tenant: u32, schedule: &'a ScheduleId, name: &'a str) -> Place<'a> {
    Place::Header { tenant: TenantId(tenant), schedule, name }
}

fn id(text: &str) -> ScheduleId {
    ScheduleId::new(text).unwrap()
}

proptest! {
    #[test]
    fn what_is_sealed_opens_and_is_nowhere_in_the_bytes(value in prop::collection::vec(any::<u8>(), 8..200)) {
        let [key] = keys();
        let seal = Seal::new(vec![key]);
        let schedule = id("a");
        let place = header(1, &schedule, "authorization");
        let sealed = seal.seal(&chance(), place, &value.clone().into());
        prop_assert_eq!(seal.open(place, &sealed), Ok(value.clone().into()));
        prop_assert_eq!(sealed.plain_len(), value.len());
        let Secret::Sealed(bytes) = &sealed else { panic!("it is in plain") };
        prop_assert!(!bytes.windows(value.len()).any(|window| window == value));
    }

    #[test]
    fn bytes_that_were_changed_or_cut_do_not_open(at in any::<prop::sample::Index>(), by in 1..=u8::MAX) {
        let [key] = keys();
        let seal = Seal::new(vec![key]);
        let schedule = id("a");
        let place = header(1, &schedule, "x");
        let Secret::Sealed(sealed) = seal.seal(&chance(), place, &"Bearer abc".into()) else { panic!("in plain") };
        let at = at.index(sealed.len());
        let mut changed = sealed.to_vec();
        changed[at] ^= by;
        prop_assert!(seal.open(place, &Secret::Sealed(changed.into())).is_err());
        prop_assert!(seal.open(place, &Secret::Sealed(sealed.slice(..at))).is_err());
    }
}

#[test]
fn a_value_opens_in_its_own_place_only() {
    let [key] = keys();
    let seal = Seal::new(vec![key]);
    let (a, b) = (id("a"), id("b"));
    let place = header(1, &a, "x-token");
    let sealed = seal.seal(&chance(), place, &"secret".into());
    let others = [
        header(2, &a, "x-token"),
        header(1, &b, "x-token"),
        header(1, &a, "x-other"),
        Place::SigningSecret { tenant: TenantId(1), id: "a" },
    ];
    for other in others {
        assert_eq!(seal.open(other, &sealed), Err(OpenError::Forged), "{other:?}");
    }
    assert_eq!(seal.open(place, &sealed), Ok("secret".into()));
}

#[test]
fn the_first_key_seals_and_all_of_them_open() {
    let [old, new] = keys();
    let (before, after) = (Seal::new(vec![old.clone()]), Seal::new(vec![new.clone(), old.clone()]));
    let place = Place::SigningSecret { tenant: TenantId(1), id: "first" };
    let runtime = chance();
    let of_old = before.seal(&runtime, place, &"1".into());
    let of_new = after.seal(&runtime, place, &"2".into());
    assert_eq!(after.open(place, &of_old), Ok("1".into()));
    assert_eq!(after.open(place, &of_new), Ok("2".into()));
    assert_eq!(before.open(place, &of_new), Err(OpenError::UnknownKey(new.id())));
    assert_eq!(Seal::NONE.open(place, &of_old), Err(OpenError::UnknownKey(old.id())));
}

#[test]
fn what_builds_stored_that_did_not_seal_opens_and_what_is_sealed_is_not_sealed_again() {
    let [key] = keys();
    let seal = Seal::new(vec![key]);
    let place = Place::SigningSecret { tenant: TenantId(1), id: "first" };
    assert_eq!(Seal::NONE.open(place, &"in plain".into()), Ok("in plain".into()));
    let sealed = seal.seal(&chance(), place, &"1".into());
    assert_eq!(seal.seal(&chance(), place, &sealed), sealed);
}

#[test]
fn two_sealings_of_one_value_have_nothing_in_common() {
    let [key] = keys();
    let seal = Seal::new(vec![key]);
    let place = Place::SigningSecret { tenant: TenantId(1), id: "first" };
    let sealed = || match seal.seal(&chance(), place, &"the same value".into()) {
        Secret::Sealed(bytes) => bytes.slice(1 + KEY_ID_LEN..),
        Secret::Plain(_) => panic!("it is in plain"),
    };
    let (one, other) = (sealed(), sealed());
    assert!(one.windows(8).all(|window| other.windows(8).all(|its| its != window)));
}

#[test]
fn a_key_is_read_as_it_was_written_and_nothing_else_is_one() {
    let (key, text) = SealKey::generate(&chance());
    assert_eq!(SealKey::parse(&text).unwrap().id(), key.id());
    for wrong in ["", "rvsk_", "rvsk_AAAA", &text[5..], &text[..text.len() - 4], &format!("{text}AAAA")] {
        assert_eq!(SealKey::parse(wrong).map(|key| key.id()), Err(NoKey), "{wrong}");
    }
    let shown = format!("{key:?} {:?}", Seal::new(vec![key.clone()]));
    assert!(!shown.contains(&text[5..20]), "{shown}");
}

/// What is stored is opened by every later build: these never change.
#[test]
fn what_was_sealed_by_the_first_build_that_sealed_is_opened() {
    const KEY: &str = "rvsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let seal = Seal::new(vec![SealKey::parse(KEY).unwrap()]);
    let schedule = id("order-7");
    let place = header(7, &schedule, "authorization");
    let sealed = include_bytes!("../../testdata/sealed-v1.bin");
    assert_eq!(seal.open(place, &Secret::Sealed(Bytes::from_static(sealed))), Ok("Bearer abc".into()));
}
