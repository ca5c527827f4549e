//! `jaco validate`: checks manifests without a cluster.

use std::{
    fs,
    path::{Path, PathBuf},
};

use jaco_proto::manifest;
use serde::Serialize;

use super::{
    excerpt::{self, Text},
    failure::{Failure, Local, Stop},
    output::{Format, Ui, View},
};

/// Arguments of `validate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Deployment manifest (jaco.yaml)
    #[arg(long, value_name = "FILE")]
    jaco: Option<PathBuf>,

    /// Compose file
    #[arg(long, value_name = "FILE")]
    compose: Option<PathBuf>,
}

/// The result for valid files.
#[derive(Serialize)]
struct ValidView {
    valid: bool,
    files: Vec<String>,
    warnings: Vec<String>,
}

impl View for ValidView {
    fn text(&self) -> String {
        String::new()
    }
}

/// Checks the files; prints no text if they are valid.
pub(crate) fn run(args: &Args, ui: &mut Ui<'_>) -> Result<(), Stop> {
    if args.jaco.is_none() && args.compose.is_none() {
        let message = "give at least one of --jaco or --compose";
        return Err(Failure::new(Local::UsageError, message).into());
    }
    let jaco = args.jaco.as_deref().map(read).transpose()?;
    let compose = args.compose.as_deref().map(read).transpose()?;
    let files: Vec<String> = [&args.jaco, &args.compose]
        .into_iter()
        .flatten()
        .map(|p| p.display().to_string())
        .collect();
    let texts: Vec<Text<'_>> = [("jaco.yaml", &jaco), ("compose.yaml", &compose)]
        .into_iter()
        .filter_map(|(name, bytes)| Some((name, bytes.as_deref()?)))
        .zip(&files)
        .map(|((name, bytes), path)| Text { name, path, bytes })
        .collect();
    let warnings = manifest::validate(jaco.as_deref(), compose.as_deref())
        .map_err(|error| excerpt::attach(error.into(), &texts))?;
    match ui.format {
        Format::Table => {
            for warning in &warnings {
                ui.warn(warning);
            }
        }
        Format::Json | Format::Yaml => {}
    }
    ui.data(&ValidView {
        valid: true,
        files,
        warnings,
    })
}

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| {
        let shown = path.display();
        Failure::new(Local::FileError, format!("read {shown}: {error}")).with("path", shown)
    })
}
