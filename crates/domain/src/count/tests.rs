use super::*;
use proptest::prelude::*;

fn sample(lateness: u64) -> RunSample {
    RunSample { state: RunStateKind::Succeeded, lateness: Some(lateness), duration: Some(1) }
}

fn origin(host: &str, labels: &[(&str, &str)]) -> RunOrigin {
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    RunOrigin { host: Some(host.to_owned()), labels }
}

fn runs(counts: &Counts) -> u64 {
    counts.groups().values().flat_map(Tallies::values).map(|tally| tally.runs).sum()
}

fn runs_in(counts: &Counts, group: &Group) -> u64 {
    counts.groups().get(group).into_iter().flat_map(Tallies::values).map(|tally| tally.runs).sum()
}

#[test]
fn hours_start_at_their_first_instant() {
    let at = |millis| Timestamp::from_millis(millis);
    assert_eq!((Hour::of(at(0)), Hour::of(at(3_599_999)), Hour::of(at(3_600_000))), (Hour(0), Hour(0), Hour(1)));
    assert_eq!((Hour::from_start(at(3_600_000)), Hour::from_start(at(3_600_001))), (Hour(1), Hour(2)));
    assert_eq!(Hour(2).start(), at(7_200_000));
}

#[test]
fn run_counts_in_the_groups_of_its_origin() {
    let mut all = Facet::ALL.map(|facet| (facet, Counts::default()));
    let origins = [Some(origin("a.example", &[("team", "blue"), ("app", "shop")])), Some(RunOrigin::default()), None];
    for (facet, counts) in &mut all {
        for origin in &origins {
            counts.record(*facet, origin.as_ref(), &sample(1));
        }
    }
    let [(_, every), (_, hosts), (_, labels)] = &all;
    assert_eq!((runs(every), every.groups().len()), (3, 1));
    assert_eq!((runs_in(hosts, &Group::value("", "a.example")), runs_in(hosts, &Group::None)), (1, 2));
    assert_eq!((runs_in(labels, &Group::value("team", "blue")), runs_in(labels, &Group::value("app", "shop"))), (1, 1));
    assert_eq!(runs_in(labels, &Group::None), 2);
}

#[test]
fn label_with_many_values_leaves_room_for_others() {
    let mut counts = Counts::default();
    let (names_max, values_max) = Facet::Label.groups_max();
    for number in 0..1_000 {
        let cart = number.to_string();
        counts.record(Facet::Label, Some(&origin("", &[("cart", &cart), ("team", "blue")])), &sample(1));
    }
    counts.record(Facet::Label, Some(&origin("", &[("team", "red")])), &sample(1));
    assert_eq!(runs_in(&counts, &Group::value("team", "blue")), 1_000);
    assert_eq!(runs_in(&counts, &Group::value("team", "red")), 1);
    assert_eq!(runs_in(&counts, &Group::OtherValue { name: "cart".to_owned() }), 1_000 - values_max as u64);
    let many: Vec<String> = (0..20).map(|number| format!("name-{number}")).collect();
    let labels: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), "x")).collect();
    counts.record(Facet::Label, Some(&origin("", &labels)), &sample(1));
    assert_eq!(runs_in(&counts, &Group::OtherName), 1, "a run counts once in a group");
    let named = counts.groups().keys().filter(|group| matches!(group, Group::Value { .. })).count();
    assert_eq!(named, values_max + 2 + names_max - 2);
}

#[test]
fn retrying_run_is_not_counted() {
    let outline = RunOutline { state: RunStateKind::Retrying, lateness: None, statuses: Vec::new() };
    assert_eq!(RunSample::new(&outline, None), None);
    let final_ = RunOutline { state: RunStateKind::Failed, ..outline };
    let sample = RunSample::new(&final_, Some(Duration::from_micros(1_001)));
    assert_eq!(sample, Some(RunSample { state: RunStateKind::Failed, lateness: None, duration: Some(2) }));
}

fn recorded() -> impl Strategy<Value = Vec<(u8, u8, u64)>> {
    prop::collection::vec((0..90_u8, 0..12_u8, 0..5_000_u64), 0..150)
}

fn counts(facet: Facet, recorded: &[(u8, u8, u64)]) -> Counts {
    let mut counts = Counts::default();
    for (value, name, lateness) in recorded {
        let origin = origin(&value.to_string(), &[(&name.to_string(), &value.to_string())]);
        let (size, buckets) = (counts.size(), counts.buckets());
        let grown = counts.record(facet, Some(&origin), &sample(*lateness));
        assert_eq!((counts.size(), counts.buckets()), (size + grown.size, buckets + grown.buckets));
    }
    counts
}

proptest! {
    #[test]
    fn merges_lose_no_run_and_stay_within_the_bounds(a in recorded(), b in recorded(), c in recorded()) {
        for facet in Facet::ALL {
            let [of_a, of_b, of_c] = [&a, &b, &c].map(|recorded| counts(facet, recorded));
            let mut left = of_a.clone();
            left.merge(facet, &of_b);
            left.merge(facet, &of_c);
            let mut right = of_b.clone();
            right.merge(facet, &of_c);
            let mut whole = of_a.clone();
            whole.merge(facet, &right);
            let total = (a.len() + b.len() + c.len()) as u64;
            prop_assert_eq!((runs(&left), runs(&whole)), (total, total));
            let (names_max, values_max) = facet.groups_max();
            for counts in [&left, &whole] {
                let named = counts.groups().keys().filter(|group| matches!(group, Group::Value { .. })).count();
                prop_assert!(named <= names_max * values_max);
                prop_assert!(counts.groups().len() <= names_max * (values_max + 1) + 2);
            }
            if facet == Facet::All {
                prop_assert_eq!(&left, &whole, "a merge without a bound is associative");
            }
        }
    }
}
