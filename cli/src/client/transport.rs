//! Choice of the daemon to call and of the certificates to trust, pure.

pub(crate) mod contexts;

use std::{
    io,
    path::{Path, PathBuf},
};

use jaco_net::{
    pki::{Fingerprint, certificates},
    tls::Trust,
};
use jaco_proto::{config::HostPort, secret::SecretString};

use self::contexts::Context;
use super::failure::{Failure, Local};

/// Default path of the control socket.
pub(crate) const DEFAULT_SOCKET: &str = "/var/run/jaco/jaco.sock";
/// Default path of the CA file.
const DEFAULT_CA: &str = "/var/lib/jaco/node/ca.crt";

/// Connection settings of one source: the flags, or the environment.
#[derive(Clone, Default)]
pub(crate) struct Source {
    pub(crate) server: Option<String>,
    pub(crate) token: Option<SecretString>,
    /// File that contains the token; only flags set it.
    pub(crate) token_file: Option<PathBuf>,
    /// An empty value means that no file is used.
    pub(crate) ca_cert: Option<String>,
    pub(crate) ca_fingerprint: Option<String>,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) context: Option<String>,
}

impl Source {
    /// The same settings without a token.
    pub(crate) fn without_token(self) -> Self {
        Self {
            token: None,
            token_file: None,
            ..self
        }
    }

    /// Reads the environment through `var`; an empty variable counts as unset.
    pub(crate) fn from_env(var: impl Fn(&str) -> Option<String>) -> Self {
        let var = |name: &str| var(name).filter(|value| !value.is_empty());
        Self {
            server: var("JACO_SERVER"),
            token: var("JACO_TOKEN").map(SecretString::new),
            token_file: None,
            ca_cert: var("JACO_CA_CERT"),
            ca_fingerprint: var("JACO_CA_FINGERPRINT"),
            socket: var("JACO_SOCKET").map(PathBuf::from),
            context: var("JACO_CONTEXT"),
        }
    }
}

/// The parts of the machine that the choice depends on.
pub(crate) trait Machine {
    /// Whether a file exists at the path of a socket.
    fn exists(&self, path: &Path) -> bool;
    /// Reads a text file.
    fn read(&self, path: &Path) -> io::Result<String>;
    /// Reads the contexts, if their file exists.
    fn contexts(&self) -> Result<Option<contexts::Contexts>, Failure>;
}

/// The destination of calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Control socket of this machine's daemon.
    Socket(PathBuf),
    /// Remote daemons, over TLS.
    Remote {
        /// Addresses, tried in order; at least one.
        addresses: Vec<HostPort>,
        /// Bearer token; absent only where none is required.
        token: Option<SecretString>,
        /// Trust anchors for the daemon's certificate.
        trust: Trust,
    },
}

/// Parses the `host:port` of an API endpoint.
///
/// # Errors
/// `usage_error`.
pub(crate) fn address(text: &str) -> Result<HostPort, Failure> {
    HostPort::endpoint(text)
        .filter(|address| !address.host.contains(['/', '@', ' ']))
        .ok_or_else(|| {
            let message = format!("server address {text:?} is not host:port");
            Failure::new(Local::UsageError, message)
        })
}

/// Whether a remote call without a token is refused by the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenRule {
    /// For all calls that need authentication.
    Required,
    /// Calls without a token are sent; the daemon decides.
    Optional,
}

/// Chooses the transport by the first rule that matches.
///
/// # Errors
/// `no_transport` if no rule matches; `token_required`, `ca_required`, `ca_invalid`,
/// `context_invalid` or `usage_error` if the settings of the matching rule are incomplete or
/// invalid.
pub(crate) fn choose(
    flags: &Source,
    env: &Source,
    machine: &impl Machine,
    token: TokenRule,
) -> Result<Target, Failure> {
    let remote = |servers: &[&str], context: Option<&Context>| {
        remote(flags, env, context, machine, token, servers)
    };
    if let Some(server) = &flags.server {
        return remote(&list(server), None);
    }
    if let Some(socket) = &flags.socket {
        return Ok(Target::Socket(socket.clone()));
    }
    if let Some(name) = flags.context.as_ref().or(env.context.as_ref()) {
        let contexts = machine.contexts()?;
        let context = contexts
            .as_ref()
            .and_then(|contexts| contexts.get(name))
            .ok_or_else(|| {
                let message = format!("there is no context {name:?} in clusters.yaml");
                Failure::new(Local::ContextInvalid, message).with("context", name)
            })?;
        let servers = match env.server.as_deref() {
            Some(servers) => list(servers),
            None => context.servers()?,
        };
        return remote(&servers, Some(context));
    }
    if let Some(server) = &env.server {
        return remote(&list(server), None);
    }
    let socket = env.socket.clone().unwrap_or_else(|| DEFAULT_SOCKET.into());
    if machine.exists(&socket) {
        return Ok(Target::Socket(socket));
    }
    if let Some(contexts) = machine.contexts()?
        && let Some(context) = contexts.current()?
    {
        return remote(&context.servers()?, Some(context));
    }
    Err(Failure::new(
        Local::NoTransport,
        format!(
            "local socket {} is not available; start jacod, or name a daemon with --server and \
             --token",
            socket.display()
        ),
    ))
}

