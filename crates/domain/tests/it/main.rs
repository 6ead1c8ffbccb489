//! Tests of public ids: their form, their stability across versions, and their distribution over pollers and shards.

use std::collections::BTreeMap;
use std::time::Duration;

use domain::id::SHARDS;
use domain::{
    HttpTarget, Incarnation, Occurrence, PollerId, Revision, RunId, ScheduleId, ScheduleVersion, Target, TargetKey,
    TenantId, Timestamp,
};
use proptest::prelude::*;

fn occurrence() -> impl Strategy<Value = Occurrence> {
    let nominal = 0..=Timestamp::MAX.as_millis();
    (any::<u128>(), nominal, any::<u32>(), any::<u16>()).prop_map(|(incarnation, nominal, revision, replay)| {
        Occurrence {
            incarnation: Incarnation(incarnation),
            nominal: Timestamp::from_millis(nominal),
            revision: Revision(revision),
            replay,
        }
    })
}

proptest! {
    #[test]
    fn run_id_identifies_exactly_one_occurrence(of in occurrence(), other in occurrence()) {
        let id = of.run_id();
        prop_assert_eq!(RunId::parse(id.as_str()), Some(of));
        prop_assert_eq!(id == other.run_id(), of == other);
        prop_assert!(id.as_str().len() == 52 && id.as_str().bytes().all(|c| c.is_ascii_alphanumeric()));
    }

    #[test]
    fn schedule_version_has_exactly_one_text_form(incarnation in any::<u128>(), revision in any::<u32>()) {
        let edition = ScheduleVersion { incarnation: Incarnation(incarnation), revision: Revision(revision) };
        let name = edition.name();
        prop_assert_eq!(ScheduleVersion::parse(&name), Some(edition));
        prop_assert!(name.len() <= 37 && name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'-'));
        for other in [name.to_uppercase(), format!("{name}0"), name.replace('-', "-0"), name.replace('-', "-+")] {
            prop_assert_ne!(ScheduleVersion::parse(&other), Some(edition));
        }
    }

    #[test]
    fn run_id_parser_accepts_only_canonical_text(
        text in prop_oneof!["\\PC{0,60}", "[0-7][0-9a-z]{25}[0-7][0-9a-z]{25}", "[0-9a-zA-Z]{52}"],
    ) {
        if let Some(occurrence) = RunId::parse(&text) {
            prop_assert_eq!(occurrence.run_id().to_string(), text);
        }
    }

    #[test]
    fn run_ids_of_a_schedule_sort_like_its_occurrences(one in occurrence(), mut other in occurrence()) {
        other.incarnation = one.incarnation;
        prop_assert_eq!(one.run_id().cmp(&other.run_id()), one.cmp(&other));
    }

    #[test]
    fn schedule_id_accepts_only_allowed_characters(text in "\\PC{0,140}|[A-Za-z0-9_-]{0,140}") {
        let is_good = (1..=128).contains(&text.len())
            && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_' || c == b'-');
        let id = ScheduleId::new(&text);
        prop_assert_eq!(id.is_ok(), is_good);
        prop_assert_eq!(id.ok().map(|id| id.as_str() == text).unwrap_or(true), true);
    }

    #[test]
    fn schedule_id_generated_by_the_server_contains_its_incarnation(value: u128) {
        let id = ScheduleId::from_incarnation(Incarnation(value));
        prop_assert_eq!(id.to_incarnation(), Some(Incarnation(value)));
        prop_assert_eq!(ScheduleId::new(id.as_str()), Ok(id));
    }

    #[test]
    fn conversion_to_an_incarnation_and_back_preserves_a_schedule_id(text in "s[0-9a-z]{26}|[A-Za-z0-9_-]{27}") {
        let id = ScheduleId::new(&text).expect("the text has letters and digits only");
        if let Some(incarnation) = id.to_incarnation() {
            prop_assert_eq!(ScheduleId::from_incarnation(incarnation), id);
        }
    }

    #[test]
    fn server_made_ids_sort_by_incarnation(one: u128, other: u128) {
        let (one, other) = (Incarnation(one), Incarnation(other));
        let ids = (ScheduleId::from_incarnation(one), ScheduleId::from_incarnation(other));
        prop_assert_eq!(ids.0.cmp(&ids.1), one.cmp(&other));
    }

    #[test]
    fn last_incarnation_up_to_an_id_is_exact(text in "s[0-9a-z]{0,30}|s[0-7][A-Za-z0-9_-]{0,30}|[A-Za-z0-9_-]{1,30}") {
        let id = ScheduleId::new(&text).expect("the text has allowed characters only");
        let last = id.last_incarnation_up_to();
        if let Some(last) = last {
            prop_assert!(ScheduleId::from_incarnation(last) <= id);
        }
        let next = last.map_or(Some(0), |last| last.0.checked_add(1));
        if let Some(next) = next {
            prop_assert!(ScheduleId::from_incarnation(Incarnation(next)) > id);
        }
    }

    #[test]
    fn incarnations_sort_by_creation_instant(
        early in 0_i64..1 << 47, later in 1_i64..1 << 46, one: u128, other: u128,
    ) {
        let incarnation = |millis, random| Incarnation::new(Timestamp::from_millis(millis), random);
        prop_assert!(incarnation(early, one) < incarnation(early + later, other));
    }

    #[test]
    fn target_key_depends_only_on_scheme_host_and_port(
        host in "[a-z]{1,10}(\\.[a-z]{2,5})?", port in 1_u16.., path in "(/[a-z]{0,5}){0,3}", query in "(\\?[a-z:/]{0,8})?",
    ) {
        let plain = key(&format!("https://{host}:{port}"));
        prop_assert_eq!(key(&format!("HTTPS://{}:{port}{path}{query}", host.to_uppercase())), plain);
        prop_assert_ne!(key(&format!("http://{host}:{port}{path}")), plain);
        prop_assert_ne!(key(&format!("https://{host}:{}{path}", port ^ 1)), plain);
    }
}

