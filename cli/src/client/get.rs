//! `jaco get`: one kind of thing in detail.

mod deployment;
pub(super) mod replicas;
mod routes;

use super::{connection::Client, failure::Stop, output::Ui};

/// What to show.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// All deployments by name
    Deployments,
    /// One deployment with its services and manifests
    Deployment {
        /// Its name
        #[arg(value_name = "NAME")]
        name: String,
    },
    /// Replicas
    Replicas {
        /// Only those of this deployment
        #[arg(long, value_name = "NAME")]
        deployment: Option<String>,
        /// Only those of this service
        #[arg(long, value_name = "NAME")]
        service: Option<String>,
    },
    /// One replica
    Replica {
        /// Its id
        #[arg(value_name = "ID")]
        id: String,
    },
    /// HTTP routes by domain and path
    Routes {
        /// Only those of this domain
        #[arg(long, value_name = "NAME")]
        domain: Option<String>,
    },
    /// The routes of one domain in the order they are tried
    Route {
        /// The domain
        #[arg(value_name = "DOMAIN")]
        domain: String,
    },
}

/// Shows it.
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
