use super::quota_of;

#[test]
fn the_api_lists_the_quotas_that_there_are() {
    assert_eq!(api::Quota::ALL.as_slice(), domain::Quota::ALL.map(quota_of).as_slice());
}
