//! `jaco node issue-join-token` and `jaco node join`.

use std::{net::SocketAddr, time::Duration};

use jaco_proto::{
    config::is_hostname,
    secret::SecretString,
    v1::{self, cluster_client::ClusterClient},
};
use serde::Serialize;

use crate::client::{
    connection::Client,
    failure::{Failure, Local, Stop},
    output::{Ui, View},
    systemd::{self, Systemd},
    transport::{self, Machine, Source},
};

const ISSUE_DEADLINE: Duration = Duration::from_secs(10);
const JOIN_DEADLINE: Duration = Duration::from_secs(60);
/// Lifetime of a join token.
const EXPIRES_IN_SECONDS: u64 = 86_400;
/// Placeholder for an unknown address.
const ADDRESS_PLACEHOLDER: &str = "<this-node-host:port>";

/// Arguments of `node issue-join-token`.
#[derive(clap::Args)]
pub(crate) struct IssueArgs {
    /// Also print the CA certificate of the cluster
    #[arg(long)]
    show_ca: bool,
}

/// Arguments of `node join`.
#[derive(clap::Args)]
pub(crate) struct JoinArgs {
    /// API address of any member of the cluster
    #[arg(long, value_name = "HOST:PORT")]
    peer: String,
    /// Do not make the daemon start at boot
    #[arg(long)]
    no_systemd_enable: bool,
}

#[derive(Serialize)]
struct IssuedView {
    token: String,
    peer: String,
    expires_in_seconds: u64,
    join_command: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ca_cert: Option<String>,
}

impl View for IssuedView {
    fn text(&self) -> String {
        let Self { join_command, .. } = self;
        let ca = self.ca_cert.as_deref().unwrap_or_default();
        format!("{join_command}\nThe token is single-use and expires in 24h.\n{ca}")
    }
}

/// Issues a join token and prints it.
pub(super) async fn issue(args: &IssueArgs, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        ClusterClient::new(connection)
            .issue_join_token(v1::IssueJoinTokenRequest {})
            .await
    };
    let v1::IssueJoinTokenResponse {
        token,
        ca_cert,
        leader_addrs,
    } = client.unary(ISSUE_DEADLINE, call).await?;
    let peer = match client.server() {
        Some(server) => Some(server),
        None => api_address(leader_addrs, &members(client).await),
    };
    let peer = peer.unwrap_or_else(|| ADDRESS_PLACEHOLDER.to_owned());
    // The secret cannot be fetched again, so it is printed even with `--quiet`.
    ui.data(&IssuedView {
        join_command: format!("sudo jaco node join --peer={peer} --token={token}"),
        token,
        peer,
        expires_in_seconds: EXPIRES_IN_SECONDS,
        ca_cert: args
            .show_ca
            .then(|| String::from_utf8_lossy(&ca_cert).into_owned()),
    })
}

/// The members, or none: the token is already issued, so a failure must not hide it.
async fn members(client: &Client) -> Vec<v1::Node> {
    let call = async |connection| {
        ClusterClient::new(connection)
            .node_list(v1::NodeListRequest {})
            .await
    };
    let listed = client.unary(ISSUE_DEADLINE, call).await;
    listed.map_or_else(|_| Vec::new(), |response| response.nodes)
}

/// API address to join through: the first usable one of `leader_addrs`, which are API addresses,
/// or raft addresses from upstream's daemon. A member's raft address stands for its API address; of
/// a leader without a known one, any member's API address is as good.
fn api_address(leader_addrs: Vec<String>, nodes: &[v1::Node]) -> Option<String> {
    let of_member = |address: String| {
        let member = nodes.iter().find(|node| node.address == address);
        member.map_or(address, |node| node.grpc_address.clone())
    };
    let leaders: Vec<String> = leader_addrs.into_iter().map(of_member).collect();
    let others = nodes.iter().map(|node| node.grpc_address.clone());
    first_well_formed(leaders.into_iter().chain(others))
}

/// The first well-formed address whose host is an IP address or a hostname. Members choose their
/// own addresses, and the printed command is pasted into a shell, so anything else is skipped.
fn first_well_formed(addresses: impl IntoIterator<Item = String>) -> Option<String> {
    let plain = |address: &String| {
        if address.parse::<SocketAddr>().is_ok() {
            return true;
        }
        let parts = address.rsplit_once(':');
        parts.is_some_and(|(host, port)| is_hostname(host) && port.parse::<u16>().is_ok())
    };
    addresses.into_iter().find(plain)
}

/// The join token from the flags or the environment; the daemon checks its content.
///
/// # Errors
/// `usage_error` if there is none, `file_error` if its file cannot be read.
pub(crate) fn join_token(
    flags: &Source,
    env: Option<String>,
    machine: &impl Machine,
) -> Result<SecretString, Failure> {
    if let Some(path) = &flags.token_file {
        return transport::token_in(path, machine);
    }
    let token = flags.token.clone().or(env.map(SecretString::new));
    token
        .filter(|token| !token.expose().trim().is_empty())
        .ok_or_else(|| {
            Failure::new(
                Local::UsageError,
                "a join needs a join token: --token or JACO_JOIN_TOKEN, or --token-file; a member \
                 makes one with `jaco node issue-join-token`",
            )
        })
}

