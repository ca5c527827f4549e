//! `jaco get routes` and `jaco get route`.

use std::time::Duration;

use jaco_proto::v1::{self, deploy_client::DeployClient};
use serde::Serialize;

use crate::client::{
    connection::Client,
    failure::Stop,
    output::{
        Ui, View,
        table::{self, col},
    },
    replica::{self, RouteRow},
    status,
};

const DEADLINE: Duration = Duration::from_secs(30);

#[derive(Serialize)]
#[serde(transparent)]
struct ListView(Vec<RouteRow>);

#[derive(Serialize)]
struct DomainView {
    domain: String,
    routes: Vec<Realized>,
}

#[derive(Serialize)]
struct Realized {
    path: String,
    catch_all: bool,
    deployment: String,
    service: String,
    port: i32,
    tls: &'static str,
    strip_path: bool,
    ready_replicas: i32,
    total_replicas: i32,
}

impl ListView {
    fn new(routes: Vec<v1::Route>, domain: Option<&str>) -> Self {
        let wanted = |route: &v1::Route| domain.is_none_or(|domain| route.domain == domain);
        let mut rows: Vec<RouteRow> = routes
            .into_iter()
            .filter(wanted)
            .map(RouteRow::from)
            .collect();
        rows.sort();
        Self(rows)
    }
}

impl From<v1::GetRouteResponse> for DomainView {
    fn from(response: v1::GetRouteResponse) -> Self {
        Self {
            domain: response.domain,
            routes: response.routes.into_iter().map(Realized::from).collect(),
        }
    }
}

impl From<v1::RealizedRoute> for Realized {
    fn from(route: v1::RealizedRoute) -> Self {
        Self {
            path: route.path,
            catch_all: route.catch_all,
            deployment: route.deployment,
            service: route.service,
            port: route.port,
            tls: replica::tls(route.tls_auto),
            strip_path: route.strip_path,
            ready_replicas: route.ready_replicas,
            total_replicas: route.total_replicas,
        }
    }
}

/// The path as displayed; the catch-all is shown as `/`.
fn shown(path: &str) -> String {
    if path.is_empty() {
        "/".to_owned()
    } else {
        path.to_owned()
    }
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = [
            "DOMAIN",
            "PATH",
            "DEPLOYMENT",
            "SERVICE",
            "PORT",
            "TLS",
            "STRIP_PATH",
        ]
        .map(col);
        let rows = self.0.iter().map(|route| {
            vec![
                route.domain.clone(),
                shown(&route.path),
                route.deployment.clone(),
                route.service.clone(),
                route.port.to_string(),
                route.tls.to_owned(),
                route.strip_path.to_string(),
            ]
        });
        format!("Routes:\n{}", table::render(&columns, rows))
    }
}

impl View for DomainView {
    fn text(&self) -> String {
        let columns = [
            "PATH", "SERVICE", "PORT", "TLS", "STRIP", "FALLBACK", "READY",
        ]
        .map(col);
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let rows = self.routes.iter().map(|route| {
            vec![
                shown(&route.path),
                route.service.clone(),
                route.port.to_string(),
                route.tls.to_owned(),
                yes(route.strip_path),
                yes(route.catch_all),
                format!("{}/{}", route.ready_replicas, route.total_replicas),
            ]
        });
        format!(
            "Routes for {}:\n{}",
            self.domain,
            table::render(&columns, rows)
        )
    }
}

/// Prints all routes, or those of one domain.
pub(super) async fn all(
    domain: Option<&str>,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let response = status::fetch(client, "", "").await?;
    ui.data(&ListView::new(response.routes, domain))
}

/// Prints the routes of one domain in matching order.
pub(super) async fn one(domain: &str, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::GetRouteRequest {
            domain: domain.to_owned(),
        };
        DeployClient::new(connection).get_route(request).await
    };
    let response = client.unary(DEADLINE, call).await?;
    ui.data(&DomainView::from(response))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::output::json;

    fn route(domain: &str, path: &str) -> v1::Route {
        v1::Route {
            domain: domain.to_owned(),
            path: path.to_owned(),
            deployment: "app".to_owned(),
            service: "web".to_owned(),
            port: 80,
            ..Default::default()
        }
    }

    #[test]
    fn routes_are_listed_by_domain_and_path() {
        let routes = vec![route("b.io", ""), route("a.io", "/x"), route("a.io", "")];
        assert_eq!(
            ListView::new(routes.clone(), None).text(),
            "\
Routes:
DOMAIN  PATH  DEPLOYMENT  SERVICE  PORT  TLS  STRIP_PATH
a.io    /     app         web      80    off  false
a.io    /x    app         web      80    off  false
b.io    /     app         web      80    off  false
"
        );
        let only = ListView::new(routes, Some("b.io"));
        assert_eq!(
            json(&only).unwrap(),
            r#"[
  {
    "domain": "b.io",
    "path": "",
    "deployment": "app",
    "service": "web",
    "port": 80,
    "tls": "off",
    "strip_path": false
  }
]
"#
        );
    }

    #[test]
    fn routes_of_a_domain_keep_the_servers_order() {
        let realized = |path: &str, ready| v1::RealizedRoute {
            path: path.to_owned(),
            catch_all: path.is_empty(),
            service: "web".to_owned(),
            port: 80,
            tls_auto: true,
            strip_path: !path.is_empty(),
            ready_replicas: ready,
            total_replicas: 2,
            ..Default::default()
        };
        let view = DomainView::from(v1::GetRouteResponse {
            domain: "a.io".to_owned(),
            routes: vec![realized("/api", 1), realized("", 2)],
        });
        assert_eq!(
            view.text(),
            "\
Routes for a.io:
PATH  SERVICE  PORT  TLS   STRIP  FALLBACK  READY
/api  web      80    auto  yes    no        1/2
/     web      80    auto  no     yes       2/2
"
        );
        assert!(json(&view).unwrap().contains("\"catch_all\": true,\n"));
    }
}
