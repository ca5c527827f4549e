//! The command line definition.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use jaco_proto::{duration, secret::SecretString};

use super::{
    actors, apply, audit, backup, cert, cluster, config, domain,
    failure::{Failure, Local},
    get, lifecycle, logs, net, node,
    output::Format,
    packaging, registry, restore, rollout, secret, status, tls, token,
    transport::{Source, TokenRule},
    validate,
};

/// Run docker-compose files on a handful of machines as if they were one.
#[derive(Parser)]
#[command(name = "jaco", disable_version_flag = true, max_term_width = 100)]
pub(crate) struct Cli {
    /// Print the version and exit
    #[arg(long)]
    pub(crate) version: bool,

    #[command(flatten)]
    pub(crate) globals: Globals,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// Flags that every command accepts, before or after its name.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Remote daemon to call, any member; several addresses are tried in order [env: JACO_SERVER]
    #[arg(long, global = true, value_name = "HOST:PORT,...")]
    server: Option<String>,

    /// Operator token for remote daemons [env: JACO_TOKEN]
    ///
    /// With `node join` it is the join token [env: JACO_JOIN_TOKEN]. Other users of this machine
    /// can see it in the process list; --token-file or the environment variable is safer.
    #[arg(long, global = true, value_name = "TOKEN")]
    token: Option<SecretString>,

    /// File that contains the token
    #[arg(long, global = true, value_name = "PATH", conflicts_with = "token")]
    token_file: Option<PathBuf>,

    /// CA certificate of the cluster to pin [env: JACO_CA_CERT] [default: /var/lib/jaco/node/ca.crt]
    #[arg(long, global = true, value_name = "PATH")]
    ca_cert: Option<String>,

    /// Fingerprint of the CA certificate to pin [env: JACO_CA_FINGERPRINT]
    #[arg(long, global = true, value_name = "sha256:HEX")]
    ca_fingerprint: Option<String>,

    /// Control socket of the local daemon [env: JACO_SOCKET] [default: /var/run/jaco/jaco.sock]
    #[arg(long, global = true, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Entry of clusters.yaml to use [env: JACO_CONTEXT]
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,

    /// Output format: table, json or yaml [default: table]
    #[arg(short = 'o', long, global = true, value_name = "FORMAT")]
    format: Option<Format>,

    /// Alias of --format; with `backup`, the file to write
    #[arg(long, global = true, value_name = "FORMAT")]
    output: Option<OsString>,

    /// Suppress success lines, notes and warnings
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Write debug logs to stderr
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,

    /// Log level: debug, info, warn or error [env: JACO_LOG] [default: warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
}

impl Globals {
    /// The output format.
    ///
    /// # Errors
    /// `usage_error` if `--output` is not a valid format and `command` does not take it as a file.
    pub(crate) fn format(&self, command: Option<&Command>) -> Result<Format, Failure> {
        let text = match &self.output {
            Some(text) if !matches!(command, Some(Command::Backup(_))) => text,
            Some(_) | None => return Ok(self.format.unwrap_or(Format::Table)),
        };
        let format = text.to_string_lossy().parse();
        let format = format.map_err(|error: String| Failure::new(Local::UsageError, error))?;
        match self.format {
            None => Ok(format),
            Some(_) => Err(Failure::new(
                Local::UsageError,
                "the output format is given twice",
            )),
        }
    }

    /// Value of `--output`, for the command that takes it as a file.
    pub(crate) fn destination(&self) -> Option<&Path> {
        self.output.as_deref().map(Path::new)
    }

    /// The control socket, if a flag names it.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// The connection settings of the flags.
    pub(crate) fn source(&self) -> Source {
        Source {
            server: self.server.clone(),
            token: self.token.clone(),
            token_file: self.token_file.clone(),
            ca_cert: self.ca_cert.clone(),
            ca_fingerprint: self.ca_fingerprint.clone(),
            socket: self.socket.clone(),
            context: self.context.clone(),
        }
    }
}

/// Consistency of reads.
#[derive(Default, clap::Args)]
pub(crate) struct ReadArgs {
    /// Read the latest state, confirmed by a majority of the cluster
    #[arg(long, global = true)]
    consistent: bool,
}

