//! What may stand on the command line.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, Parser, Subcommand};
use jaco_proto::{duration, secret::SecretString};

use super::{
    actors, apply, audit, backup, cluster,
    failure::{Failure, Local},
    get, lifecycle, logs, node,
    output::Format,
    packaging, registry, restore, status, token,
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

/// Flags of every command, before or after its name.
#[derive(Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// Remote daemon, any member; several are tried in order [env: JACO_SERVER]
    #[arg(long, global = true, value_name = "HOST:PORT,...")]
    server: Option<String>,

    /// Operator token for remote daemons [env: JACO_TOKEN]
    ///
    /// With `node join` it is the join token [env: JACO_JOIN_TOKEN].
    /// Other users of this machine can see it; a file or the variable is safer.
    #[arg(long, global = true, value_name = "TOKEN")]
    token: Option<SecretString>,

    /// File with that token
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

    /// The same as --format; with `backup` the file to write
    #[arg(long, global = true, value_name = "FORMAT")]
    output: Option<OsString>,

    /// No success lines, notes and warnings
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,

    /// Debug logs on stderr
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,

    /// Log level: debug, info, warn or error [env: JACO_LOG] [default: warn]
    #[arg(long, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<String>,
}

impl Globals {
    /// How data is printed.
    ///
    /// # Errors
    /// `usage_error` if `--output` names no format and `command` does not take it as a file.
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

    /// What `--output` names for the command that takes it as a file.
    pub(crate) fn destination(&self) -> Option<&Path> {
        self.output.as_deref().map(Path::new)
    }

    /// The control socket that the flags name.
    pub(crate) fn socket(&self) -> Option<&Path> {
        self.socket.as_deref()
    }

    /// What the flags say about the connection.
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

/// How up to date what is read must be.
#[derive(Default, clap::Args)]
pub(crate) struct ReadArgs {
    /// Read nothing older than what a majority of the cluster knows now
    #[arg(long, global = true)]
    consistent: bool,
}

/// The command families.
#[derive(Subcommand)]
pub(crate) enum Command {
    /// Found a cluster and look at its members
    Cluster {
        #[command(subcommand)]
        command: cluster::Command,
    },
    /// Add, show and remove the machines of the cluster
    Node {
        #[command(subcommand)]
        command: node::Command,
    },
    /// Deploy a jaco.yaml with its compose file
    Apply(apply::Args),
    /// Show deployments, replicas, routes and certificates
    Status(status::Args),
    /// Show one kind of thing in detail
    Get {
        #[command(subcommand)]
        command: get::Command,

        #[command(flatten)]
        read: ReadArgs,
    },
    /// Show what the containers of a service write
    Logs(logs::Args),
    /// Return a deployment to its previous revision
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
    /// Show who changed what
    Audit(audit::Args),
    /// Show the supervision tree of the daemon
    Actors(actors::Args),
    /// Save the whole cluster to a file
    Backup(backup::Args),
    /// Make this machine the only member of a cluster that was saved
    Restore(restore::Args),
    /// Check manifests without a cluster
    Validate(validate::Args),
    /// Print the version
    Version,
    /// Print a script that completes arguments in a shell
    Completions(packaging::CompletionsArgs),
    /// Write the manual pages
    Man(packaging::ManArgs),
}

impl Command {
    /// Whether the command runs until Ctrl-C, which is then a success.
    pub(crate) fn is_endless(&self) -> bool {
        match self {
            Self::Status(args) => args.watch,
            Self::Logs(args) => args.follow,
            Self::Audit(args) => args.follow,
            Self::Actors(args) => args.watch,
            Self::Cluster { .. }
            | Self::Node { .. }
            | Self::Apply(_)
            | Self::Get { .. }
            | Self::Rollback(_)
            | Self::Delete(_)
            | Self::Token { .. }
            | Self::Registry { .. }
            | Self::Backup(_)
            | Self::Restore(_)
            | Self::Validate(_)
            | Self::Version
            | Self::Completions(_)
            | Self::Man(_) => false,
        }
    }

    /// Whether the command works on the files of this machine's daemon.
    pub(crate) fn works_here(&self) -> bool {
        match self {
            Self::Restore(_) => true,
            Self::Backup(args) => args.is_offline(),
            _ => false,
        }
    }

    /// Whether what the command reads must be confirmed by a majority.
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
            | Self::Get { read, .. } => read,
            Self::Status(args) => &args.read,
            Self::Audit(args) => &args.read,
            Self::Cluster { .. }
            | Self::Node { .. }
            | Self::Apply(_)
            | Self::Logs(_)
            | Self::Rollback(_)
            | Self::Delete(_)
            | Self::Token { .. }
            | Self::Registry { .. }
            | Self::Actors(_)
            | Self::Backup(_)
            | Self::Restore(_)
            | Self::Validate(_)
            | Self::Version
            | Self::Completions(_)
            | Self::Man(_) => return false,
        };
        read.consistent
    }

    /// Whether the token among the flags is not an operator's.
    pub(crate) fn takes_join_token(&self) -> bool {
        matches!(
            self,
            Self::Node {
                command: node::Command::Join(_)
            }
        )
    }

    /// Whether a remote daemon is only called with a token.
    pub(crate) fn token_rule(&self) -> TokenRule {
        match self {
            // Strangers may ask whether there is a cluster.
            Self::Cluster {
                command: cluster::Command::Status(_),
            } => TokenRule::Optional,
            _ => TokenRule::Required,
        }
    }
}

/// Reads a duration flag.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let nanos = duration::parse(text)
        .map_err(|_| format!("{text:?} is not a duration such as 90s or 1h30m"))?;
    let nanos = u64::try_from(nanos).map_err(|_| "a duration cannot be negative".to_owned())?;
    Ok(Duration::from_nanos(nanos))
}

/// The complaint of the argument parser as a failure: its first paragraph, and its tip.
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

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_stand_before_or_after_the_command() {
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
    fn the_long_flag_is_a_file_for_a_backup_and_a_format_for_the_rest() {
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
    fn misuse_is_a_usage_error_in_one_line() {
        for (line, word) in [
            ("jaco nosuch", "nosuch"),
            ("jaco statsu", "status"),
            ("jaco apply", "JACO"),
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
    fn only_streams_are_endless() {
        for (line, endless) in [
            ("jaco status", false),
            ("jaco status -w", true),
            ("jaco logs a/b", false),
            ("jaco logs a/b -f", true),
            ("jaco audit --follow", true),
            ("jaco actors -w", true),
            ("jaco apply j", false),
        ] {
            assert_eq!(
                parse(line).unwrap().command.unwrap().is_endless(),
                endless,
                "{line}"
            );
        }
    }

    #[test]
    fn reads_may_be_confirmed() {
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
