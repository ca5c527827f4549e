//! `jaco cert`: certificates of operators, and those that directories issued.

use std::{path::PathBuf, time::Duration};

use jaco_proto::{
    secret::SecretBytes,
    v1::{self, certs_client::CertsClient},
};
use serde::Serialize;

use super::{
    args::ReadArgs,
    blocking,
    connection::Client,
    failure::{Failure, Local, Stop},
    output::{
        Ui, View,
        table::{self, col, free},
        text::{or_dash, time},
    },
};

const DEADLINE: Duration = Duration::from_secs(60);
/// Longest file that is read, in bytes; no certificate or key is longer.
const MAX_FILE: u64 = 1 << 20;

/// Subcommands of `cert`.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Store a certificate and its key; replaces one of the same name
    Import {
        /// Domain, or *.DOMAIN for the names with one more label
        #[arg(value_name = "NAME")]
        name: String,
        /// Chain in PEM, the certificate of the domain first
        #[arg(long, value_name = "FILE")]
        cert: PathBuf,
        /// Private key in PEM
        #[arg(long, value_name = "FILE")]
        key: PathBuf,
    },
    /// List imported and obtained certificates
    #[command(visible_alias = "ls")]
    List(ReadArgs),
    /// Remove an imported certificate
    #[command(visible_alias = "remove")]
    Rm {
        /// Name it was imported as
        #[arg(value_name = "NAME")]
        name: String,
    },
}

/// Runs a subcommand.
pub(crate) async fn run(command: &Command, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    match command {
        Command::Import { name, cert, key } => {
            let (chain, key) = (read(cert).await?, read(key).await?);
            import(name, &chain, &key, client, ui).await
        }
        Command::List(_) => list(client, ui).await,
        Command::Rm { name } => remove(name, client, ui).await,
    }
}

/// Reads a file of limited length.
async fn read(path: &std::path::Path) -> Result<SecretBytes, Failure> {
    use std::{fs::File, io::Read as _};

    let shown = path.display().to_string();
    let path = path.to_owned();
    let read = blocking(move || {
        let mut bytes = Vec::new();
        let file = File::open(path)?;
        file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
        std::io::Result::Ok(bytes)
    });
    let failed = |text: &str| {
        Failure::new(Local::FileError, format!("read {shown}: {text}")).with("path", &shown)
    };
    let bytes = read.await?.map_err(|error| failed(&error.to_string()))?;
    if u64::try_from(bytes.len()).unwrap_or(u64::MAX) > MAX_FILE {
        return Err(failed("the file is too long"));
    }
    Ok(SecretBytes::new(bytes))
}

#[derive(Debug, Serialize)]
struct CertRow {
    name: String,
    source: String,
    state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<String>,
    /// SHA-256 in hexadecimal digits.
    #[serde(skip_serializing_if = "String::is_empty")]
    fingerprint: String,
}

impl From<v1::CertInfo> for CertRow {
    fn from(info: v1::CertInfo) -> Self {
        Self {
            name: info.name,
            source: info.source,
            state: info.state,
            reason: info.reason,
            not_after: info.not_after.as_ref().map(time),
            fingerprint: hex::encode(info.fingerprint),
        }
    }
}

#[derive(Serialize)]
#[serde(transparent)]
struct ImportedView(CertRow);

impl View for ImportedView {
    fn text(&self) -> String {
        let Self(row) = self;
        format!(
            "Imported certificate for {} (expires {})\n",
            row.name,
            or_dash(row.not_after.as_ref())
        )
    }
}

async fn import(
    name: &str,
    chain: &SecretBytes,
    key: &SecretBytes,
    client: &Client,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::CertImportRequest {
            name: name.to_owned(),
            chain_pem: chain.expose().to_vec(),
            key_pem: key.expose().to_vec(),
        };
        CertsClient::new(connection).import(request).await
    };
    let info = client.unary(DEADLINE, call).await?;
    ui.outcome(&ImportedView(info.into()))
}

#[derive(Serialize)]
struct ListView {
    certs: Vec<CertRow>,
}

impl View for ListView {
    fn text(&self) -> String {
        let columns = [
            col("NAME"),
            col("SOURCE"),
            col("STATE"),
            col("NOT_AFTER"),
            free("REASON"),
        ];
        let rows = self.certs.iter().map(|cert| {
            vec![
                cert.name.clone(),
                cert.source.clone(),
                cert.state.to_uppercase(),
                or_dash(cert.not_after.as_ref()),
                cert.reason.clone(),
            ]
        });
        table::render(&columns, rows)
    }
}

async fn list(client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        CertsClient::new(connection)
            .list(v1::CertListRequest {})
            .await
    };
    let response = client.unary(DEADLINE, call).await?;
    let certs = response.certs.into_iter().map(CertRow::from);
    ui.data(&ListView {
        certs: certs.collect(),
    })
}

#[derive(Serialize)]
struct RemovedView<'a> {
    name: &'a str,
    removed: bool,
}

impl View for RemovedView<'_> {
    fn text(&self) -> String {
        format!("Removed certificate for {}\n", self.name)
    }
}

async fn remove(name: &str, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::CertRemoveRequest {
            name: name.to_owned(),
        };
        CertsClient::new(connection).remove(request).await
    };
    let v1::CertRemoveResponse {} = client.unary(DEADLINE, call).await?;
    ui.outcome(&RemovedView {
        name,
        removed: true,
    })
}
