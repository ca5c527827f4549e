//! Outsiders, stolen credentials and a compromised member: they are refused and logged without
//! secrets, and clients and leader are not affected.
//!
//! In full, after `cargo build --release -p jaco-cli -p jaco-chaos --bins`:
//! `JACO_HALF_OPEN=10000 JACO_NOISE=100000 cargo test --release -p jaco-chaos --test cluster
//! hostile`. `JACO_HALF_OPEN` is how many connections are opened and never finished,
//! `JACO_NOISE` how many datagrams of noise are sent.

use std::{net::IpAddr, time::Duration};

use jaco_chaos::{
    Api, Lab, Rng, SecretScanner,
    lab::{netns, network},
    size, test_permits, until,
    wait::WAIT_TIMEOUT,
};
use jaco_net::{
    pki::{ClusterCa, files::NodeFiles},
    quic::{Closed, ConnectError, Connection, Kind, Settings},
};
use jaco_proto::{
    secret::SecretString,
    v1::{self, AuditEventType, cluster_client::ClusterClient, internal_client::InternalClient},
};
use tonic::{Request, metadata::AsciiMetadataValue};

use attacker::{
    BackgroundClients, backup, channel, channel_under, check_no_leaks, code, endpoint, files_of,
    forged, join_request, join_token, mark_key, mark_token, noise, peer_address,
};

pub(crate) mod attacker;
mod flood;

/// Far more than any step here takes.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

const HUB: IpAddr = IpAddr::V4(network::HUB);

/// A cluster of three nodes, an outsider `n4`, and `more` further machines.
async fn cluster(more: u8, clocks: bool, seed: u64) -> Lab {
    let mut lab = Lab::builder()
        .nodes(3 + more)
        .clocks(clocks)
        .seed(seed)
        .start()
        .await
        .unwrap();
    lab.init().await.unwrap();
    for index in 2..=3 {
        lab.join(index, 1).await.unwrap();
    }
    lab.wait_voters(3).await.unwrap();
    lab
}

async fn dial(
    lab: &Lab,
    from: IpAddr,
    files: &NodeFiles,
    target: u8,
) -> Result<Connection, ConnectError> {
    let hub = lab.network().namespace().to_owned();
    let endpoint = endpoint(lab, (&hub, from), files, target, Settings::default());
    let host = lab.node(target).host().to_owned();
    endpoint.dial(&host, peer_address(lab, target)).await
}

/// Reason for which a member rejects a certificate.
#[derive(Clone, Copy, Debug)]
enum Refusal {
    /// The certificate is signed by another authority.
    Forged,
    /// The certificate belongs to no member.
    Unknown,
}

impl Refusal {
    /// Whether `error` is what the rejected side gets for this reason.
    fn matches(self, error: &ConnectError) -> bool {
        match self {
            // A signature that does not verify is "decrypt_error" to TLS.
            Self::Forged => matches!(
                error,
                ConnectError::Handshake(Closed::Other(why)) if why.contains("error 51")
            ),
            Self::Unknown => error.is_not_member(),
        }
    }

    /// The cause in the member's log.
    fn logged(self) -> &'static str {
        match self {
            Self::Forged => "BadSignature",
            Self::Unknown => "ApplicationVerificationFailure",
        }
    }
}

/// Checks that every member rejects `files` for this reason, reports it to the client and logs it.
/// `from` must be unused before: repeated log lines of one address are suppressed.
async fn refused(lab: &Lab, what: &str, files: &NodeFiles, from: IpAddr, why: Refusal) {
    for target in 1..=3 {
        let error = dial(lab, from, files, target).await.unwrap_err();
        println!("{what}: n{target} answers: {error}");
        assert!(
            why.matches(&error),
            "{what} at n{target}: {error:?} is not {why:?}"
        );
        let address = from.to_string();
        let line = wait_for_log(lab, target, &["peer refused", &address, why.logged()]).await;
        println!("  {line}");
    }
}

