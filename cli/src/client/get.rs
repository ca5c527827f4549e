//! `jaco get`: deployments, replicas and routes in detail.

mod deployment;
pub(super) mod replicas;
mod routes;

use super::{connection::Client, failure::Stop, output::Ui};

/// Subcommands of `get`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// List all deployments by name
    Deployments,
    /// Show one deployment with its services and manifests
    Deployment {
        /// Name of the deployment
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// List replicas
    Replicas {
        /// Show only replicas of this deployment
        #[arg(long, value_name = "NAME")]
        deployment: Option<String>,
        /// Show only replicas of this service
        #[arg(long, value_name = "NAME")]
        service: Option<String>,
    },
    /// Show one replica
    Replica {
        /// Id of the replica
        #[arg(value_name = "ID")]
        id: String,
    },
    /// List HTTP routes by domain and path
    Routes {
        /// Show only routes of this domain
        #[arg(long, value_name = "NAME")]
        domain: Option<String>,
    },
    /// Show the routes of one domain in the order they are matched
    Route {
        /// Domain of the routes
        #[arg(value_name = "DOMAIN")]
        domain: String,
    },
}

/// Runs a subcommand.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::Deployments => deployment::all(client, ui).await,
        Command::Deployment { name } => deployment::one(name, client, ui).await,
        Command::Replicas {
            deployment,
            service,
        } => {
            let (deployment, service) = (deployment.as_deref(), service.as_deref());
            let (deployment, service) =
                (deployment.unwrap_or_default(), service.unwrap_or_default());
            replicas::all(deployment, service, client, ui).await
        }
        Command::Replica { id } => replicas::one(id, client, ui).await,
        Command::Routes { domain } => routes::all(domain.as_deref(), client, ui).await,
        Command::Route { domain } => routes::one(domain, client, ui).await,
    }
}
