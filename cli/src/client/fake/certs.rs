//! The `Certs` service of the fake daemon.

use jaco_proto::v1;
use tonic::{Request, Response, Status};

use super::Service;

#[tonic::async_trait]
impl v1::certs_server::Certs for Service {
    async fn check_domain(
        &self,
        request: Request<v1::CheckDomainRequest>,
    ) -> Result<Response<v1::CheckDomainResponse>, Status> {
        self.admit(&request)?;
        let checks = &mut self.inner().script.checks;
        let answer = checks.first().cloned().unwrap_or_default();
        if checks.len() > 1 {
            checks.remove(0);
        }
        Ok(Response::new(answer))
    }

    async fn import(
        &self,
        request: Request<v1::CertImportRequest>,
    ) -> Result<Response<v1::CertInfo>, Status> {
        self.admit(&request)?;
        let stored = self.inner().script.certs.first().cloned();
        Ok(Response::new(v1::CertInfo {
            name: request.into_inner().name,
            ..stored.unwrap_or_default()
        }))
    }

    async fn list(
        &self,
        request: Request<v1::CertListRequest>,
    ) -> Result<Response<v1::CertListResponse>, Status> {
        self.admit(&request)?;
        let certs = self.inner().script.certs.clone();
        Ok(Response::new(v1::CertListResponse { certs }))
    }

    async fn remove(
        &self,
        request: Request<v1::CertRemoveRequest>,
    ) -> Result<Response<v1::CertRemoveResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(v1::CertRemoveResponse {}))
    }
}