fn list(servers: &str) -> Vec<&str> {
    servers
        .split(',')
        .map(str::trim)
        .filter(|server| !server.is_empty())
        .collect()
}

fn remote(
    flags: &Source,
    env: &Source,
    context: Option<&Context>,
    machine: &impl Machine,
    rule: TokenRule,
    servers: &[&str],
) -> Result<Target, Failure> {
    let addresses: Vec<HostPort> = servers
        .iter()
        .map(|server| address(server))
        .collect::<Result<_, _>>()?;
    if addresses.is_empty() {
        return Err(Failure::new(
            Local::UsageError,
            "the list of servers is empty",
        ));
    }
    let pick = |field: fn(&Source) -> &Option<String>, stored: Option<&String>| {
        field(flags)
            .as_ref()
            .or(field(env).as_ref())
            .or(stored)
            .cloned()
    };
    let token = match &flags.token_file {
        Some(path) => Some(token_in(path, machine)?),
        None => {
            let stored = context.and_then(|c| c.token.as_ref());
            let token = flags.token.as_ref().or(env.token.as_ref()).or(stored);
            token.filter(|token| !token.expose().is_empty()).cloned()
        }
    };
    if token.is_none() && rule == TokenRule::Required {
        return Err(Failure::new(
            Local::TokenRequired,
            "a remote daemon needs a token: --token or JACO_TOKEN, or --token-file",
        ));
    }
    let ca_cert = pick(
        |source| &source.ca_cert,
        context.and_then(|c| c.ca_cert_path.as_ref()),
    );
    let fingerprint = pick(
        |source| &source.ca_fingerprint,
        context.and_then(|c| c.ca_fingerprint.as_ref()),
    );
    Ok(Target::Remote {
        addresses,
        token,
        trust: trust(ca_cert.as_deref(), fingerprint.as_deref(), machine)?,
    })
}

/// Reads a token from a file, without surrounding white space.
pub(super) fn token_in(path: &Path, machine: &impl Machine) -> Result<SecretString, Failure> {
    let shown = path.display();
    let failed = |why: String| {
        let message = format!("the token file {shown} {why}");
        Failure::new(Local::FileError, message).with("path", &shown)
    };
    let text = machine
        .read(path)
        .map_err(|error| failed(format!("cannot be read: {error}")))?;
    match text.trim() {
        "" => Err(failed("is empty".to_owned())),
        token => Ok(SecretString::new(token.to_owned())),
    }
}

fn trust(
    ca_cert: Option<&str>,
    fingerprint: Option<&str>,
    machine: &impl Machine,
) -> Result<Trust, Failure> {
    let fingerprint = match fingerprint.filter(|text| !text.is_empty()) {
        None => None,
        Some(text) => Some(
            text.to_ascii_lowercase()
                .parse::<Fingerprint>()
                .map_err(|_| {
                    let message =
                        format!("CA fingerprint {text:?} is not sha256: and 64 hex digits");
                    Failure::new(Local::UsageError, message)
                })?,
        ),
    };
    let path = ca_cert.unwrap_or(DEFAULT_CA);
    let ca = if path.is_empty() {
        None
    } else {
        Some(machine.read(Path::new(path)))
    };
    match (ca, fingerprint) {
        (Some(Ok(pem)), print) => {
            certificates(&pem).map_err(|_| {
                let message = format!("ca cert {path} did not parse as PEM");
                Failure::new(Local::CaInvalid, message).with("path", path)
            })?;
            Ok(print.map_or(Trust::Ca(pem.clone()), |print| {
                Trust::CaAndFingerprint(pem, print)
            }))
        }
        // A fingerprint alone is a complete pin.
        (None | Some(Err(_)), Some(print)) => Ok(Trust::Fingerprint(print)),
        (Some(Err(error)), None) if error.kind() == io::ErrorKind::NotFound => {
            let message = format!(
                "ca cert not found at {path}; pass --ca-cert or set JACO_CA_CERT, or pin it with \
                 --ca-fingerprint"
            );
            Err(Failure::new(Local::CaRequired, message).with("path", path))
        }
        (Some(Err(error)), None) => {
            let message = format!("read the CA certificate {path}: {error}");
            Err(Failure::new(Local::FileError, message).with("path", path))
        }
        (None, None) => Err(Failure::new(
            Local::CaRequired,
            "there is no unverified connection: pin the cluster's CA with --ca-cert or set \
             JACO_CA_CERT, or give its --ca-fingerprint",
        )),
    }
}

#[cfg(test)]
mod tests;