#[derive(Serialize)]
struct JoinedView<'a> {
    joined: bool,
    peer: &'a str,
    systemd: Systemd,
}

impl View for JoinedView<'_> {
    fn text(&self) -> String {
        "Joined cluster.\n".to_owned()
    }
}

/// Joins the daemon to the cluster of the peer.
pub(crate) async fn join(
    args: &JoinArgs,
    token: &SecretString,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::ClusterJoinRequest {
            peer_addr: args.peer.clone(),
            join_token: token.expose().trim().to_owned(),
        };
        ClusterClient::new(connection).join(request).await
    };
    let v1::ClusterJoinResponse {} = client.unary(JOIN_DEADLINE, call).await?;
    let (systemd, remark) = systemd::enable_at_boot(!args.no_systemd_enable, client);
    ui.outcome(&JoinedView {
        joined: true,
        peer: &args.peer,
        systemd,
    })?;
    systemd::report(systemd, remark, ui)
}

#[cfg(test)]
mod tests {
    use std::{io, path::Path};

    use super::*;
    use crate::client::transport::contexts::Contexts;

    struct Files;

    impl Machine for Files {
        fn exists(&self, _: &Path) -> bool {
            true
        }

        fn read(&self, path: &Path) -> io::Result<String> {
            match path.to_str() {
                Some("token") => Ok("in-file\n".to_owned()),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        }

        fn contexts(&self) -> Result<Option<Contexts>, Failure> {
            Ok(None)
        }
    }

    #[test]
    fn only_well_formed_addresses_reach_the_join_command() {
        for (addresses, expected) in [
            (&["10.0.0.1:7000"][..], Some("10.0.0.1:7000")),
            (&["[fd00::1]:7000"], Some("[fd00::1]:7000")),
            (&["node-1.example:7000"], Some("node-1.example:7000")),
            (&["x:1;reboot", "10.0.0.1:7000"], Some("10.0.0.1:7000")),
            (&["$(reboot):7000"], None),
            (&["a b:7000"], None),
            (&["n1:7000 --token=x"], None),
            (&["n1:7000\nreboot"], None),
            (&["n1"], None),
            (&["n1:99999"], None),
            (&["`x`:1", ""], None),
            (&[], None),
        ] {
            let found = first_well_formed(addresses.iter().map(|&text| text.to_owned()));
            assert_eq!(found.as_deref(), expected, "{addresses:?}");
        }
    }

    #[test]
    fn join_command_names_an_api_address() {
        let node = |address: &str, grpc_address: &str| v1::Node {
            address: address.to_owned(),
            grpc_address: grpc_address.to_owned(),
            ..Default::default()
        };
        let both = [
            node("10.0.0.1:7001", "10.0.0.1:7000"),
            node("10.0.0.2:7001", "10.0.0.2:7000"),
        ];
        let without_api = [node("10.0.0.1:7001", ""), both[1].clone()];
        let same = [node("10.0.0.1:7000", "10.0.0.1:7000")];
        for (leaders, nodes, expected) in [
            // API addresses, as of this daemon.
            (&["10.0.0.2:7000"][..], &both[..], Some("10.0.0.2:7000")),
            (&["10.0.0.2:7000"], &[], Some("10.0.0.2:7000")),
            (&["10.0.0.1:7000"], &same, Some("10.0.0.1:7000")),
            // Raft addresses, as of upstream's.
            (&["10.0.0.2:7001"], &both, Some("10.0.0.2:7000")),
            (&["10.0.0.1:7001"], &without_api, Some("10.0.0.2:7000")),
            (&["10.0.0.1:7001"], &without_api[..1], None),
            (&[], &both, Some("10.0.0.1:7000")),
            (&[], &[], None),
        ] {
            let leaders_owned = leaders.iter().map(|&text| text.to_owned()).collect();
            let found = api_address(leaders_owned, nodes);
            assert_eq!(found.as_deref(), expected, "{leaders:?}");
        }
    }

    #[test]
    fn token_comes_from_flag_file_or_environment() {
        let flag = |token: Option<&str>, file: Option<&str>| Source {
            token: token.map(|token| SecretString::new(token.to_owned())),
            token_file: file.map(Into::into),
            ..Source::default()
        };
        let given = |flags: Source, env: Option<&str>| {
            let token = join_token(&flags, env.map(str::to_owned), &Files);
            token.map(|token| token.expose().to_owned())
        };
        assert_eq!(given(flag(Some("f"), None), Some("e")).unwrap(), "f");
        assert_eq!(given(flag(None, None), Some("e")).unwrap(), "e");
        assert_eq!(
            given(flag(None, Some("token")), Some("e")).unwrap(),
            "in-file"
        );
        assert!(given(flag(None, Some("gone")), Some("e")).is_err());
        for env in [None, Some(""), Some(" ")] {
            let refused = given(flag(None, None), env).unwrap_err();
            assert!(refused.message.contains("--token or JACO_JOIN_TOKEN"));
        }
    }
}
