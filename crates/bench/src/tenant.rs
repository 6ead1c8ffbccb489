//! Tenants that a trial creates through the operators' API.

use std::net::SocketAddr;

use anyhow::Context;
use reveille_client::api::TenantRequest;
use reveille_client::{Client, Options, Quota, Quotas};
use runtime::Runtime;

use crate::message::Head;
use crate::server::Server;

pub(crate) struct Tenant {
    /// Client with the tenant's admin key.
    pub(crate) client: Client,
    host: SocketAddr,
    key: String,
}

impl Tenant {
    /// Creates a tenant whose callbacks may reach this machine. The tenant's name begins with `name`. Each value in
    /// `quotas` sets a quota and its ceiling; the other quotas are the server's defaults.
    ///
    /// # Errors
    /// Returns an error if the trial did not start the server, or if the server rejects the tenant.
    pub(crate) async fn create(runtime: &Runtime, server: &Server, name: &str, quotas: Quotas) -> anyhow::Result<Self> {
        Tenant::create_with_topics(runtime, server, name, quotas, &[]).await
    }

    /// Works like [`Tenant::create`], but the tenant's callbacks may also reach the topics that match a pattern of
    /// `topics`.
    ///
    /// # Errors
    /// Returns the same errors as [`Tenant::create`].
    pub(crate) async fn create_with_topics(
        runtime: &Runtime,
        server: &Server,
        name: &str,
        quotas: Quotas,
        topics: &[&str],
    ) -> anyhow::Result<Self> {
        let url = format!("http://{}", server.address);
        let operator = Client::new(&url, &server.operator_key()?, Options::default())?;
        let ceilings = quotas.clone();
        let mut request =
            TenantRequest { quotas, ceilings, ..TenantRequest::new(format!("{name}-{:016x}", runtime.random())) };
        request.egress.allow = vec!["loopback".to_owned()];
        request.egress.allow_topics = topics.iter().map(|topic| (*topic).to_owned()).collect();
        let created = operator.create_tenant(&request).await;
        let created = created.with_context(|| format!("the server did not create the tenant {}", request.name))?;
        let key = created.key.secret.0;
        Ok(Tenant { client: Client::new(&url, &key, Options::default())?, host: server.address, key })
    }

    /// Returns the parts of the request head that are equal in every request of this tenant.
    pub(crate) fn head(&self, content_type: &'static str) -> Head {
        Head { host: self.host, key: self.key.clone(), content_type }
    }
}

/// Returns quotas without limits, except for the given number of callbacks per minute.
pub(crate) fn unlimited_except(callbacks_per_minute: Option<u32>) -> Quotas {
    let number = |quota| if quota == Quota::CallbacksPerMinute { callbacks_per_minute } else { None };
    Quota::ALL.into_iter().map(|quota| (quota, number(quota))).collect()
}
