use super::quota_of;

#[test]
fn api_crate_and_domain_crate_define_the_same_quotas() {
    assert_eq!(api::Quota::ALL.as_slice(), domain::Quota::ALL.map(quota_of).as_slice());
}
