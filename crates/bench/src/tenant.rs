//! Tenants of a trial's own, made as an operator makes them.

use std::net::SocketAddr;

use anyhow::Context;
use reveille_client::api::TenantRequest;
use reveille_client::{Client, Options, Quota, Quotas};
use runtime::Runtime;

use crate::message::Head;
use crate::server::Server;

pub(crate) struct Tenant {
    /// As its admin.
    pub(crate) client: Client,
    host: SocketAddr,
    key: String,
}

impl Tenant {
    /// A tenant that may call this machine, under a name that begins with `name`. What `quotas` does not name is as the server
    /// is set up; what it names has that for its ceiling, too.
    ///
    /// # Errors
    /// If the server is not of the trial's making, or refuses.
    pub(crate) async fn make(runtime: &Runtime, server: &Server, name: &str, quotas: Quotas) -> anyhow::Result<Self> {
        let url = format!("http://{}", server.address);
        let operator = Client::new(&url, &server.operator_key()?, Options::default())?;
        let ceilings = quotas.clone();
        let mut request =
            TenantRequest { quotas, ceilings, ..TenantRequest::new(format!("{name}-{:016x}", runtime.random())) };
        request.egress.allow = vec!["loopback".to_owned()];
        let made = operator.create_tenant(&request).await.context("the server makes no tenant")?;
        let key = made.key.secret.0;
        Ok(Tenant { client: Client::new(&url, &key, Options::default())?, host: server.address, key })
    }

    /// What goes into every request for it.
    pub(crate) fn head(&self, content_type: &'static str) -> Head {
        Head { host: self.host, key: self.key.clone(), content_type }
    }
}

/// As much as the service takes from anybody, but for so many callbacks a minute.
pub(crate) fn unlimited_but(callbacks_per_minute: Option<u32>) -> Quotas {
    let number = |quota| if quota == Quota::CallbacksPerMinute { callbacks_per_minute } else { None };
    Quota::ALL.into_iter().map(|quota| (quota, number(quota))).collect()
}
