//! `Cluster.Digest`: the state of every member at one log index.
//!
//! Members are compared at the same log index. On an idle cluster that is the newest one; during
//! writes it is one slightly ahead, which every member reaches while it waits.

use std::{collections::BTreeMap, time::Duration};

use futures::future::join_all;
use jaco_proto::{
    error::DecodedError,
    v1::{self, internal_client::InternalClient},
};
use jaco_raftnode::StateReader;
use tokio::time::timeout;
use tonic::Request;

use crate::node::MemberContext;

/// Time that a member may wait to reach an index.
const WAIT: Duration = Duration::from_secs(2);
/// Longest wait that is granted to another member.
const MAX_WAIT: Duration = Duration::from_secs(5);
/// Time limit of a member's answer: the wait, and the hashing of a large state.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(6);
/// Number of indexes tried before the last answers are used as they are.
const ATTEMPTS: usize = 3;

/// Answer of one member: its index and digest, or the reason for their absence.
type Answer = Result<(u64, Vec<u8>), String>;

/// Queries every member until all that answer do so for one index.
pub(super) async fn compare(node: &MemberContext) -> v1::DigestResponse {
    let mut asked = node.raft.status().applied;
    let mut answers = BTreeMap::new();
    for _ in 0..ATTEMPTS {
        answers = ask(node, asked).await;
        match next(asked, &answers) {
            Some(index) => asked = index,
            None => break,
        }
    }
    response(answers)
}

async fn ask(node: &MemberContext, index: u64) -> BTreeMap<String, Answer> {
    let hosts: Vec<String> = node.raft.state().nodes.keys().cloned().collect();
    let answers = hosts.into_iter().map(async |host| {
        let answer = timeout(ANSWER_TIMEOUT, of(node, &host, index)).await;
        let answer = answer.unwrap_or_else(|_| Err("no answer in time".to_owned()));
        (host, answer)
    });
    join_all(answers).await.into_iter().collect()
}

async fn of(node: &MemberContext, host: &str, index: u64) -> Answer {
    if host == node.hostname {
        let (index, digest) = node.raft.digest_at(Some(index), WAIT).await;
        return Ok((index, digest.to_vec()));
    }
    let request = v1::StateDigestRequest {
        index,
        wait_ms: u32::try_from(WAIT.as_millis()).unwrap_or(u32::MAX),
    };
    let answer = InternalClient::new(node.peers.channel(host))
        .state_digest(Request::new(request))
        .await;
    match answer {
        Ok(answer) => {
            let v1::StateDigestResponse { index, digest } = answer.into_inner();
            Ok((index, digest))
        }
        Err(status) => {
            let error = DecodedError::from(status);
            Err(format!("{}: {}", error.code, error.message))
        }
    }
}

/// Answers the query of another member.
pub(super) async fn answer(
    node: &MemberContext,
    request: &v1::StateDigestRequest,
) -> v1::StateDigestResponse {
    let wait = Duration::from_millis(request.wait_ms.into()).min(MAX_WAIT);
    let index = (request.index > 0).then_some(request.index);
    let (index, digest) = node.raft.digest_at(index, wait).await;
    v1::StateDigestResponse {
        index,
        digest: digest.to_vec(),
    }
}

/// Returns the index to query next; `None` if another attempt would not show more.
fn next(asked: u64, answers: &BTreeMap<String, Answer>) -> Option<u64> {
    let indexes = || answers.values().flatten().map(|(index, _)| *index);
    let newest = indexes().max()?;
    // No member is past it: those behind did not reach it within their wait.
    (newest > asked).then(|| newest + 2 * (newest - asked))
}

/// Compares at the index that most members answered for; of several, the newest.
fn response(answers: BTreeMap<String, Answer>) -> v1::DigestResponse {
    let mut counts = BTreeMap::new();
    for (index, _) in answers.values().flatten() {
        *counts.entry(*index).or_insert(0) += 1;
    }
    let index = counts
        .into_iter()
        .max_by_key(|&(index, count)| (count, index));
    let nodes = answers.into_iter().map(|(hostname, answer)| {
        let (index, digest, error) = match answer {
            Ok((index, digest)) => (index, digest, String::new()),
            Err(error) => (0, Vec::new(), error),
        };
        v1::NodeDigest {
            hostname,
            index,
            digest,
            error,
        }
    });
    v1::DigestResponse {
        index: index.map_or(0, |(index, _)| index),
        nodes: nodes.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(indexes: &[Option<u64>]) -> BTreeMap<String, Answer> {
        let answer = |index: &Option<u64>| match index {
            Some(index) => Ok((*index, vec![1])),
            None => Err("away".to_owned()),
        };
        let named = indexes.iter().enumerate();
        named
            .map(|(at, index)| (format!("n{at}"), answer(index)))
            .collect()
    }

    #[test]
    fn retry_only_if_members_passed_the_index() {
        for (given, expected) in [
            (&[Some(10), Some(10)][..], None),
            (&[Some(10), Some(8)], None),
            (&[Some(10), None], None),
            (&[None], None),
            (&[Some(14), Some(10)], Some(22)),
        ] {
            assert_eq!(next(10, &answers(given)), expected, "{given:?}");
        }
    }

    #[test]
    fn index_of_most_members_is_compared() {
        for (given, expected) in [
            (&[Some(10), Some(10), Some(12)][..], 10),
            (&[Some(10), Some(12)], 12),
            (&[None, Some(3)], 3),
            (&[None], 0),
        ] {
            let response = response(answers(given));
            assert_eq!(response.index, expected, "{given:?}");
            assert_eq!(response.nodes.len(), given.len());
        }
    }
}