/// Adds `N` addresses for outsiders to connect from.
fn outsider_addresses<const N: usize>(lab: &Lab) -> [IpAddr; N] {
    let [a, b, c, _] = network::HUB.octets();
    let mut last = 200;
    [(); N].map(|()| {
        last += 1;
        let address = IpAddr::from([a, b, c, last]);
        let mut command = netns::command(lab.network().namespace(), "ip");
        command.args(["address", "add", &format!("{address}/32"), "dev", "lo"]);
        assert!(command.status().unwrap().success());
        address
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outsiders_are_refused_without_disturbing_clients() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let lab = cluster(2, false, rng.number()).await;
    let founded = lab.node(4).api().init().await.unwrap();
    let clients = BackgroundClients::start(&lab, &[1, 2, 3], rng.number()).await;
    let mut scanner = SecretScanner::default();
    scanner.add("operator token", lab.operator_token().as_bytes());
    scanner.add("foreign operator token", founded.operator_token.as_bytes());
    for index in 1..=4 {
        let key = files_of(&lab, index).key;
        mark_key(&mut scanner, "node key", key.pem().expose());
    }

    // Rejected certificates: a member of another cluster; another authority's certificate for a
    // member's name; one by this cluster's authority for an unknown name, and one for a member's
    // name.
    let [one, two, three, four] = outsider_addresses(&lab);
    let theirs = files_of(&lab, 4);
    let what = "a member of another cluster";
    refused(&lab, what, &theirs, one, Refusal::Forged).await;
    let other = ClusterCa::generate(std::time::SystemTime::now()).unwrap();
    let foreign = forged(&other, "n2", two);
    refused(&lab, "a foreign n2", &foreign, two, Refusal::Forged).await;
    let meta = backup(&lab, 2).await.state.cluster.unwrap();
    let ca_key = SecretString::new(String::from_utf8(meta.ca_key.clone()).unwrap());
    mark_key(&mut scanner, "CA key", ca_key.expose());
    let ca_cert = String::from_utf8(meta.ca_cert.clone()).unwrap();
    let ca = ClusterCa::from_pem(&ca_cert, &ca_key).unwrap();
    let stranger = forged(&ca, "n9", three);
    refused(
        &lab,
        "a stranger of ours",
        &stranger,
        three,
        Refusal::Unknown,
    )
    .await;
    let double = forged(&ca, "n2", four);
    refused(&lab, "another n2 of ours", &double, four, Refusal::Unknown).await;
    clients
        .check_unaffected(&lab, "certificates of strangers")
        .await;

    let hub = lab.network().namespace().to_owned();
    credentials_of_another_cluster(&lab, &founded.operator_token, &hub).await;
    let token = join_token(&lab, 4).await;
    mark_token(&mut scanner, "foreign join token", &token);
    let request = join_request("n9", peer_address(&lab, 5), &token);
    let mut stranger = ClusterClient::new(channel(&lab, 1, &hub));
    let answer = code(stranger.node_join(request).await).unwrap();
    assert_eq!(answer, "join_token_invalid");
    // The digest of the CA does not match, so the token is not even sent.
    let machine = v1::ClusterJoinRequest {
        peer_addr: lab.node(1).api_address().to_string(),
        join_token: token,
    };
    let answer = code(lab.node(5).api().cluster().join(machine).await).unwrap();
    assert_eq!(answer, "ca_digest_mismatch");
    clients
        .check_unaffected(&lab, "credentials of strangers")
        .await;

    peers_calls_on_the_api(&lab, &hub).await;
    forwarded_calls_on_the_api(&lab, &hub).await;
    clients.check_unaffected(&lab, "calls of members").await;

    for target in 1..=3 {
        noise(&hub, peer_address(&lab, target), size("JACO_NOISE", 2000));
        noise(&hub, lab.node(target).api_address(), 100);
    }
    clients.check_unaffected(&lab, "noise").await;
    clients.stop(&lab, &[1, 2, 3]).await;
    check_no_leaks(&lab, &scanner);
}

/// A token of another cluster is invalid here, and a client with another CA does not connect.
async fn credentials_of_another_cluster(lab: &Lab, token: &str, from: &str) {
    let api = lab.node(1).remote_api(from, token).unwrap();
    let answer = code(api.tokens().list(v1::TokenListRequest {}).await).unwrap();
    assert_eq!(answer, "token_invalid");
    // A client with another CA refuses this server's certificate.
    let deceived = channel_under(lab, 1, from, &files_of(lab, 4).ca_pem);
    let mut deceived = ClusterClient::new(deceived);
    let refused = deceived.status(v1::ClusterStatusRequest {}).await;
    let refused = refused.unwrap_err();
    let why = format!("{refused:?}");
    assert!(why.contains("invalid peer certificate"), "{why}");
    let own = lab.remote_api(1).unwrap();
    own.tokens().list(v1::TokenListRequest {}).await.unwrap();
}

/// The API does not serve the calls between members, with or without a token.
async fn peers_calls_on_the_api(lab: &Lab, from: &str) {
    let bearer = format!("Bearer {}", lab.operator_token());
    let bearer: AsciiMetadataValue = bearer.parse().unwrap();
    for authorized in [false, true] {
        for target in 1..=3 {
            let mut internal = InternalClient::new(channel(lab, target, from));
            let shown = authorized.then_some(&bearer);
            let answers = [
                code(internal.submit(request(Default::default(), shown)).await).unwrap(),
                code(
                    internal
                        .sign_node_cert(request(Default::default(), shown))
                        .await,
                )
                .unwrap(),
                code(internal.logs(request(Default::default(), shown)).await).unwrap(),
                code(
                    internal
                        .ensure_subnet(request(Default::default(), shown))
                        .await,
                )
                .unwrap(),
                code(
                    internal
                        .state_digest(request(Default::default(), shown))
                        .await,
                )
                .unwrap(),
                code(
                    internal
                        .await_routing(request(Default::default(), shown))
                        .await,
                )
                .unwrap(),
            ];
            for answer in answers {
                assert_eq!(answer, "peer_only");
            }
        }
    }
}

/// A request with or without a credential.
fn request<T>(message: T, bearer: Option<&AsciiMetadataValue>) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(bearer) = bearer {
        let metadata = request.metadata_mut();
        metadata.insert("authorization", bearer.clone());
    }
    request
}

/// Headers of a forwarded call are ignored unless they come from a member.
async fn forwarded_calls_on_the_api(lab: &Lab, from: &str) {
    let issue = |identity: &str, token: Option<&str>| {
        let mut request = Request::new(v1::TokenIssueRequest {
            identity: identity.to_owned(),
            allows_privileged: false,
        });
        let metadata = request.metadata_mut();
        metadata.insert("jaco-forwarded", "1".parse().unwrap());
        metadata.insert("jaco-forwarded-identity", "local".parse().unwrap());
        if let Some(token) = token {
            let bearer = format!("Bearer {token}").parse().unwrap();
            metadata.insert("authorization", bearer);
        }
        request
    };
    for target in 1..=3 {
        let mut tokens =
            jaco_proto::v1::tokens_client::TokensClient::new(channel(lab, target, from));
        let answer = code(tokens.issue(issue("thief", None)).await).unwrap();
        assert_eq!(answer, "token_invalid");
        // With a token it is the call of the token's owner, and forwarded as such.
        let name = format!("through-n{target}");
        let owner = Some(lab.operator_token());
        tokens.issue(issue(&name, owner)).await.unwrap();
    }
    let actors = issuers(lab.node(1).api()).await;
    let ours: Vec<_> = actors
        .iter()
        .filter(|(name, _)| name.starts_with("through-"))
        .collect();
    assert_eq!(ours.len(), 3, "{actors:?}");
    assert!(ours.iter().all(|(_, by)| by == "bootstrap"), "{actors:?}");
    assert!(
        !actors.iter().any(|(name, _)| name == "thief"),
        "{actors:?}"
    );
}

/// Identity of each issued token with its issuer, from the audit trail.
async fn issuers(api: &Api) -> Vec<(String, String)> {
    let query = v1::AuditQueryRequest {
        types: vec![AuditEventType::TokenIssue.into()],
        ..Default::default()
    };
    let mut events = api
        .linearizable()
        .audit()
        .query(query)
        .await
        .unwrap()
        .into_inner();
    let mut found = Vec::new();
    while let Some(event) = events.message().await.unwrap() {
        let name = event.payload.get("identity").cloned().unwrap_or_default();
        found.push((name, event.identity));
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_cannot_impersonate_another() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = cluster(0, false, rng.number()).await;
    let leader = lab.leader().await.unwrap();
    let [attacker, victim] = lab.others(&[leader])[..] else {
        panic!("three nodes");
    };
    let clients = BackgroundClients::start(&lab, &[leader, victim], rng.number()).await;
    let nodes = lab.node(leader).api().status().await.unwrap().nodes;
    let id = |index: u8| {
        let host = lab.node(index).host();
        let row = nodes.iter().find(|node| node.hostname == host);
        row.unwrap().raft_id
    };
    let (villain_id, victim_id, leader_id) = (id(attacker), id(victim), id(leader));
    let files = files_of(&lab, attacker);
    let mut scanner = SecretScanner::default();
    mark_key(&mut scanner, "stolen key", files.key.pem().expose());
    lab.node_mut(attacker).kill().unwrap();

    // Messages that would depose the leader, or bind it to a future term, under other members' ids.
    let connection = until("the stolen key is accepted", WAIT_TIMEOUT, || {
        dial(&lab, HUB, &files, leader)
    })
    .await
    .unwrap();
    let mut stream = connection.open_uni(Kind::Raft).await.unwrap();
    for kind in [3, 4, 5, 6, 8, 9, 14, 17, 18] {
        for from in [victim_id, leader_id, 77] {
            let message = raft_message(kind, leader_id, from, 1_000_000);
            stream.frame(message).await.unwrap();
        }
    }
    clients.check_unaffected(&lab, "foreign raft ids").await;
    let proven = format!("from={villain_id}");
    // The first is logged; those that follow within a second are counted.
    let claimed = format!("{proven} claimed={victim_id} ");
    wait_for_log(&lab, leader, &["peer message of another sender", &claimed]).await;

    // A snapshot in the message stream, and bytes that do not decode.
    stream
        .frame(raft_message(7, leader_id, villain_id, 1_000_000))
        .await
        .unwrap();
    stream.frame(vec![0xff; 1000]).await.unwrap();
    wait_for_log(&lab, leader, &["snapshot among the messages", &proven]).await;
    wait_for_log(&lab, leader, &["does not decode", &proven]).await;
    // An oversized frame ends the connection.
    let mut heartbeats = connection.open_uni(Kind::Heartbeat).await.unwrap();
    // The leader may stop reading before the frame ends.
    let _ = heartbeats.frame(vec![1; 1 << 20]).await;
    wait_for_log(
        &lab,
        leader,
        &["protocol violation", lab.node(attacker).host()],
    )
    .await;
    let end = tokio::time::timeout(LIMIT, connection.closed()).await;
    println!("the connection ended: {:?}", end.unwrap());
    clients.check_unaffected(&lab, "noise of a member").await;

    lab.node_mut(attacker).start().await.unwrap();
    lab.wait_members(3).await.unwrap();
    clients.stop(&lab, &[leader, victim, attacker]).await;
    check_no_leaks(&lab, &scanner);
}

/// An encoded raft message: kind, receiver, sender and term.
fn raft_message(kind: u8, to: u64, from: u64, term: u64) -> Vec<u8> {
    let mut bytes = vec![0x08, kind];
    for (field, mut value) in [(2, to), (3, from), (4, term)] {
        bytes.push(field << 3);
        while value >= 0x80 {
            bytes.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
            value >>= 7;
        }
        bytes.push(u8::try_from(value).unwrap());
    }
    bytes
}

/// Waits until the log of a node has a line with all of `parts`, and returns it.
async fn wait_for_log(lab: &Lab, index: u8, parts: &[&str]) -> String {
    let what = format!("n{index} logs {parts:?}");
    until(&what, WAIT_TIMEOUT, || async {
        let log = lab.node(index).log();
        let mut lines = log.split_inclusive('\n');
        let meant = lines.find(|line| parts.iter().all(|part| line.contains(part)));
        meant
            .map(|line| line.trim_end().to_owned())
            .ok_or_else(|| lab.node(index).log_tail(5))
    })
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn join_token_admits_one_node_within_a_day() {
    let _permits = test_permits::exclusive().await;
    let mut rng = Rng::announced();
    let mut lab = cluster(2, true, rng.number()).await;
    let clients = BackgroundClients::start(&lab, &[1, 2, 3], rng.number()).await;
    let leader = lab.leader().await.unwrap();
    let follower = lab.others(&[leader, 4, 5])[0];
    let mut scanner = SecretScanner::default();

    // One token used by two machines with different names at once: one of them joins.
    let token = join_token(&lab, follower).await;
    mark_token(&mut scanner, "stolen join token", &token);
    let thieves = [4, 5].map(|index| {
        let request = join_request(&format!("thief{index}"), peer_address(&lab, index), &token);
        let member = channel(&lab, index - 3, lab.node(index).namespace());
        (request, ClusterClient::new(member))
    });
    let [(first, mut one), (second, mut two)] = thieves;
    let (a, b) = tokio::join!(one.node_join(first.clone()), two.node_join(second.clone()));
    let answers = [a.is_ok(), b.is_ok()];
    assert_eq!(answers.iter().filter(|let_in| **let_in).count(), 1);
    let refused = [code(a).ok(), code(b).ok()].into_iter().flatten().next();
    assert_eq!(refused.unwrap(), "join_token_consumed");
    // Replays the granted request unchanged.
    let replayed = if answers[0] { first } else { second };
    let ghost = replayed.name.clone();
    for member in 1..=3 {
        let mut again = ClusterClient::new(channel(&lab, member, lab.node(5).namespace()));
        let answer = code(again.node_join(replayed.clone()).await).unwrap();
        assert_eq!(answer, "join_token_consumed", "n{member}");
    }
    clients.check_unaffected(&lab, "a stolen token").await;
    let request = v1::NodeRemoveRequest {
        hostname: ghost,
        force: true,
    };
    lab.node(1)
        .api()
        .cluster()
        .node_remove(request)
        .await
        .unwrap();

    // A token older than a day by the leader's clock.
    let token = join_token(&lab, 1).await;
    mark_token(&mut scanner, "expired join token", &token);
    for index in 1..=3 {
        lab.node(index).skew_clock(24 * 3600 + 60).unwrap();
    }
    let machine = v1::ClusterJoinRequest {
        peer_addr: lab.node(1).api_address().to_string(),
        join_token: token,
    };
    let late = code(lab.node(4).api().cluster().join(machine).await).unwrap();
    assert_eq!(late, "join_token_expired");
    clients.check_unaffected(&lab, "an expired token").await;
    for index in 1..=3 {
        lab.node(index).skew_clock(0).unwrap();
    }
    let status = lab.node(4).api().status().await.unwrap();
    assert!(!status.initialized);
    // Neither attempt keeps the machine from joining with a valid token.
    lab.join(4, 1).await.unwrap();
    lab.node_mut(5).kill().unwrap();
    lab.wait_members(4).await.unwrap();
    clients.stop(&lab, &[1, 2, 3, 4]).await;
    check_no_leaks(&lab, &scanner);
}
