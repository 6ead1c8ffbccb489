//! Judgement of the requests that applications write to the inbox of the database inside their own transactions. The
//! owner of a request's shard carries out the request.

use domain::limits::Limits;
use domain::{Spec, Tenant, Timestamp};
use scheduler::ReadSpec;

/// Returns the function that parses a spec, and checks it against `limits`, the quotas of the tenant and the tenant's
/// egress policy.
pub(crate) fn read_spec(limits: Limits) -> ReadSpec {
    std::sync::Arc::new(move |text: &str, tenant: &Tenant, now: Timestamp| -> Result<Spec, String> {
        // A transaction may commit long after the due instant of the schedule that it requests. The schedule then fires
        // immediately.
        let limits = Limits { past_max: now.since(Timestamp::MIN), ..limits.clone() };
        server::read_spec(text, &limits, tenant, now)
    })
}

#[cfg(test)]
mod tests {
    use domain::{Quota, SigningSecret, TenantId};

    use super::*;

    fn reason(tenant: &Tenant, timing: &str) -> Option<String> {
        let spec = format!(r#"{{{timing}, "target": {{"http": {{"url": "http://example.com/"}}}}}}"#);
        let now = Timestamp::from_millis(1_800_000_000_000);
        read_spec(Limits::default())(&spec, tenant, now).err()
    }

    #[test]
    fn requested_schedule_may_be_overdue_but_not_from_before_1970() {
        let tenant = Tenant::new(TenantId(1), "default", 1, SigningSecret::first(vec![7; 32], Timestamp::MIN));
        assert_eq!(reason(&tenant, r#""at": "1970-01-01T00:00:00Z""#), None);
        let early = reason(&tenant, r#""at": "1969-12-31T23:59:59Z""#).unwrap();
        assert!(early.contains("/at") && early.contains("too far in the past"), "{early}");
    }

    #[test]
    fn owner_judges_the_parts_of_a_request_that_sql_does_not_judge() {
        let mut tenant = Tenant::new(TenantId(1), "default", 1, SigningSecret::first(vec![7; 32], Timestamp::MIN));
        tenant.quotas.set(Quota::HorizonDays, Some(1));
        for (timing, field) in [
            (r#""cron": "0 25 * * *""#, "/cron"),
            (r#""cron": "0 7 * * *", "zone": "Mars/Base""#, "/zone"),
            (r#""every": "soon""#, "/every"),
            (r#""every": "3d""#, "horizon_days"),
        ] {
            let found = reason(&tenant, timing).unwrap_or_default();
            assert!(found.contains(field), "{timing}: {found}");
        }
        let internal = r#"{"every": "1h", "target": {"http": {"url": "http://127.0.0.1/"}}}"#;
        let found = read_spec(Limits::default())(internal, &tenant, Timestamp::from_millis(1)).unwrap_err();
        assert!(found.contains("/target/http/url"), "{found}");
    }
}
