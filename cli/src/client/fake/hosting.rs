//! The `Config` and `Secrets` services of the fake daemon.

use jaco_net::secrets::SecretsKey;
use jaco_proto::{Error, ErrorCode, v1};
use prost_types::Timestamp;
use tonic::{Request, Response, Status};

use super::Service;

impl Service {
    fn entry(&self, key: &str) -> Result<v1::ConfigEntry, Status> {
        let inner = self.inner();
        let mut entries = inner.script.config.iter();
        let found = entries.find(|entry| entry.key == key).cloned();
        found.ok_or_else(|| {
            Error::new(
                ErrorCode::ConfigKeyUnknown,
                format!("there is no setting {key:?}"),
            )
            .with("key", key)
            .into()
        })
    }
}

#[tonic::async_trait]
impl v1::config_server::Config for Service {
    async fn get(
        &self,
        request: Request<v1::ConfigKey>,
    ) -> Result<Response<v1::ConfigEntry>, Status> {
        self.admit(&request)?;
        Ok(Response::new(self.entry(&request.get_ref().key)?))
    }

    async fn set(
        &self,
        request: Request<v1::ConfigSetRequest>,
    ) -> Result<Response<v1::ConfigEntry>, Status> {
        self.admit(&request)?;
        let request = request.into_inner();
        let known = self.entry(&request.key)?;
        let set = v1::ConfigEntry {
            value: request.value,
            is_set: true,
            updated_at: Some(Timestamp {
                seconds: 1_795_174_813,
                nanos: 0,
            }),
            updated_by: "local".to_owned(),
            ..known.clone()
        };
        let unset = v1::ConfigEntry {
            value: known.default_value.clone(),
            is_set: false,
            updated_at: None,
            updated_by: String::new(),
            ..known
        };
        Ok(Response::new(if request.unset { unset } else { set }))
    }

    async fn list(
        &self,
        request: Request<v1::ConfigListRequest>,
    ) -> Result<Response<v1::ConfigListResponse>, Status> {
        self.admit(&request)?;
        let entries = self.inner().script.config.clone();
        Ok(Response::new(v1::ConfigListResponse { entries }))
    }
}

#[tonic::async_trait]
impl v1::secrets_server::Secrets for Service {
    async fn set(
        &self,
        request: Request<v1::SecretSetRequest>,
    ) -> Result<Response<v1::SecretInfo>, Status> {
        self.admit(&request)?;
        let request = request.into_inner();
        let info = v1::SecretInfo {
            deployment: request.deployment.clone(),
            name: request.name.clone(),
            version: 1,
            services: vec!["web".to_owned()],
            ..Default::default()
        };
        self.inner().recorded.secrets.push(request);
        Ok(Response::new(info))
    }

    async fn list(
        &self,
        request: Request<v1::SecretListRequest>,
    ) -> Result<Response<v1::SecretListResponse>, Status> {
        self.admit(&request)?;
        let filter = request.into_inner().deployment_filter;
        let mut secrets = self.inner().script.secrets.clone();
        secrets.retain(|secret| filter.is_empty() || secret.deployment == filter);
        Ok(Response::new(v1::SecretListResponse { secrets }))
    }

    async fn remove(
        &self,
        request: Request<v1::SecretRemoveRequest>,
    ) -> Result<Response<v1::SecretRemoveResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::SecretRemoveResponse {}))
    }

    async fn export_key(
        &self,
        request: Request<v1::ExportKeyRequest>,
    ) -> Result<Response<v1::SecretsKey>, Status> {
        self.admit(&request)?;
        let key = SecretsKey::new([1; 32]);
        Ok(Response::new(v1::SecretsKey {
            id: key.id(),
            key: key.expose().to_vec(),
        }))
    }

    async fn import_key(
        &self,
        request: Request<v1::ImportKeyRequest>,
    ) -> Result<Response<v1::SecretsKeyId>, Status> {
        self.admit(&request)?;
        let key = SecretsKey::from_slice(&request.into_inner().key).unwrap();
        Ok(Response::new(v1::SecretsKeyId { id: key.id() }))
    }

    async fn rotate_key(
        &self,
        request: Request<v1::RotateKeyRequest>,
    ) -> Result<Response<v1::SecretsKeyId>, Status> {
        self.admit(&request)?;
        let id = SecretsKey::new([2; 32]).id();
        Ok(Response::new(v1::SecretsKeyId { id }))
    }
}
