//! What ends a command early, and how it is told.

use std::{collections::BTreeMap, io};

use jaco_proto::error::DecodedError;

/// Codes of failures that are found on this side of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Local {
    /// Bad flag, argument, duration, format or audit type.
    UsageError,
    /// Unreadable or missing input, unwritable output.
    FileError,
    /// Neither a socket nor a server to talk to.
    NoTransport,
    /// TCP without a token.
    TokenRequired,
    /// TCP without anything to trust.
    CaRequired,
    /// The CA file is not a certificate.
    CaInvalid,
    /// `clusters.yaml` or an entry of it cannot be used.
    ContextInvalid,
    /// The environment file or an `env_file` cannot be used.
    EnvFileError,
    /// A variable of the compose file cannot be replaced.
    InterpolationFailed,
    /// No connection.
    Unavailable,
    /// The deadline passed.
    DeadlineExceeded,
    /// What was applied does not run.
    NotConverged,
    /// The daemon does not have this replica.
    ReplicaNotFound,
    /// The daemon does not have this deployment.
    DeploymentNotFound,
    /// A cluster was not restored; nothing changed.
    RestoreFailed,
    /// Members that applied the same entries differ.
    StateDiverged,
    /// Too few members answered to be compared.
    NotCompared,
    /// A defect of this program or a broken answer.
    Internal,
}

impl Local {
    /// Its stable name.
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
            Self::ReplicaNotFound => "replica_not_found",
            Self::DeploymentNotFound => "deployment_not_found",
            Self::RestoreFailed => "restore_failed",
            Self::StateDiverged => "state_diverged",
            Self::NotCompared => "not_compared",
            Self::Internal => "internal",
        }
    }
}

/// A failure as the user sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Stable name.
    pub(crate) code: String,
    /// One sentence; may be empty.
    pub(crate) message: String,
    /// Facts by name.
    pub(crate) details: BTreeMap<String, String>,
    /// Lines of a file that show the place, for people at a terminal.
    pub(crate) excerpt: Option<String>,
}

impl Failure {
    /// A failure that was found here.
    pub(crate) fn new(code: Local, message: impl Into<String>) -> Self {
        Self {
            code: code.as_str().to_owned(),
            message: message.into(),
            details: BTreeMap::new(),
            excerpt: None,
        }
    }

    /// Adds a fact.
    #[must_use]
    pub(crate) fn with(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.details.insert(key.into(), value.to_string());
        self
    }

    /// The report on stderr: one line, then one line for each detail.
    ///
    /// Text of a server cannot break out of its line or drive the terminal.
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

/// Text without control characters, which could fake lines or drive a terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// Why a command ended early.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It failed.
    Failed(Box<Failure>),
    /// Whoever read the output has gone.
    ClosedPipe,
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}

/// Only writing the output goes through this; files are read with their own message.
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
    fn details_follow_the_message_sorted() {
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
    fn a_server_cannot_fake_a_line_or_drive_the_terminal() {
        let failure = Failure::new(Local::Internal, "a\nError: b: c\u{1b}[2J").with("k", "v\r\nw");
        assert_eq!(
            failure.render(false),
            "Error: internal: a Error: b: c [2J\n  k=v  w\n"
        );
    }

    #[test]
    fn an_empty_message_leaves_the_code_alone() {
        assert_eq!(
            Failure::new(Local::Unavailable, "").render(true),
            "Error: unavailable\n"
        );
    }

    #[test]
    fn an_excerpt_is_for_terminals() {
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
