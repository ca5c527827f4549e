//! `jaco validate`: checks manifests without a cluster.

use std::{
    fs,
    path::{Path, PathBuf},
};

use jaco_proto::{Error, ErrorCode, manifest};
use serde::Serialize;

use super::{
    excerpt::{self, Text},
    failure::{Failure, Local, Stop},
    manifests::{Sources, manifests},
    output::{Format, Ui, View},
};

/// Arguments of `validate`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Deployment manifest (jaco.yaml)
    #[arg(long, value_name = "FILE")]
    jaco: Option<PathBuf>,

    /// Compose file, checked as it is, with its variables open
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["files", "env_files", "project_directory"]
    )]
    compose: Option<PathBuf>,

    #[command(flatten)]
    sources: Sources,

    /// Fail if there are warnings
    #[arg(long)]
    strict: bool,
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
    if args.sources.asks_for_resolution() {
        return resolved(args, ui);
    }
    if args.jaco.is_none() && args.compose.is_none() {
        let message = "give at least one of --jaco or --compose, or files with -f";
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
    report(args, files, warnings, ui)
}

/// Checks the files as `jaco apply` sends them.
fn resolved(args: &Args, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let manifests = manifests(args.jaco.as_deref(), &args.sources)?;
    manifests.check()?;
    report(args, manifests.paths(), manifests.warnings, ui)
}

fn report(
    args: &Args,
    files: Vec<String>,
    warnings: Vec<String>,
    ui: &mut Ui<'_>,
) -> Result<(), Stop> {
    match ui.format {
        Format::Table => {
            for warning in &warnings {
                ui.warn(warning);
            }
        }
        Format::Json | Format::Yaml => {}
    }
    if args.strict {
        refuse_warnings(&warnings)?;
    }
    ui.data(&ValidView {
        valid: true,
        files,
        warnings,
    })
}

/// Turns warnings into an error, for `--strict`.
pub(crate) fn refuse_warnings(warnings: &[String]) -> Result<(), Failure> {
    let Some(first) = warnings.first() else {
        return Ok(());
    };
    let count = warnings.len();
    let message = match count {
        1 => format!("--strict: {first}"),
        _ => format!("--strict: {first} (and {} more)", count - 1),
    };
    Err(Error::new(ErrorCode::ValidationFailed, message)
        .with("warnings", count)
        .into())
}

/// Reads a whole file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| {
        let shown = path.display();
        Failure::new(Local::FileError, format!("read {shown}: {error}")).with("path", shown)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::fake;

    #[tokio::test]
    async fn warnings_are_on_stderr_or_in_the_data() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("compose.yml");
        fs::write(
            &path,
            "services: {web: {image: i, ports: ['127.0.0.1:9001:80']}}\n",
        )
        .unwrap();
        let args = Args {
            jaco: None,
            compose: Some(path),
            sources: Sources::default(),
            strict: false,
        };
        let words = "service \"web\" publishes port 9001, which stays closed";
        let (result, output) = fake::capture(Format::Table, async |ui| run(&args, ui)).await;
        assert_eq!((result, output.out.as_str()), (Ok(()), ""));
        assert!(output.err.starts_with(&format!("warning: {words}")));
        let (result, output) = fake::capture(Format::Json, async |ui| run(&args, ui)).await;
        assert_eq!((result, output.err.as_str()), (Ok(()), ""));
        let object: serde_json::Value = serde_json::from_str(&output.out).unwrap();
        let warning = object["warnings"][0].as_str().unwrap();
        assert!(warning.starts_with(words), "{warning}");
        let args = Args {
            strict: true,
            ..args
        };
        let (result, output) = fake::capture(Format::Table, async |ui| run(&args, ui)).await;
        let failure = fake::failure(result);
        assert_eq!(failure.code, "validation_failed");
        assert!(failure.message.contains(words), "{}", failure.message);
        assert!(output.err.starts_with(&format!("warning: {words}")));
    }

    #[tokio::test]
    async fn files_to_resolve_are_checked_as_applied() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("compose.yml");
        let base = "services:\n  web: {extends: base, mem_limit: $LIMIT}\n  base: {image: i}\n";
        fs::write(&path, base).unwrap();
        let variables = dir.path().join("vars");
        let args = Args {
            jaco: None,
            compose: None,
            sources: Sources {
                files: vec![path.clone()],
                env_files: vec![variables.clone()],
                ..Sources::default()
            },
            strict: true,
        };
        fs::write(&variables, "LIMIT=64m\n").unwrap();
        let (result, output) = fake::capture(Format::Table, async |ui| run(&args, ui)).await;
        assert_eq!((result, output.err.as_str()), (Ok(()), ""));
        fs::write(&variables, "LIMIT=lots\n").unwrap();
        let (result, _) = fake::capture(Format::Table, async |ui| run(&args, ui)).await;
        let failure = fake::failure(result);
        assert_eq!(failure.code, "validation_failed");
        assert_eq!(failure.details["file"], path.display().to_string());
        assert_eq!(
            (&*failure.details["line"], &*failure.details["col"]),
            ("2", "35")
        );
    }

    #[tokio::test]
    async fn services_of_null_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("compose.yml");
        fs::write(&path, "name: shop\nservices:\n#  web: {image: i}\n").unwrap();
        let args = Args {
            jaco: None,
            compose: Some(path),
            sources: Sources::default(),
            strict: false,
        };
        let (result, _) = fake::capture(Format::Table, async |ui| run(&args, ui)).await;
        let failure = fake::failure(result);
        assert_eq!(failure.code, "validation_failed");
        assert!(failure.message.contains("services must be a mapping"));
        assert_eq!(failure.details["line"], "2");
    }
}
