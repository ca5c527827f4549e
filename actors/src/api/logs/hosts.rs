//! Merges the lines of several hosts into one stream.

use std::collections::VecDeque;

use futures::{
    Stream, StreamExt as _,
    stream::{self, BoxStream, SelectAll},
};
use jaco_proto::{
    Error, ErrorCode,
    v1::{self, internal_client::InternalClient},
};
use tonic::Status;

use crate::{node::leader::decode_error, peer::PeerChannel};

/// Stream name of a line that clients show as a remark about the stream.
const WARNING: &str = "warning";

/// Item from one host.
pub(super) enum LogItem {
    /// A line.
    Line(v1::LogLine),
    /// The host could not be reached.
    Skipped { host: String, reason: String },
    /// The host's stream failed before its end.
    Failed(Error),
}

impl From<Result<v1::LogLine, Error>> for LogItem {
    fn from(line: Result<v1::LogLine, Error>) -> Self {
        match line {
            Ok(line) => Self::Line(line),
            Err(error) => Self::Failed(error),
        }
    }
}

/// Requests the lines of a member's replicas.
pub(super) async fn remote(
    channel: PeerChannel,
    host: String,
    request: v1::LogsRequest,
) -> impl Stream<Item = LogItem> + Send + use<> {
    let mut client = InternalClient::new(channel);
    let lines = match client.logs(request).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => {
            let piece = match decode_error(&status) {
                Some(error) if error.code == ErrorCode::PeerUnreachable => {
                    let reason = error.details.get("reason").cloned();
                    LogItem::Skipped {
                        host,
                        reason: reason.unwrap_or(error.message),
                    }
                }
                Some(error) if error.code == ErrorCode::LogsUnavailable => LogItem::Failed(error),
                Some(_) | None => LogItem::Failed(broken(&host, &status)),
            };
            return stream::iter([piece]).left_stream();
        }
    };
    lines
        .map(move |line| match line {
            Ok(line) => LogItem::Line(line),
            Err(status) => LogItem::Failed(match decode_error(&status) {
                Some(error) if error.code == ErrorCode::LogsStream => error,
                Some(_) | None => broken(&host, &status),
            }),
        })
        .right_stream()
}

fn broken(host: &str, status: &Status) -> Error {
    Error::new(
        ErrorCode::LogsStream,
        format!("the log stream of host {host:?} broke"),
    )
    .with("host", host)
    .because(status.message())
}

/// Merges the lines of all `sources` in the order of arrival. Hosts that could not be reached are
/// named at the end, or at once while following, since a followed stream may never end. After that,
/// the first failure ends the stream.
pub(super) fn merge(
    sources: Vec<BoxStream<'static, LogItem>>,
    follow: bool,
) -> impl Stream<Item = Result<v1::LogLine, Error>> + Send + use<> {
    struct Merged {
        sources: SelectAll<BoxStream<'static, LogItem>>,
        follow: bool,
        skipped: VecDeque<v1::LogLine>,
        failed: Option<Error>,
    }
    let merged = Merged {
        sources: stream::select_all(sources),
        follow,
        skipped: VecDeque::new(),
        failed: None,
    };
    stream::unfold(merged, |mut merged| async move {
        loop {
            if merged.follow
                && let Some(warning) = merged.skipped.pop_front()
            {
                return Some((Ok(warning), merged));
            }
            match merged.sources.next().await {
                Some(LogItem::Line(line)) => return Some((Ok(line), merged)),
                Some(LogItem::Skipped { host, reason }) => {
                    merged.skipped.push_back(warning(host, &reason));
                }
                Some(LogItem::Failed(error)) => {
                    // A following client would not see the end of the other hosts.
                    if merged.follow && !merged.sources.is_empty() {
                        let host = error.details.get("host").cloned().unwrap_or_default();
                        merged.skipped.push_back(warning(host, &error.message));
                    }
                    merged.failed.get_or_insert(error);
                }
                None => {
                    return match merged.skipped.pop_front() {
                        Some(warning) => Some((Ok(warning), merged)),
                        None => merged.failed.take().map(|error| (Err(error), merged)),
                    };
                }
            }
        }
    })
}

fn warning(host: String, reason: &str) -> v1::LogLine {
    v1::LogLine {
        host,
        stream: WARNING.to_owned(),
        line: format!("no lines of this host: {reason}"),
        ..Default::default()
    }
}
