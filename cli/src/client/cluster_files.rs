//! `jaco config create` and its siblings, and those of `jaco secret --cluster`: configs and secrets of
//! the cluster, which deployments name as `external`.

use std::{
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use jaco_proto::{
    manifest::MAX_FILE_BYTES,
    secret::SecretBytes,
    v1::{self, FileKind, cluster_files_client::ClusterFilesClient},
};
use serde::Serialize;

use super::{
    args::ReadArgs,
    blocking,
    connection::Client,
    failure::{Failure, Local, Stop},
    output::{
        Ui, View,
        table::{self, col},
        text::time,
    },
};

const DEADLINE: Duration = Duration::from_secs(10);

/// Path that stands for standard input.
pub(super) const STDIN: &str = "-";

/// Subcommands of `config`.
#[derive(clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Store a config in the cluster, for deployments that name it as external
    Create(NewFile),
    /// List the configs of the cluster
    List(ReadArgs),
    /// Remove a config from the cluster; deployments keep what they were applied with
    Rm(FileName),
}

/// Arguments of `create`.
#[derive(clap::Args)]
pub(crate) struct NewFile {
    /// Name, as in the compose file
    #[arg(value_name = "NAME")]
    name: String,
    /// File with the content, or - for stdin; at most 1 MiB
    #[arg(value_name = "FILE", default_value = STDIN)]
    file: PathBuf,
}

/// Arguments of `rm`.
#[derive(clap::Args)]
pub(crate) struct FileName {
    /// Name, as in the compose file
    #[arg(value_name = "NAME")]
    name: String,
}

impl ConfigCommand {
    /// Settings of the read, if the command is one.
    pub(crate) fn read(&self) -> Option<&ReadArgs> {
        match self {
            Self::List(read) => Some(read),
            Self::Create(_) | Self::Rm(_) => None,
        }
    }
}

/// Runs a subcommand of `config`.
pub(crate) async fn config(
    command: ConfigCommand,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let kind = FileKind::Config;
    match command {
        ConfigCommand::Create(args) => create(kind, args, client, ui).await,
        ConfigCommand::List(_) => list(kind, client, ui).await,
        ConfigCommand::Rm(args) => remove(kind, args.name, client, ui).await,
    }
}

fn noun(kind: FileKind) -> &'static str {
    match kind {
        FileKind::Secret => "secret",
        FileKind::Unspecified | FileKind::Config | FileKind::Bind => "config",
    }
}

/// Outcome of a change.
#[derive(Serialize)]
struct ChangedView {
    name: String,
    kind: &'static str,
    action: &'static str,
}

impl View for ChangedView {
    fn text(&self) -> String {
        let (verb, rest) = match self.action {
            "created" => ("Created", ""),
            _ => (
                "Removed",
                "; deployments keep it until they are applied again",
            ),
        };
        format!("{verb} {} {}{rest}\n", self.kind, self.name)
    }
}

pub(super) async fn create(
    kind: FileKind,
    args: NewFile,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let NewFile { name, file } = args;
    let content = blocking(move || read(&file, MAX_FILE_BYTES + 1)).await??;
    let call = async |connection| {
        let request = v1::ClusterFileCreateRequest {
            kind: kind.into(),
            name: name.clone(),
            content: content.expose().to_vec(),
        };
        ClusterFilesClient::new(connection).create(request).await
    };
    let v1::ClusterFileCreateResponse {} = client.unary(DEADLINE, call).await?;
    ui.outcome(&ChangedView {
        name: name.clone(),
        kind: noun(kind),
        action: "created",
    })
}

/// Reads a file or stdin, at most `limit` bytes: one more than a daemon accepts, so that it says what is
/// too large.
pub(super) fn read(path: &Path, limit: usize) -> Result<SecretBytes, Failure> {
    let mut content = Vec::new();
    let limit = limit as u64;
    let result = if path == Path::new(STDIN) {
        io::stdin().lock().take(limit).read_to_end(&mut content)
    } else {
        fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut content))
    };
    let content = SecretBytes::new(content);
    match result {
        Ok(_) => Ok(content),
        Err(error) => {
            let shown = path.display();
            let failure = Failure::new(Local::FileError, format!("read {shown}: {error}"));
            Err(failure.with("path", shown))
        }
    }
}

#[derive(Serialize)]
struct FileRow {
    name: String,
    size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    created_at: Option<String>,
    created_by: String,
    deployments: Vec<String>,
}

#[derive(Serialize)]
struct ListView {
    files: Vec<FileRow>,
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = [
            col("NAME"),
            col("BYTES"),
            col("CREATED"),
            col("BY"),
            col("DEPLOYMENTS"),
        ];
        let rows = self.files.iter().map(|file| {
            vec![
                file.name.clone(),
                file.size.to_string(),
                file.created_at.clone().unwrap_or_default(),
                file.created_by.clone(),
                file.deployments.join(","),
            ]
        });
        table::render(&columns, rows)
    }
}

pub(super) async fn list(kind: FileKind, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::ClusterFileListRequest { kind: kind.into() };
        ClusterFilesClient::new(connection).list(request).await
    };
    let response = client.unary(DEADLINE, call).await?;
    let files = response.files.into_iter().map(|file| FileRow {
        name: file.name,
        size: file.size,
        created_at: file.created_at.as_ref().map(time),
        created_by: file.created_by,
        deployments: file.deployments,
    });
    ui.data(&ListView {
        files: files.collect(),
    })
}

pub(super) async fn remove(
    kind: FileKind,
    name: String,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::ClusterFileRemoveRequest {
            kind: kind.into(),
            name: name.clone(),
        };
        ClusterFilesClient::new(connection).remove(request).await
    };
    let v1::ClusterFileRemoveResponse {} = client.unary(DEADLINE, call).await?;
    ui.outcome(&ChangedView {
        name: name.clone(),
        kind: noun(kind),
        action: "removed",
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{
        fake::{self, Fake},
        output::Format,
    };

    #[tokio::test]
    async fn content_is_sent_byte_for_byte() {
        let server = Fake::start().await;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        fs::write(&file, b"a\n\xff").unwrap();
        let create = NewFile {
            name: "key".to_owned(),
            file,
        };
        let (result, output) = fake::capture(Format::Table, async |ui| {
            super::create(FileKind::Secret, create, &server.client(), ui).await
        })
        .await;
        assert_eq!(result, Ok(()));
        assert_eq!(output.out, "Created secret key\n");
        let sent = &server.files()[0];
        assert_eq!((sent.kind(), &*sent.name), (FileKind::Secret, "key"));
        assert_eq!(sent.content, b"a\n\xff");
    }

    #[tokio::test]
    async fn unreadable_file_is_an_error() {
        let server = Fake::start().await;
        let create = NewFile {
            name: "key".to_owned(),
            file: "/nonexistent".into(),
        };
        let (result, _) = fake::capture(Format::Table, async |ui| {
            super::create(FileKind::Config, create, &server.client(), ui).await
        })
        .await;
        let Err(Stop::Failed(failure)) = result else {
            panic!("a failure");
        };
        assert_eq!(failure.code, "file_error");
        assert!(server.files().is_empty());
    }
}
