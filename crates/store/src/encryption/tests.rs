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

fn header<'a>(tenant: u32, schedule: &'a ScheduleId, name: &'a str) -> Place<'a> {
    Place::Header { tenant: TenantId(tenant), schedule, name }
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
        Place::SigningSecret { tenant: TenantId(1), id: "a" },
    ];
    for other in others {
        assert_eq!(keyring.open(other, &encrypted), Err(OpenError::Forged), "{other:?}");
    }
    assert_eq!(keyring.open(place, &encrypted), Ok("secret".into()));
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

/// Every build must decrypt the values that the first version stored. The key and the golden file of this test
/// therefore never change.
#[test]
fn current_build_decrypts_ciphertext_of_the_first_version() {
    const KEY: &str = "rvsk_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    let keyring = Keyring::new(vec![StoreKey::parse(KEY).unwrap()]);
    let schedule = id("order-7");
    let place = header(7, &schedule, "authorization");
    let encrypted = include_bytes!("../../testdata/sealed-v1.bin");
    assert_eq!(keyring.open(place, &Secret::Encrypted(Bytes::from_static(encrypted))), Ok("Bearer abc".into()));
}
