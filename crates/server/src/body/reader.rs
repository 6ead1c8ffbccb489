//! Parser that converts JSON to fields in one pass. It borrows strings from the JSON text, and collects all errors.
//!
//! Only a text that is not JSON ends the pass early. The parser records each wrong type, unknown field or repeated
//! field with a pointer to it, and continues, so that one response lists all errors. Without errors, the parser
//! allocates only the vectors of headers and labels, and the strings that contain escapes.
//!
//! docs/decisions/0060-read-a-body-in-one-pass.md gives the reasons for the design.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use api::FieldError;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::pointer::{Errors, NAME_BYTES_MAX};

/// Object with known fields.
pub(super) trait Fields<'de>: Default {
    const NAMES: &'static [&'static str];

    /// Reads the value of the field `name`, which is one of `NAMES`.
    fn read<A: MapAccess<'de>>(
        &mut self,
        name: &'static str,
        map: &mut A,
        errors: &mut Errors<'_>,
    ) -> Result<(), A::Error>;
}

/// Pairs of an object with user-defined keys, in the order of the JSON text. The pairs include repeated keys.
pub(super) type Pairs<'de> = Vec<(Cow<'de, str>, Cow<'de, str>)>;

/// Reads a whole text as one object. Returns `None` for JSON that is not an object.
pub(super) fn read_document<'de, F: Fields<'de>>(
    text: &'de str,
    errors: &mut Errors<'_>,
) -> Result<Option<F>, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let fields = Any(ObjectReader { errors: errors.borrow(), fields: PhantomData }).deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(fields)
}

/// Records an error for a document that is `null`, because only fields may be `null`. If the document has another wrong
/// type, the parser has already recorded an error.
pub(super) fn note_null(errors: &mut Errors<'_>) {
    if !errors.has_error_here() {
        wrong_type(errors.borrow(), "an object", "null");
    }
}

/// Reads the field `name` as a string. Like [`whole`], [`object`] and [`pairs`], this function records an error and
/// returns `None` for a value of a wrong type. It also returns `None` for `null`, which means a missing field.
pub(super) fn text<'de, A: MapAccess<'de>>(
    map: &mut A,
    name: &str,
    errors: &mut Errors<'_>,
) -> Result<Option<Cow<'de, str>>, A::Error> {
    map.next_value_seed(Any(TextReader(errors.at(name))))
}

pub(super) fn whole<'de, A: MapAccess<'de>>(
    map: &mut A,
    name: &str,
    errors: &mut Errors<'_>,
) -> Result<Option<i64>, A::Error> {
    map.next_value_seed(Any(WholeReader(errors.at(name))))
}

pub(super) fn object<'de, F: Fields<'de>, A: MapAccess<'de>>(
    map: &mut A,
    name: &str,
    errors: &mut Errors<'_>,
) -> Result<Option<F>, A::Error> {
    map.next_value_seed(Any(ObjectReader { errors: errors.at(name), fields: PhantomData }))
}

pub(super) fn pairs<'de, A: MapAccess<'de>>(
    map: &mut A,
    name: &str,
    errors: &mut Errors<'_>,
) -> Result<Option<Pairs<'de>>, A::Error> {
    map.next_value_seed(Any(PairsReader(errors.at(name))))
}

/// Reader of one JSON value. The methods `text`, `whole` and `object` each read one kind of value. By default, each of
/// these methods records the error of a wrong type. An implementation overrides the methods of the kinds that it
/// accepts.
trait Reader<'de>: Sized {
    type Value;
    const EXPECTED: &'static str;

    fn wrong(self, found: &'static str);

    fn null(self) {}

    fn text(self, _text: Cow<'de, str>) -> Option<Self::Value> {
        self.wrong("a string");
        None
    }

    fn whole(self, _number: i64) -> Option<Self::Value> {
        self.wrong("a number");
        None
    }

    fn object<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<Self::Value>, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        self.wrong("an object");
        Ok(None)
    }
}

fn wrong_type(mut errors: Errors<'_>, expected: &str, found: &str) {
    if errors.is_full() {
        return;
    }
    let hint = (expected == TextReader::EXPECTED && found == "a number")
        .then(|| "put the value in quotation marks; a duration also has a unit, such as \"30s\"".to_owned());
    errors.note(FieldError {
        code: "wrong_type".into(),
        detail: format!("expected {expected}, but found {found}"),
        hint,
        ..FieldError::default()
    });
}

struct TextReader<'e>(Errors<'e>);

impl<'de> Reader<'de> for TextReader<'_> {
    type Value = Cow<'de, str>;
    const EXPECTED: &'static str = "a string";

    fn wrong(self, found: &'static str) {
        wrong_type(self.0, Self::EXPECTED, found);
    }

    fn text(self, text: Cow<'de, str>) -> Option<Cow<'de, str>> {
        Some(text)
    }
}

struct WholeReader<'e>(Errors<'e>);

impl<'de> Reader<'de> for WholeReader<'_> {
    type Value = i64;
    const EXPECTED: &'static str = "a whole number";

    fn wrong(self, found: &'static str) {
        wrong_type(self.0, Self::EXPECTED, found);
    }

    fn whole(self, number: i64) -> Option<i64> {
        Some(number)
    }
}

struct PairsReader<'e>(Errors<'e>);

