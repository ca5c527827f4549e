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
/// Below limits, which nodes count each by itself.
const PER_NODE: &str = "\
Limits hold for each client at each node: behind a balancer over N nodes, up to N times as much \
passes.
";

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
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<Limits>,
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<Affinity>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    upstream_h2c: bool,
    upstreams: Vec<Upstream>,
}

/// A replica that receives the route's traffic.
#[derive(Serialize)]
struct Upstream {
    replica: String,
    host: String,
    address: String,
}

/// Limits of each client at each node.
#[derive(Serialize)]
struct Limits {
    rps: f64,
    burst: u32,
    connections: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    exempt: Vec<String>,
}

#[derive(Serialize)]
struct Affinity {
    cookie: String,
    ttl_seconds: u64,
    same_site: String,
}

impl Limits {
    fn text(&self) -> String {
        let (rps, burst, connections) = (self.rps, self.burst, self.connections);
        format!("{rps}/s, burst {burst}, {connections} at once")
    }
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
            limits: route.limits.map(Limits::from),
            affinity: route.affinity.map(Affinity::from),
            upstream_h2c: route.upstream_h2c,
            upstreams: route.upstreams.into_iter().map(Upstream::from).collect(),
        }
    }
}

impl From<v1::RouteUpstream> for Upstream {
    fn from(upstream: v1::RouteUpstream) -> Self {
        Self {
            replica: upstream.replica_id,
            host: upstream.host,
            address: upstream.address,
        }
    }
}

impl From<v1::RouteLimits> for Limits {
    fn from(limits: v1::RouteLimits) -> Self {
        Self {
            rps: limits.rps,
            burst: limits.burst,
            connections: limits.connections,
            exempt: limits.exempt,
        }
    }
}

impl From<v1::RouteAffinity> for Affinity {
    fn from(affinity: v1::RouteAffinity) -> Self {
        Self {
            cookie: affinity.cookie,
            ttl_seconds: affinity.ttl_s,
            same_site: affinity.same_site,
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
        let limited = self.routes.iter().any(|route| route.limits.is_some());
        let sticky = self.routes.iter().any(|route| route.affinity.is_some());
        let mut columns = vec![
            "PATH", "SERVICE", "PORT", "TLS", "STRIP", "FALLBACK", "READY",
        ];
        let http2 = self.routes.iter().any(|route| route.upstream_h2c);
        columns.extend(http2.then_some("PROTOCOL"));
        columns.extend(limited.then_some("LIMITS"));
        columns.extend(sticky.then_some("AFFINITY"));
        let columns: Vec<_> = columns.into_iter().map(col).collect();
        let none = || "-".to_owned();
        let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
        let rows = self.routes.iter().map(|route| {
            let mut row = vec![
                shown(&route.path),
                route.service.clone(),
                route.port.to_string(),
                route.tls.to_owned(),
                yes(route.strip_path),
                yes(route.catch_all),
                format!("{}/{}", route.ready_replicas, route.total_replicas),
            ];
            let protocol = if route.upstream_h2c {
                "h2c"
            } else {
                "http/1.1"
            };
            row.extend(http2.then(|| protocol.to_owned()));
            let limits = route.limits.as_ref();
            row.extend(limited.then(|| limits.map_or_else(none, Limits::text)));
            let cookie = route
                .affinity
                .as_ref()
                .map(|it| format!("cookie {}", it.cookie));
            row.extend(sticky.then(|| cookie.unwrap_or_else(none)));
            row
        });
        let note = if limited { PER_NODE } else { "" };
        format!(
            "Routes for {}:\n{}{note}{}",
            self.domain,
            table::render(&columns, rows),
            self.upstreams()
        )
    }
}

impl DomainView {
    /// Table of the replicas that receive traffic; empty if none does.
    fn upstreams(&self) -> String {
        let columns = ["PATH", "REPLICA", "HOST", "ADDRESS"].map(col);
        let rows = self.routes.iter().flat_map(|route| {
            let path = shown(&route.path);
            route.upstreams.iter().map(move |upstream| {
                vec![
                    path.clone(),
                    upstream.replica.clone(),
                    upstream.host.clone(),
                    upstream.address.clone(),
                ]
            })
        });
        let rows: Vec<_> = rows.collect();
        if rows.is_empty() {
            return String::new();
        }
        format!("Upstreams:\n{}", table::render(&columns, rows))
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
