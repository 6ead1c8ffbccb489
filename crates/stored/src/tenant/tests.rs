use domain::egress::Class;

use super::*;

fn tenant() -> Tenant {
    let secret = SigningSecret::first((0..24).collect(), Timestamp::from_millis(5));
    Tenant::new(TenantId(7), "billing", 4, secret)
}

/// Row of a tenant without an egress policy. Builds without egress policies wrote every tenant in this form.
const PLAIN: &str = r#"{"name":"billing","version":1,"generations":[4],"signing_secrets":[{"id":"first","secret":"AAECAwQFBgcICQoLDA0ODxAREhMUFRYX","created_at":5}],"keys":[]}"#;

#[test]
fn missing_egress_policy_decodes_as_the_default_policy() {
    assert_eq!(decode(TenantId(7), PLAIN.as_bytes()), Ok(tenant()));
    assert_eq!(tenant().egress, Egress::default());
    assert_eq!(encode(&tenant()), PLAIN.as_bytes());
}

#[test]
fn stored_egress_policy_names_the_allowed_address_classes() {
    let egress = Egress {
        allow: Class::ALL.into(),
        allow_networks: vec!["10.1.0.0/16".parse().unwrap(), "fd00:ec2::254".parse().unwrap()],
        forbid_http: true,
        allow_topics: vec!["orders-*".parse().unwrap()],
    };
    let tenant = Tenant { egress, ..tenant() };
    let stored = r#","egress":{"allow":["loopback","private","link_local","shared"],"allow_networks":["10.1.0.0/16","fd00:ec2::254/128"],"forbid_http":true,"allow_topics":["orders-*"]}}"#;
    let stored = format!("{}{stored}", PLAIN.strip_suffix('}').unwrap());
    assert_eq!(encode(&tenant), stored.as_bytes());
    assert_eq!(decode(TenantId(7), stored.as_bytes()), Ok(tenant));
    let unknown = stored.replace("shared", "galaxy");
    assert_eq!(
        decode(TenantId(7), unknown.as_bytes()),
        Err("tenant 7: the egress policy has an unknown address class, a malformed network or a malformed topic pattern"
            .to_owned())
    );
}

#[test]
fn stored_tenant_has_a_field_for_excerpts_only_if_they_are_on() {
    let tenant = Tenant { excerpts: true, ..tenant() };
    let stored = format!(r#"{},"excerpts":true}}"#, PLAIN.strip_suffix('}').unwrap());
    assert_eq!(encode(&tenant), stored.as_bytes());
    assert_eq!(decode(TenantId(7), stored.as_bytes()), Ok(tenant));
}

#[test]
fn stored_tenant_contains_encrypted_secret_and_ids_of_store_keys() {
    let (mut tenant, bytes) = (tenant(), vec![255; 60]);
    tenant.signing_secrets[0].secret = Secret::Encrypted(bytes.into());
    tenant.store_keys = vec![KeyId::parse("0123456789abcdef").unwrap()];
    let stored = String::from_utf8(encode(&tenant)).unwrap();
    let text = format!(r#"{{"id":"first","sealed":"{}","created_at":5}}"#, "/".repeat(80));
    assert!(stored.contains(&text) && stored.ends_with(r#","store_keys":["0123456789abcdef"]}"#), "{stored}");
    assert_eq!(decode(TenantId(7), stored.as_bytes()), Ok(tenant.clone()));
    tenant.header_binding = Some(Secret::Encrypted(vec![255; 60].into()));
    let bound = String::from_utf8(encode(&tenant)).unwrap();
    let record = format!(r#","header_binding":"{}"}}"#, "/".repeat(80));
    assert_eq!(bound, format!("{}{record}", stored.strip_suffix('}').unwrap()));
    assert_eq!(decode(TenantId(7), bound.as_bytes()), Ok(tenant));
    let wrong = stored.replace("0123456789abcdef", "0123");
    assert_eq!(decode(TenantId(7), wrong.as_bytes()), Err("tenant 7: a store key has a malformed id".to_owned()));
}
