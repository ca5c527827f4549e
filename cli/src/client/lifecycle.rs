//! `jaco rollback` and `jaco delete`.

use std::time::Duration;

use jaco_proto::v1::{self, deploy_client::DeployClient};
use serde::Serialize;

use super::{
    connection::Client,
    failure::Stop,
    output::{Ui, View},
};

const DEADLINE: Duration = Duration::from_secs(30);

/// Arguments of `rollback` and `delete`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Name of the deployment
    #[arg(value_name = "DEPLOYMENT")]
    deployment: String,
}

#[derive(Serialize)]
struct RolledBackView<'a> {
    deployment: &'a str,
    revision: u64,
}

impl View for RolledBackView<'_> {
    fn text(&self) -> String {
        format!("Rolled back to revision: {}\n", self.revision)
    }
}

#[derive(Serialize)]
struct DeletedView<'a> {
    deployment: &'a str,
    deleted: bool,
}

impl View for DeletedView<'_> {
    fn text(&self) -> String {
        format!("Deleted deployment: {}\n", self.deployment)
    }
}

/// Rolls a deployment back to its previous revision.
pub(crate) async fn rollback(args: &Args, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::RollbackRequest {
            deployment: args.deployment.clone(),
        };
        DeployClient::new(connection).rollback(request).await
    };
    let v1::RollbackResponse { revision } = client.unary(DEADLINE, call).await?;
    ui.outcome(&RolledBackView {
        deployment: &args.deployment,
        revision,
    })
}

/// Deletes a deployment.
pub(crate) async fn delete(args: &Args, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::DeleteRequest {
            deployment: args.deployment.clone(),
        };
        DeployClient::new(connection).delete(request).await
    };
    let v1::DeleteResponse {} = client.unary(DEADLINE, call).await?;
    ui.outcome(&DeletedView {
        deployment: &args.deployment,
        deleted: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::output::{json, yaml};

    #[test]
    fn outcome_is_one_line_or_one_object() {
        let back = RolledBackView {
            deployment: "app",
            revision: 2,
        };
        assert_eq!(back.text(), "Rolled back to revision: 2\n");
        assert_eq!(
            json(&back).unwrap(),
            "{\n  \"deployment\": \"app\",\n  \"revision\": 2\n}\n"
        );
        let gone = DeletedView {
            deployment: "app",
            deleted: true,
        };
        assert_eq!(gone.text(), "Deleted deployment: app\n");
        assert_eq!(
            yaml::to_string(&gone).unwrap(),
            "deployment: app\ndeleted: true\n"
        );
    }
}
