use crate::support::{FOREIGN_KEY, KEY, OPERATOR_KEY, World};

#[tokio::test]
async fn audit_is_visible_to_admins_and_operators() {
    let world = World::start().await;
    for key in [KEY, FOREIGN_KEY, OPERATOR_KEY] {
        let audit = world.send_as(key, "GET", "/v1/audit", "").await;
        assert_eq!(audit.status, 200, "{}", audit.body);
        let json = audit.json();
        assert_eq!((&json["unaccounted"], &json["truncated"]), (&0.into(), &false.into()), "{json}");
        assert_eq!(json["findings"], serde_json::json!([]));
        assert!(json.get("completed_at").is_none(), "the first audit begins later: {json}");
    }
    for role in ["writer", "reader"] {
        let body = format!(r#"{{"role":"{role}"}}"#);
        let key = world.send("POST", "/v1/tenants/tenant-1/keys", &body).await.text("/secret");
        let rejected = world.send_as(&key, "GET", "/v1/audit", "").await;
        assert_eq!((rejected.status, rejected.text("/code").as_str()), (403, "role_forbidden"));
    }
    let query = world.send("GET", "/v1/audit?limit=1", "").await;
    assert_eq!((query.status, query.text("/code").as_str()), (400, "invalid_parameter"));
    world.stop().await;
}
