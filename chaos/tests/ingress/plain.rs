//! Plain requests to web servers in containers.

use std::net::{Ipv4Addr, SocketAddr};

use jaco_chaos::{Lab, engine::IMAGE, lab::netns, until};
use jaco_proto::v1;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fixture::{LIMIT, NODES};

/// Domain of the web servers.
pub(crate) const WEB: &str = "web.example.org";

/// A response, read to the end of its connection.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(':'));
        let field = fields.find(|(field, _)| field.eq_ignore_ascii_case(name));
        field.map(|(_, value)| value.trim())
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.strip_prefix("HTTP/1.1 ")?.get(..3)?.parse().ok()?;
        Some(Self {
            status,
            head: head.to_owned(),
            body: body.trim().to_owned(),
        })
    }
}

/// Asks a node for a path of [`WEB`]; `fields` are lines.
pub(crate) async fn get(
    from: &str,
    node: Ipv4Addr,
    path: &str,
    fields: &str,
) -> Result<Answer, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let at = SocketAddr::from((node, 80));
    let mut stream = netns::connect(from, at)
        .await
        .map_err(|error| text(&error))?;
    let request =
        format!("GET {path} HTTP/1.1\r\nHost: {WEB}\r\nConnection: close\r\n{fields}\r\n");
    let sent = stream.write_all(request.as_bytes()).await;
    sent.map_err(|error| text(&error))?;
    let mut answer = Vec::new();
    let read = stream.read_to_end(&mut answer).await;
    read.map_err(|error| text(&error))?;
    Answer::parse(&answer).ok_or_else(|| format!("{:?}", String::from_utf8_lossy(&answer)))
}

/// Replicas of a web server that answers with the name of its container. `route` are settings of its
/// route.
pub(crate) fn web(deployment: &str, route: &str, replicas: usize) -> v1::ApplyRequest {
    let jaco = format!(
        "deployment: {deployment}\nacme: \"off\"\nservices: [{{name: web, replicas: {replicas}}}]\n\
         routes: [{{domain: {WEB}, service: web, port: 8080, tls: \"off\", {route}}}]\n"
    );
    let script = "/bin/busybox mkdir /www; /bin/busybox hostname > /www/index.html; \
                  exec /bin/busybox httpd -f -p 8080 -h /www";
    let compose = format!(
        "services:\n  web:\n    image: {IMAGE}\n    pull_policy: never\n    stop_signal: SIGKILL\n    \
         command: [/bin/sh, -c, '{script}']\n"
    );
    v1::ApplyRequest {
        jaco_yaml: jaco.into_bytes(),
        compose_yaml: compose.into_bytes(),
        ..Default::default()
    }
}

/// Three nodes that reach each other's containers.
pub(crate) async fn cluster(config: &str) -> Lab {
    let builder = Lab::builder().nodes(NODES).engines(true).config(config);
    let mut lab = builder.start().await.unwrap();
    lab.join_all().await.unwrap();
    until("all nodes are ready", LIMIT, || async {
        let status = lab.node(1).api().status().await;
        let status = status.map_err(|error| error.to_string())?;
        let ready = |node: &&v1::Node| node.status() == v1::NodeStatus::Ready;
        let count = status.nodes.iter().filter(ready).count();
        (count == usize::from(NODES))
            .then_some(())
            .ok_or_else(|| format!("{:?}", status.nodes))
    })
    .await
    .unwrap();
    lab
}

/// Applies on the leader, which has then applied it itself.
pub(crate) async fn apply(lab: &Lab, request: v1::ApplyRequest) {
    let leader = lab.leader().await.unwrap();
    let mut deploy = lab.node(leader).api().deploy();
    deploy.apply(request).await.unwrap();
}
