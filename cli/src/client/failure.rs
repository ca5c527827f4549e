//! Failures of a command, and how they are reported.

use std::{collections::BTreeMap, io};

use jaco_proto::error::DecodedError;

/// Error codes of failures detected by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// Invalid flag, argument, duration, format or audit type.
    UsageError,
    /// Unreadable or missing input, unwritable output.
    FileError,
    /// Neither a control socket nor a remote daemon is configured.
    NoTransport,
    /// A TCP connection without a token.
    TokenRequired,
    /// A TCP connection without a CA to pin.
    CaRequired,
    /// The CA file is not a valid certificate.
    CaInvalid,
    /// `clusters.yaml` or one of its entries is invalid.
    ContextInvalid,
    /// The environment file or an `env_file` is invalid.
    EnvFileError,
    /// A variable of the compose file cannot be interpolated.
    InterpolationFailed,
    /// The connection failed.
    Unavailable,
    /// The deadline passed.
    DeadlineExceeded,
    /// The applied revision does not run.
    NotConverged,
    /// The rollout failed, and the cluster restored the revision before.
    RolledBack,
    /// The time to wait has passed; what was asked for may still happen.
    TimedOut,
    /// The replica does not exist.
    ReplicaNotFound,
    /// The deployment does not exist.
    DeploymentNotFound,
    /// The backup was not restored; nothing changed.
    RestoreFailed,
    /// Members that applied the same entries have different states.
    StateDiverged,
    /// Too few members answered for a comparison.
    NotCompared,
    /// A bug in the client, or an invalid response.
    Internal,
}

impl Local {
    /// The stable code.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::UsageError => "usage_error",
            Self::FileError => "file_error",
            Self::NoTransport => "no_transport",
            Self::TokenRequired => "token_required",
            Self::CaRequired => "ca_required",
            Self::CaInvalid => "ca_invalid",
            Self::ContextInvalid => "context_invalid",
            Self::EnvFileError => "env_file_error",
            Self::InterpolationFailed => "interpolation_failed",
            Self::Unavailable => "unavailable",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotConverged => "not_converged",
            Self::RolledBack => "rolled_back",
            Self::TimedOut => "timed_out",
            Self::ReplicaNotFound => "replica_not_found",
            Self::DeploymentNotFound => "deployment_not_found",
            Self::RestoreFailed => "restore_failed",
            Self::StateDiverged => "state_diverged",
            Self::NotCompared => "not_compared",
            Self::Internal => "internal",
        }
    }
}

/// A failure as it is reported to the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// The stable code.
    pub(crate) code: String,
    /// One sentence; may be empty.
    pub(crate) message: String,
    /// Details by key.
    pub(crate) details: BTreeMap<String, String>,
    /// Excerpt of the file at fault, shown on terminals.
    pub(crate) excerpt: Option<String>,
}

impl Failure {
    /// A failure detected by the client.
    pub(crate) fn new(code: Local, message: impl Into<String>) -> Self {
        Self {
            code: code.as_str().to_owned(),
            message: message.into(),
            details: BTreeMap::new(),
            excerpt: None,
        }
    }

    /// Adds a detail.
    #[must_use]
    pub(crate) fn with(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.details.insert(key.into(), value.to_string());
        self
    }

    /// Exit status of the command: 3 after a rollback, 124 (as that of `timeout`) once the time to
    /// wait has passed, 1 otherwise.
    pub(crate) fn exit_status(&self) -> u8 {
        let is = |code: Local| self.code == code.as_str();
        if is(Local::RolledBack) {
            3
        } else if is(Local::TimedOut) {
            124
        } else {
            1
        }
    }

    /// Renders the report on stderr: one line, then one line per detail.
    ///
    /// Control characters are replaced, so text from a server cannot forge lines or control the
    /// terminal.
    pub(crate) fn render(&self, with_excerpt: bool) -> String {
        let mut text = format!("Error: {}", one_line(&self.code));
        if !self.message.is_empty() {
            text.push_str(": ");
            text.push_str(&one_line(&self.message));
        }
        text.push('\n');
        for (key, value) in &self.details {
            text.push_str(&format!("  {}={}\n", one_line(key), one_line(value)));
        }
        if let Some(excerpt) = self.excerpt.as_ref().filter(|_| with_excerpt) {
            text.push_str(excerpt);
        }
        text
    }
}

impl From<DecodedError> for Failure {
    fn from(error: DecodedError) -> Self {
        Self {
            code: error.code,
            message: error.message,
            details: error.details,
            excerpt: None,
        }
    }
}

impl From<jaco_proto::Error> for Failure {
    fn from(error: jaco_proto::Error) -> Self {
        Self {
            code: error.code.as_str().to_owned(),
            message: error.message,
            details: error.details,
            excerpt: None,
        }
    }
}

/// Replaces control characters, which could forge lines or control a terminal, by spaces.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Why a command ended early.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The command failed.
    Failed(Box<Failure>),
    /// The reader of the output closed the pipe.
    ClosedPipe,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}

/// Applies to writing stdout only; errors of files get their own message where they occur.
impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self::ClosedPipe;
        }
        Failure::new(Local::FileError, format!("write to stdout: {error}")).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn details_are_sorted_after_the_message() {
        let failure = Failure::from(
            jaco_proto::Error::new(jaco_proto::ErrorCode::ReservedPort, "port 80 is taken")
                .with("service", "web")
                .with("entry", "80:80")
                .with("port", 80),
        );
        assert_eq!(
            failure.render(true),
            "Error: reserved_port: port 80 is taken\n  entry=80:80\n  port=80\n  service=web\n"
        );
    }

    #[test]
    fn control_characters_of_a_server_are_removed() {
        let failure = Failure::new(Local::Internal, "a\nError: b: c\u{1b}[2J").with("k", "v\r\nw");
        assert_eq!(
            failure.render(false),
            "Error: internal: a Error: b: c [2J\n  k=v  w\n"
        );
    }

    #[test]
    fn report_without_message_is_only_the_code() {
        assert_eq!(
            Failure::new(Local::Unavailable, "").render(true),
            "Error: unavailable\n"
        );
    }

    #[test]
    fn excerpt_is_shown_on_terminals_only() {
        let mut failure = Failure::new(Local::UsageError, "m");
        failure.excerpt = Some("  1 | x\n".to_owned());
        assert_eq!(failure.render(false), "Error: usage_error: m\n");
        assert_eq!(failure.render(true), "Error: usage_error: m\n  1 | x\n");
    }

    #[test]
    fn a_closed_pipe_is_not_a_failure() {
        let closed = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(Stop::from(closed), Stop::ClosedPipe);
        let full = io::Error::from(io::ErrorKind::StorageFull);
        assert!(matches!(Stop::from(full), Stop::Failed(f) if f.code == "file_error"));
    }
}