/// The commands and command families.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Initialize a cluster and show its members
    Cluster {
        #[command(subcommand)]
        command: cluster::Command,
    },
    /// Add, list and remove nodes of the cluster
    Node {
        #[command(subcommand)]
        command: node::Command,
    },
    /// Deploy a jaco.yaml with its compose file
    Apply(apply::Args),
    /// Show deployments, replicas, routes and certificates
    Status(status::Args),
    /// Show deployments, replicas or routes in detail
    Get {
        #[command(subcommand)]
        command: get::Command,

        #[command(flatten)]
        read: ReadArgs,
    },
    /// Show the logs of a service's containers
    Logs(logs::Args),
    /// Show, pause, resume or abort the replacement of replicas
    Rollout {
        #[command(subcommand)]
        command: rollout::Command,
    },
    /// Roll a deployment back to its previous revision
    Rollback(lifecycle::Args),
    /// Remove a deployment and everything it owns
    Delete(lifecycle::Args),
    /// Manage operator tokens
    Token {
        #[command(subcommand)]
        command: token::Command,
    },
    /// Manage credentials for pulling images
    Registry {
        #[command(subcommand)]
        command: registry::Command,
    },
    /// Check the records of a domain
    Domain {
        #[command(subcommand)]
        command: domain::Command,
    },
    /// Switch TLS on or off without an apply
    Tls {
        #[command(subcommand)]
        command: tls::Command,
    },
    /// Manage certificates
    Cert {
        #[command(subcommand)]
        command: cert::Command,
    },
    /// Show the audit log
    Audit(audit::Args),
    /// Show the supervision tree of the daemon
    Actors(actors::Args),
    /// Show mesh, bridges and reachability of the container networks
    Net(net::Args),
    /// Save the state of the cluster to a file
    Backup(backup::Args),
    /// Restore a backup, with this machine as the only member
    Restore(restore::Args),
    /// Check manifests locally, without a cluster
    Validate(validate::Args),
    /// Print the compose file as it is applied: merged, with its variables and paths resolved
    ///
    /// With a subcommand: manage the configs of the cluster.
    Config(config::Args),
    /// Manage the secrets of deployments and of the cluster
    Secret {
        #[command(subcommand)]
        command: secret::Command,
    },
    /// Print the version
    Version,
    /// Print the completion script for a shell
    #[command(visible_alias = "completion")]
    Completions(packaging::CompletionsArgs),
    /// Write the manual pages
    Man(packaging::ManArgs),
}

impl Command {
    /// Whether the command normally ends by Ctrl-C, so that Ctrl-C counts as success.
    pub(crate) fn is_stream(&self) -> bool {
        match self {
            Self::Status(args) => args.watch,
            Self::Logs(args) => args.follow,
            Self::Audit(args) => args.follow,
            Self::Actors(args) => args.watch,
            Self::Net(args) => args.watch,
            Self::Domain {
                command: domain::Command::Check(args),
            } => args.watch,
            Self::Cluster { .. }
            | Self::Node { .. }
            | Self::Apply(_)
            | Self::Get { .. }
            | Self::Rollout { .. }
            | Self::Rollback(_)
            | Self::Delete(_)
            | Self::Token { .. }
            | Self::Registry { .. }
            | Self::Tls { .. }
            | Self::Cert { .. }
            | Self::Backup(_)
            | Self::Restore(_)
            | Self::Validate(_)
            | Self::Config(_)
            | Self::Secret { .. }
            | Self::Version
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }

    /// Whether the command works on the data files of this machine's daemon.
    pub(crate) fn uses_local_files(&self) -> bool {
        match self {
            Self::Restore(_) => true,
            Self::Backup(args) => args.is_offline(),
            _ => false,
        }
    }

    /// Whether the command's reads must be confirmed by a majority.
    pub(crate) fn is_consistent(&self) -> bool {
        let read = match self {
            Self::Cluster {
                command: cluster::Command::Status(read),
            }
            | Self::Node {
                command: node::Command::List(read),
            }
            | Self::Token {
                command: token::Command::List(read),
            }
            | Self::Registry {
                command: registry::Command::List(read),
            }
            | Self::Cert {
                command: cert::Command::List(read),
            }
            | Self::Get { read, .. } => read,
            Self::Config(config::Args {
                command: Some(command),
                ..
            }) => return command.read().is_some_and(|read| read.consistent),
            Self::Secret { command } => {
                return command.read().is_some_and(|read| read.consistent);
            }
            Self::Status(args) => &args.read,
            Self::Rollout {
                command: rollout::Command::Status(args),
            } => &args.read,
            Self::Net(args) => &args.read,
            Self::Domain {
                command: domain::Command::Check(args),
            } => &args.read,
            Self::Tls {
                command: tls::Command::Status(args),
            } => &args.read,
            Self::Audit(args) => &args.read,
            Self::Cluster { .. }
            | Self::Node { .. }
            | Self::Apply(_)
            | Self::Logs(_)
            | Self::Rollout { .. }
            | Self::Rollback(_)
            | Self::Delete(_)
            | Self::Token { .. }
            | Self::Registry { .. }
            | Self::Tls { .. }
            | Self::Cert { .. }
            | Self::Actors(_)
            | Self::Backup(_)
            | Self::Restore(_)
            | Self::Validate(_)
            | Self::Config(_)
            | Self::Version
            | Self::Completions(_)
            | Self::Man(_) => return false,
        };
        read.consistent
    }

    /// Whether `--token` is a join token for this command, not an operator token.
    pub(crate) fn takes_join_token(&self) -> bool {
        matches!(
            self,
            Self::Node {
                command: node::Command::Join(_)
            }
        )
    }

    /// Whether a remote call needs a token.
    pub(crate) fn token_rule(&self) -> TokenRule {
        match self {
            // Unauthenticated clients may ask whether the cluster is initialized.
            Self::Cluster {
                command: cluster::Command::Status(_),
            } => TokenRule::Optional,
            _ => TokenRule::Required,
        }
    }
}

/// Parses a duration flag.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let nanos = duration::parse(text)
        .map_err(|_| format!("{text:?} is not a duration such as 90s or 1h30m"))?;
    let nanos = u64::try_from(nanos).map_err(|_| "a duration cannot be negative".to_owned())?;
    Ok(Duration::from_nanos(nanos))
}

