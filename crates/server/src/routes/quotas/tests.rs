use super::quota_of;

#[test]
fn api_crate_has_the_quotas_of_the_domain_crate() {
    assert_eq!(api::Quota::ALL.as_slice(), domain::Quota::ALL.map(quota_of).as_slice());
}
