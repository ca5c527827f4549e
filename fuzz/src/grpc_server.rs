//! Fuzzes the gRPC services behind their admission.

mod answer;
mod node;

use bytes::Bytes;
use http::{HeaderValue, Request, header::CONTENT_TYPE};
use http_body_util::Full;
use jaco_actors::{api::admission::Transport, peer::Sender};
use jaco_net::pki::Fingerprint;
use jaco_proto::manifest::{compose::Project, jaco::Jaco};
use jaco_raftnode::State;
use tonic::body::Body;

use crate::parts::parts;
use answer::Answer;
use node::TestNode;

/// Maximum number of calls per input.
const CALLS: usize = 6;
/// SHA-256 of the operator's token.
const SECRET_HASH: &str = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b";

/// Input: calls, one per part. The first line of a call is the method, followed by words that
/// select how it is made; the rest is the message.
///
/// Every call gets a valid gRPC response: frames, then one status. An error has a typed detail with
/// a known code, fits into the trailers and is never an internal error. The content of all
/// resulting deployments can be read by the actors that run them.
pub fn grpc_server(data: &[u8]) {
    let calls: [&[u8]; CALLS] = parts(data);
    node::run(data.starts_with(b"stranger"), async |node: &TestNode| {
        for text in calls.into_iter().filter(|text| !text.is_empty()) {
            let Some((transport, request)) = call(text) else {
                continue;
            };
            let method = request.uri().path().to_owned();
            let answer = Answer::read(node.api.call(transport, request).await).await;
            answer.check(&method);
        }
        if let Some(raft) = &node.raft {
            check(&jaco_raftnode::StateReader::state(raft));
        }
    });
}

/// Parses a call. Words of the first line: `remote` or `member` (default: the unix socket),
/// `passed` and `hashed` (forwarded by a member, for an operator without and with a token),
/// `token`, `revoked` and `unknown` (credentials), `linearizable` and `stale` (requested read),
/// `json` (content type), `raw` (the message is sent without a length prefix) and `compressed` (the
/// frame is marked as compressed).
fn call(text: &[u8]) -> Option<(Transport, Request<Body>)> {
    let line = text.split(|byte| *byte == b'\n').next()?;
    let message = text.get(line.len() + 1..).unwrap_or_default();
    let line = str::from_utf8(line).ok()?;
    let mut words = line.split(' ').filter(|word| *word != "stranger");
    let method = words.next()?;
    let words: Vec<&str> = words.collect();
    let has = |word: &str| words.contains(&word);
    let mut frame = Vec::new();
    if !has("raw") {
        frame.push(u8::from(has("compressed")));
        frame.extend(u32::try_from(message.len()).ok()?.to_be_bytes());
    }
    frame.extend_from_slice(message);
    let mut request = Request::post(format!("http://lab/jaco.v1.{method}"))
        .body(Body::new(Full::new(Bytes::from(frame))))
        .ok()?;
    let headers = request.headers_mut();
    let content_type = if has("json") {
        "application/json"
    } else {
        "application/grpc"
    };
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    for (word, key, value) in [
        ("token", "authorization", "Bearer secret"),
        ("revoked", "authorization", "Bearer old"),
        ("unknown", "authorization", "Bearer guess"),
        ("linearizable", "jaco-read", "linearizable"),
        ("stale", "jaco-read", "stale"),
        ("gzip", "grpc-encoding", "gzip"),
        ("timeout", "grpc-timeout", "1n"),
        ("passed", "jaco-forwarded", "1"),
        ("passed", "jaco-forwarded-identity", "local"),
        ("hashed", "jaco-forwarded", "1"),
        ("hashed", "jaco-forwarded-identity", "operator"),
        ("hashed", "jaco-forwarded-token", SECRET_HASH),
    ] {
        if has(word) {
            headers.insert(key, HeaderValue::from_static(value));
        }
    }
    let transport = if has("member") {
        // Equal to the certificate in the state of `cluster`.
        let shown = [Fingerprint::from_bytes([2; 32])];
        request
            .extensions_mut()
            .insert(Sender::new("other", 2, shown));
        Transport::Peer
    } else if has("remote") {
        Transport::Api
    } else {
        Transport::Local
    };
    Some((transport, request))
}

/// Checks that committed deployments pass the rules that their readers apply.
fn check(state: &State) {
    for deployment in state.deployments.values() {
        let jaco = Jaco::parse(&deployment.jaco_yaml).expect("validated on commit");
        assert_eq!(jaco.deployment, deployment.name);
        let project = Project::parse(&deployment.compose_yaml).expect("validated on commit");
        let services = deployment.services.iter().map(|service| &service.name);
        assert!(services.eq(project.services.keys()));
    }
}
