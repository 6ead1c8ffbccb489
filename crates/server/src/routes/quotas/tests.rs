use super::quota_of;

#[test]
fn api_and_domain_have_the_same_quotas() {
    assert_eq!(api::Quota::ALL.as_slice(), domain::Quota::ALL.map(quota_of).as_slice());
}
