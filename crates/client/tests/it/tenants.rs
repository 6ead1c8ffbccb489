//! Tests of the SDK calls for operators and admins.

use reveille_client::api::{Egress, EgressPatch, TenantPatch, TenantRequest};
use reveille_client::{KeyRequest, Quota, Role, TryStreamExt as _};

use crate::support::{OPERATOR_KEY, World, later, on_real};

#[test]
fn audit_log_records_each_administrative_change_to_a_tenant() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let operator = world.client_as(OPERATOR_KEY);
        let created = operator.create_tenant(&TenantRequest::new("billing")).await.unwrap();
        assert!(!format!("{created:?}").contains(&created.key.secret.0), "the debug text hides secrets");
        let names: Vec<_> = operator.tenants().await.unwrap().into_iter().map(|tenant| tenant.name).collect();
        assert_eq!(names, ["billing", "operator", "shop"]);

        let admin = world.client_as(&created.key.secret.0);
        let request = KeyRequest { role: Role::Writer, name: "checkout".to_owned(), expires_at: None };
        let writer = admin.create_key("billing", &request).await.unwrap();
        let writers = world.client_as(&writer.secret.0);
        writers.create(&later()).await.unwrap();
        assert_eq!(writers.keys("billing").await.unwrap_err().code(), Some("role_forbidden"));
        assert_eq!(admin.keys("shop").await.unwrap_err().code(), Some("tenant_not_found"));
        assert_eq!(admin.keys("billing").await.unwrap().len(), 2);
        assert_eq!(admin.revoke_key("billing", &writer.key.id).await.unwrap().name, "checkout");
        assert_eq!(writers.create(&later()).await.unwrap_err().code(), Some("invalid_credentials"));

        let second = admin.create_signing_secret("billing").await.unwrap();
        assert!(second.secret.0.starts_with("whsec_"));
        let secrets = admin.signing_secrets("billing").await.unwrap();
        assert_eq!(secrets[0], second.signing_secret);
        admin.delete_signing_secret("billing", &secrets[1].id).await.unwrap();
        let last = admin.delete_signing_secret("billing", &secrets[0].id).await.unwrap_err();
        assert_eq!(last.code(), Some("last_one"));

        assert_eq!(admin.tenant("billing").await.unwrap().keys, 1);
        let entries: Vec<_> = admin.audit("billing").map_ok(|entry| entry.action).try_collect().await.unwrap();
        let expected = ["tenant.create", "key.create", "key.revoke", "signing_secret.create", "signing_secret.delete"];
        assert_eq!(entries, expected);
        world.stop().await;
    });
}

#[test]
fn admin_sets_quotas_up_to_the_operators_ceilings() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let ceilings = [(Quota::CreatesPerSecond, Some(50))].into();
        let patch = TenantPatch { ceilings, ..TenantPatch::default() };
        let patched = world.client_as(OPERATOR_KEY).update_tenant("shop", &patch).await.unwrap();
        assert_eq!(patched.ceilings[&Quota::CreatesPerSecond], Some(50));
        let admin = world.client();
        let sheet = admin.set_quotas(&[(Quota::CreatesPerSecond, Some(20))].into()).await.unwrap();
        assert_eq!(sheet.quotas[&Quota::CreatesPerSecond], Some(20));
        assert_eq!(admin.quotas().await.unwrap(), sheet);
        let error = admin.set_quotas(&[(Quota::CreatesPerSecond, Some(51))].into()).await.unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), (Some("quota_ceiling"), false));
        world.stop().await;
    });
}

#[test]
fn tenant_patch_changes_only_the_egress_fields_that_it_names() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let operator = world.client_as(OPERATOR_KEY);
        let update = async |egress: EgressPatch| {
            let patch = TenantPatch { egress: Some(egress), ..TenantPatch::default() };
            operator.update_tenant("shop", &patch).await.unwrap().egress
        };
        let networks = vec!["10.1.0.0/16".to_owned()];
        let whole = Egress { allow: vec!["private".to_owned()], allow_networks: networks, ..Egress::default() };
        assert_eq!(update(whole.clone().into()).await, whole);
        let changed = update(EgressPatch { forbid_http: Some(true), ..EgressPatch::default() }).await;
        assert_eq!(changed, Egress { forbid_http: true, ..whole.clone() });
        let changed = update(EgressPatch { allow: Some(Vec::new()), ..EgressPatch::default() }).await;
        assert_eq!(changed, Egress { allow: Vec::new(), forbid_http: true, ..whole });
        assert_eq!(update(Egress::default().into()).await, Egress::default());
        world.stop().await;
    });
}

#[test]
fn client_retries_rate_limited_create_requests_until_all_succeed() {
    on_real(async |runtime| {
        let world = World::start(&runtime).await;
        let client = world.client();
        client.set_quotas(&[(Quota::CreatesPerSecond, Some(2))].into()).await.unwrap();
        let request = later();
        let creates = (0..4).map(|_| client.create(&request));
        for created in futures_util::future::join_all(creates).await {
            created.unwrap();
        }
        world.stop().await;
    });
}