fn key(url: &str) -> TargetKey {
    let (url, method, headers) = (url.to_owned(), "POST".to_owned(), Vec::new());
    Target::Http(HttpTarget { url, method, headers, timeout: Duration::from_secs(10) }).key()
}

#[test]
fn schedules_with_ids_of_any_format_spread_evenly_over_pollers() {
    let named = |text: String| ScheduleId::new(&text).expect("the text has letters, digits and dashes only");
    let numbered = |n: u32| named(n.to_string());
    let orders = |n: u32| named(format!("order-{n}"));
    let uuids = |n: u32| {
        let random = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_bf58_476d_1ce4_e5b9);
        let text = format!("{random:032x}");
        named(format!("{}-{}-4{}-8{}-{}", &text[..8], &text[8..12], &text[13..16], &text[17..20], &text[20..]))
    };
    let prefixed = |n: u32| named(format!("order-2026-11-21-{n:08}"));
    let suffixed = |n: u32| named(format!("{n}-reminder_2"));
    let server_made = |n: u32| {
        let now = Timestamp::from_millis(1_790_000_000_000 + i64::from(n / 40));
        // The multiplier of SplitMix64 produces distinct numbers without a visible pattern.
        let random = u128::from(n).wrapping_mul(0x9e37_79b9_7f4a_7c15_bf58_476d_1ce4_e5b9);
        ScheduleId::from_incarnation(Incarnation::new(now, random))
    };
    let names: [&dyn Fn(u32) -> ScheduleId; 6] = [&numbered, &orders, &prefixed, &suffixed, &uuids, &server_made];
    for name in names {
        let pollers = (0..50_000).map(|n| PollerId::of(TenantId(7), 0, 64, &name(n)).number);
        assert_even(pollers, 64, name(1).as_str());
    }
}

#[test]
fn pollers_spread_evenly_over_shards() {
    let poller = |tenant, number| PollerId { tenant: TenantId(tenant), generation: 0, number };
    let many_tenants = (0..50_000).map(|tenant| poller(tenant, 0).shard().0);
    assert_even(many_tenants, SHARDS, "one poller of many tenants");
    let large_tenants = (0..100).flat_map(|tenant| (0..500).map(move |number| poller(tenant, number).shard().0));
    assert_even(large_tenants, SHARDS, "many pollers of some tenants");
}

/// Quantiles of the chi-square distribution (p = 0.001) with 63 and with 255 degrees of freedom. The chi-square value
/// of a fair random draw exceeds its quantile in one of a thousand draws. The input of these tests is fixed, so the
/// result is always the same.
const CHI_SQUARE_MAX: [(u16, f64); 2] = [(64, 103.442), (256, 330.520)];

fn assert_even(buckets: impl Iterator<Item = u16>, bucket_count: u16, input: &str) {
    let mut counts = BTreeMap::new();
    let mut total = 0.0;
    for bucket in buckets {
        *counts.entry(bucket).or_insert(0.0) += 1.0;
        total += 1.0;
    }
    assert_eq!(counts.len(), usize::from(bucket_count), "{input}: every bucket is used");
    let expected = total / f64::from(bucket_count);
    let chi_square: f64 = counts.values().map(|count: &f64| (count - expected).powi(2) / expected).sum();
    let bound = CHI_SQUARE_MAX.iter().find(|(buckets, _)| *buckets == bucket_count).expect("the table has the bound").1;
    assert!(chi_square < bound, "{input}: chi-square is {chi_square:.1}, but the bound is {bound}");
}