/// Converts an error of the argument parser to a failure with its first paragraph and its tip.
pub(crate) fn usage_error(error: &clap::Error) -> Failure {
    let text = error.render().to_string();
    let mut paragraphs = text.split("\n\n").map(|part| {
        part.lines()
            .map(str::trim)
            .filter(|line| !line.is_empty())
            .collect::<Vec<_>>()
            .join(" ")
    });
    let message = paragraphs.next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(&message);
    let tip = paragraphs.find_map(|part| part.strip_prefix("tip: ").map(str::to_owned));
    let tip = tip.map(|tip| format!(" ({tip})")).unwrap_or_default();
    Failure::new(Local::UsageError, format!("{message}{tip}"))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn parse(line: &str) -> Result<Cli, Failure> {
        let cli = Cli::try_parse_from(line.split(' ')).map_err(|error| usage_error(&error))?;
        cli.globals.format(cli.command.as_ref())?;
        Ok(cli)
    }

    /// Commands of `jaco` behind a prompt in a document, as words without comments.
    fn commands(document: &str) -> impl Iterator<Item = Vec<&str>> {
        document.lines().filter_map(|line| {
            // On one of several machines, its name is before the prompt.
            let (_, command) = line.split_once("# ")?;
            let (command, _) = command.split_once(" #").unwrap_or((command, ""));
            let words = command.split_whitespace();
            let words = words.map(|word| word.trim_matches('"')).collect();
            command.starts_with("jaco ").then_some(words)
        })
    }

    #[test]
    fn commands_of_the_documents_parse() {
        let mut count = 0;
        for document in [
            include_str!("../../../README.md"),
            include_str!("../../../docs/migration.md"),
        ] {
            for words in commands(document) {
                let parsed = Cli::try_parse_from(&words);
                assert!(parsed.is_ok(), "{words:?}: {}", parsed.err().unwrap());
                count += 1;
            }
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn global_flags_are_accepted_before_and_after_command() {
        for line in [
            "jaco --server h:1 -o json -q status app",
            "jaco status --server=h:1 --format json app --quiet",
            "jaco status app -ojson -q --server h:1",
            "jaco status --output=json -q --server h:1 -- app",
        ] {
            let cli = parse(line).unwrap();
            assert_eq!(cli.globals.server.as_deref(), Some("h:1"), "{line}");
            let format = cli.globals.format(cli.command.as_ref());
            assert_eq!(format.unwrap(), Format::Json, "{line}");
            assert!(cli.globals.quiet, "{line}");
        }
    }

    #[test]
    fn output_flag_is_a_file_only_for_backup() {
        for line in [
            "jaco backup --output xml -o json",
            "jaco --output xml backup --format json",
        ] {
            let cli = parse(line).unwrap();
            let format = cli.globals.format(cli.command.as_ref());
            assert_eq!(format.unwrap(), Format::Json, "{line}");
            assert_eq!(cli.globals.destination(), Some(Path::new("xml")), "{line}");
        }
    }

    #[test]
    fn misuse_is_reported_as_a_usage_error() {
        for (line, word) in [
            ("jaco nosuch", "nosuch"),
            ("jaco statsu", "status"),
            ("jaco apply a b", "'b'"),
            ("jaco status -o xml", "output format"),
            ("jaco status --output xml", "output format"),
            ("jaco status --output json -o json", "given twice"),
            ("jaco backup --output f -o xml", "output format"),
            ("jaco restore --input f", "--name"),
            ("jaco restore --name n", "--input"),
            ("jaco status --nope", "--nope"),
            ("jaco logs app", "expected <deployment>/<service>"),
            ("jaco logs app/", "expected <deployment>/<service>"),
            ("jaco logs /web", "expected <deployment>/<service>"),
            ("jaco logs a/b --since 5", "duration"),
            ("jaco logs a/b --since 1d", "duration"),
            ("jaco logs a/b --since -5m", "negative"),
            ("jaco apply j --timeout -1s", "negative"),
            ("jaco apply -f a --compose b", "--compose"),
            ("jaco validate -f a --compose b", "--compose"),
            ("jaco validate --env-file a --compose b", "--compose"),
            ("jaco audit --type nope", "unknown audit type"),
            ("jaco get deployment", "NAME"),
            ("jaco get nosuch", "nosuch"),
            ("jaco rollback", "DEPLOYMENT"),
            ("jaco token issue", "--name"),
            ("jaco token revoke", "IDENTITY"),
            ("jaco token list x", "'x'"),
            ("jaco registry login r", "--username"),
            ("jaco registry login -u u", "REGISTRY"),
            ("jaco registry login r -u u --password p", "--password"),
            ("jaco registry logout", "REGISTRY"),
            ("jaco node nosuch", "nosuch"),
            ("jaco status --token t --token-file f", "--token-file"),
            ("jaco apply j --consistent", "--consistent"),
            ("jaco completions", "SHELL"),
            ("jaco completions dos", "dos"),
            ("jaco man", "--out"),
            ("jaco actors kill", "PATH"),
            ("jaco actors kill a --mode maim", "maim"),
        ] {
            let failure = parse(line)
                .err()
                .unwrap_or_else(|| panic!("{line} is accepted"));
            assert_eq!(failure.code, "usage_error");
            assert!(
                failure.message.contains(word),
                "{line}: {}",
                failure.message
            );
            assert!(!failure.message.contains('\n') && !failure.message.starts_with("error"));
        }
    }

    #[test]
    fn completion_is_accepted_as_completions() {
        for line in ["jaco completions bash", "jaco completion bash"] {
            let command = parse(line).unwrap().command;
            assert!(matches!(command, Some(Command::Completions(_))), "{line}");
        }
    }

    #[test]
    fn only_streams_are_endless() {
        for (line, endless) in [
            ("jaco status", false),
            ("jaco status -w", true),
            ("jaco logs a/b", false),
            ("jaco logs a/b -f", true),
            ("jaco audit --follow", true),
            ("jaco actors -w", true),
            ("jaco net", false),
            ("jaco net -w", true),
            ("jaco apply j", false),
        ] {
            assert_eq!(
                parse(line).unwrap().command.unwrap().is_stream(),
                endless,
                "{line}"
            );
        }
    }

    #[test]
    fn consistent_flag_is_accepted_on_reads() {
        for (line, consistent) in [
            ("jaco status", false),
            ("jaco status --consistent", true),
            ("jaco --consistent status", false),
            ("jaco get --consistent replicas", true),
            ("jaco get route a.io --consistent", true),
            ("jaco token list --consistent", true),
            ("jaco registry list --consistent", true),
            ("jaco node list --consistent", true),
            ("jaco audit -f --consistent", true),
            ("jaco cluster status --consistent", true),
            ("jaco rollback app", false),
        ] {
            let parsed = parse(line).map(|cli| cli.command.unwrap().is_consistent());
            assert_eq!(parsed.unwrap_or(false), consistent, "{line}");
        }
    }

    #[test]
    fn durations_have_units_and_no_sign() {
        for (text, expected) in [
            ("1h30m", Some(5400.0)),
            ("2.5s", Some(2.5)),
            ("0", Some(0.0)),
            ("10us", Some(0.000_01)),
            ("5", None),
            ("1d", None),
            ("-1s", None),
            ("", None),
            ("s", None),
        ] {
            let parsed = parse_duration(text).ok();
            assert_eq!(parsed, expected.map(Duration::from_secs_f64), "{text}");
        }
    }
}