impl<'de> Reader<'de> for PairsReader<'_> {
    type Value = Pairs<'de>;
    const EXPECTED: &'static str = "an object whose values are strings";

    fn wrong(self, found: &'static str) {
        wrong_type(self.0, Self::EXPECTED, found);
    }

    fn object<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Option<Pairs<'de>>, A::Error> {
        let mut pairs = Pairs::new();
        while let Some(Key(key)) = map.next_key()? {
            if let Some(value) = map.next_value_seed(Any(PairValueReader(TextReader(self.0.at(&key)))))? {
                pairs.push((key, value));
            }
        }
        Ok(Some(pairs))
    }
}

/// Reader of the value of a header or label. It rejects `null`: a client that wants to omit a header or label must omit
/// its name too.
struct PairValueReader<'e>(TextReader<'e>);

impl<'de> Reader<'de> for PairValueReader<'_> {
    type Value = Cow<'de, str>;
    const EXPECTED: &'static str = TextReader::EXPECTED;

    fn wrong(self, found: &'static str) {
        self.0.wrong(found);
    }

    fn null(self) {
        self.wrong("null");
    }

    fn text(self, text: Cow<'de, str>) -> Option<Cow<'de, str>> {
        Some(text)
    }
}

struct ObjectReader<'e, F> {
    errors: Errors<'e>,
    fields: PhantomData<F>,
}

impl<'de, F: Fields<'de>> Reader<'de> for ObjectReader<'_, F> {
    type Value = F;
    const EXPECTED: &'static str = "an object";

    fn wrong(self, found: &'static str) {
        wrong_type(self.errors, Self::EXPECTED, found);
    }

    fn object<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Option<F>, A::Error> {
        let mut fields = F::default();
        let mut seen: u32 = 0;
        while let Some(Key(key)) = map.next_key()? {
            let Some(index) = F::NAMES.iter().position(|name| *name == key) else {
                let _value: IgnoredAny = map.next_value()?;
                note_unknown(&mut self.errors, &key, F::NAMES);
                continue;
            };
            if seen & 1 << index != 0 {
                let _value: IgnoredAny = map.next_value()?;
                self.errors.at(&key).note(FieldError {
                    code: "duplicate_field".into(),
                    detail: "the field is repeated".into(),
                    ..FieldError::default()
                });
                continue;
            }
            seen |= 1 << index;
            fields.read(F::NAMES[index], &mut map, &mut self.errors)?;
        }
        Ok(Some(fields))
    }
}

/// Fields that users often put into a wrong object, with the correct object of each field. The hint of an error names
/// the correct object.
const PLACES: [(&str, &[&str]); 3] = [
    (r#""target": {"http": {…}}"#, &["url", "method", "headers", "timeout"]),
    (r#""target": {"bus": {…}}"#, &["topic", "key", "cloud_event"]),
    (r#""retry": {…}"#, &["attempts_max", "backoff", "backoff_max"]),
];

fn note_unknown(errors: &mut Errors<'_>, key: &str, names: &[&'static str]) {
    if errors.is_full() {
        return;
    }
    let place = PLACES.iter().find(|(_, fields)| fields.contains(&key));
    let hint = match (place, nearest(key, names)) {
        (Some((place, _)), _) => format!("`{key}` is a field of {place}"),
        (None, Some(name)) => format!("did you mean `{name}`?"),
        (None, None) => format!("known fields: {}", names.join(", ")),
    };
    errors.at(key).note(FieldError {
        code: "unknown_field".into(),
        detail: "unknown field".into(),
        hint: Some(hint),
        ..FieldError::default()
    });
}

/// Returns the known name that is most similar to `key`, or `None` if no name is similar enough. The function compares
/// no key longer than [`NAME_BYTES_MAX`], because the comparison takes time in proportion to the key's length.
fn nearest(key: &str, names: &[&'static str]) -> Option<&'static str> {
    if key.len() > NAME_BYTES_MAX {
        return None;
    }
    let likeness = |name: &str| (strsim::jaro_winkler(key, name) * 1_000.0).round();
    let nearest = names.iter().copied().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    nearest.filter(|name| likeness(name) >= 800.0)
}

/// Key of an object, borrowed unless it contains escapes.
pub(super) struct Key<'de>(pub(super) Cow<'de, str>);

impl<'de> serde::Deserialize<'de> for Key<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct KeyVisitor;
        impl<'de> Visitor<'de> for KeyVisitor {
            type Value = Key<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Borrowed(text)))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Key<'de>, E> {
                Ok(Key(Cow::Owned(text.to_owned())))
            }
        }
        deserializer.deserialize_str(KeyVisitor)
    }
}

/// Deserializer of any JSON value, which calls the reader's method for the kind of the value.
struct Any<R>(R);

impl<'de, R: Reader<'de>> DeserializeSeed<'de> for Any<R> {
    type Value = Option<R::Value>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, R: Reader<'de>> Visitor<'de> for Any<R> {
    type Value = Option<R::Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(R::EXPECTED)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(self.0.text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(self.0.text(Cow::Owned(text.to_owned())))
    }

    fn visit_bool<E: Error>(self, _value: bool) -> Result<Self::Value, E> {
        self.0.wrong("a boolean");
        Ok(None)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(self.0.whole(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(self.0.whole(i64::try_from(number).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: Error>(self, _number: f64) -> Result<Self::Value, E> {
        self.0.wrong("a number with a fraction or exponent");
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        self.0.null();
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        self.0.wrong("an array");
        Ok(None)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Self::Value, A::Error> {
        self.0.object(map)
    }
}
