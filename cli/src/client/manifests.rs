//! The manifests of a command, resolved from the files that a person wrote.

mod files;
mod shipped;
mod variables;

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use jaco_proto::{
    Error, ErrorCode, chain,
    manifest::{
        self,
        compose::Project,
        env_file::FoldError,
        interpolate,
        jaco::{Jaco, Spanned, secrets},
        project::{self, Inactive, Options, ResolveError, Resolved, project_name},
    },
    v1::FileValue,
    yaml,
};

use crate::client::{
    excerpt::{self, Text},
    failure::{Failure, Local},
    output::Ui,
    validate::{read, refuse_warnings},
};
use files::Compose;

/// Name of an error's file: the compose file as a daemon received it.
const COMPOSE: &str = "compose.yaml";
/// Name of an error's file: the deployment manifest.
const JACO: &str = "jaco.yaml";

/// Arguments that choose the files of a deployment.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct Sources {
    /// Compose file, or - for stdin; several are merged in this order [default: the compose file of
    /// the directory, and its override]
    #[arg(short = 'f', long = "file", value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,

    /// Activate a profile; * activates all
    #[arg(
        long = "profile",
        value_name = "PROFILE",
        env = "COMPOSE_PROFILES",
        value_delimiter = ','
    )]
    pub(crate) profiles: Vec<String>,

    /// File with values of variables [default: .env of the project directory]
    #[arg(long = "env-file", value_name = "FILE")]
    pub(crate) env_files: Vec<PathBuf>,

    /// Directory of relative paths [default: that of the first compose file]
    #[arg(long, value_name = "DIR")]
    pub(crate) project_directory: Option<PathBuf>,
}

impl Sources {
    /// Path of the `jaco.yaml` in a directory, the working directory by default, if there is one.
    fn jaco_path(directory: Option<&Path>) -> Option<PathBuf> {
        let path = directory.unwrap_or(Path::new("")).join(JACO);
        path.is_file().then_some(path)
    }

    /// Whether an argument asks for a resolution; profiles may come from the environment.
    pub(crate) fn asks_for_resolution(&self) -> bool {
        !self.files.is_empty() || !self.env_files.is_empty() || self.project_directory.is_some()
    }
}

/// The resolved manifests and metadata about them.
pub(crate) struct Manifests {
    /// Name of the deployment.
    pub(crate) deployment: String,
    /// Path of `jaco.yaml` as given by the user; `None` if there is no such file.
    jaco_path: Option<String>,
    compose_path: String,
    /// Content of `jaco.yaml`.
    pub(crate) jaco: Vec<u8>,
    /// Compose file with everything resolved.
    pub(crate) compose: Vec<u8>,
    resolved: Resolved,
    variables: BTreeMap<String, String>,
    /// Files in place of relative binds.
    binds: Vec<FileValue>,
    /// Templates of the values of secrets, by name.
    secrets: BTreeMap<String, Spanned<String>>,
    /// Image of every service that has one.
    pub(crate) images: BTreeMap<String, String>,
    /// Warnings about valid but suspicious content.
    pub(crate) warnings: Vec<String>,
}

impl Manifests {
    /// Adds the place that a person wrote, and its line, to a failure about the manifests.
    pub(crate) fn attach(&self, mut failure: Failure) -> Failure {
        let is_compose = failure
            .details
            .get("file")
            .is_some_and(|file| file == COMPOSE);
        let number = |key: &str| failure.details.get(key)?.parse::<u32>().ok();
        let place = number("line").zip(number("col")).filter(|_| is_compose);
        if let Some((file, at)) = place.and_then(|(line, col)| self.resolved.origin(line, col)) {
            let path = file.path.display().to_string();
            failure = failure
                .with("file", &path)
                .with("line", at.line)
                .with("col", at.col);
            return excerpt::attach(failure, &[text(&path, &path, &file.bytes)]);
        }
        let mut texts = Vec::new();
        if let Some(path) = &self.jaco_path {
            texts.push(text(JACO, path, &self.jaco));
        }
        // Lines of an edited text mean nothing to its author.
        if !self.resolved.is_edited() {
            texts.push(text(COMPOSE, &self.compose_path, &self.compose));
        }
        excerpt::attach(failure, &texts)
    }

    /// Prints the warnings; with `strict` they are an error.
    pub(crate) fn warn(&self, strict: bool, ui: &mut Ui<'_>) -> Result<(), Failure> {
        for warning in &self.warnings {
            ui.warn(warning);
        }
        if strict {
            refuse_warnings(&self.warnings)?;
        }
        Ok(())
    }

    /// Checks the manifests as a daemon does, as far as that needs no cluster.
    ///
    /// # Errors
    /// The violated rule, at the place that a person wrote.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let checked = manifest::validate(Some(&self.jaco), Some(&self.compose))
            .and_then(|_| Project::parse(&self.compose));
        checked.map(drop).map_err(|error| self.attach(error.into()))
    }

    /// Files that are sent with the documents: contents of configs and secrets, and those in place of
    /// relative binds.
    ///
    /// # Errors
    /// `file_error`, `config_missing`, `secret_missing` or `validation_failed`.
    pub(crate) fn files(&self) -> Result<Vec<FileValue>, Failure> {
        let mut files = shipped::contents(&self.resolved, &self.variables)?;
        files.extend(self.binds.iter().cloned());
        Ok(files)
    }

    /// Values of the secrets of `jaco.yaml`, from the environment files and then from `environment`, that
    /// of the process: a secret names its variable, so none reaches the cluster by accident.
    ///
    /// # Errors
    /// `secret_unresolved` or `validation_failed`.
    pub(crate) fn secret_values(
        &self,
        environment: &dyn Fn(&str) -> Option<String>,
    ) -> Result<BTreeMap<String, Vec<u8>>, Failure> {
        let lookup = |name: &str| {
            let known = self.variables.get(name).cloned();
            known.or_else(|| environment(name))
        };
        let values = secrets::resolve(&self.secrets, &lookup);
        let values = values
            .map_err(|error| self.attach(error.into()))?
            .into_iter();
        Ok(values
            .map(|(name, value)| (name, value.expose().as_bytes().to_vec()))
            .collect())
    }

    /// Paths of the files as given by the user.
    pub(crate) fn paths(&self) -> Vec<String> {
        let compose = [self.compose_path.clone()];
        self.jaco_path.iter().cloned().chain(compose).collect()
    }
}

fn text<'a>(name: &'a str, path: &'a str, bytes: &'a [u8]) -> Text<'a> {
    Text { name, path, bytes }
}

/// Reads and resolves the files.
///
/// # Errors
/// `file_error`, `env_file_error`, `interpolation_failed`, `usage_error`, or a violated rule.
pub(crate) fn manifests(jaco: Option<&Path>, sources: &Sources) -> Result<Manifests, Failure> {
    let jaco = match jaco {
        Some(path) => Some(JacoFile::read(path)?),
        None if sources.files.is_empty() => JacoFile::beside(sources)?,
        None => None,
    };
    let compose = Compose::find(jaco.as_ref().map(|file| file.path.as_path()), sources)?;
    let directory = compose.directory.clone();
    let embedded = match &jaco {
        Some(_) => None,
        None => compose.environment(),
    };
    let given = jaco.as_ref().and_then(|file| file.environment());
    let environment = given.or(embedded);
    let mut read = variables::read(environment.as_deref(), sources, directory.as_deref())?;
    let deployment = jaco.as_ref().map(|file| file.parsed.deployment.clone());
    let deployment = deployment.filter(|name| !name.is_empty());
    let named = deployment.or_else(|| directory.as_deref().and_then(directory_name));
    if let Some(name) = named {
        let known = read.values.entry("COMPOSE_PROJECT_NAME".to_owned());
        known.or_insert(name);
    }
    let home = variables::home();
    if let Some(home) = &home {
        let known = read.values.entry("HOME".to_owned());
        known.or_insert_with(|| home.display().to_string());
    }
    let options = Options {
        directory: directory.clone(),
        home,
        variables: read.values,
        profiles: sources.profiles.iter().cloned().collect(),
    };
    let mut content = |path: &Path| std::fs::read(path);
    let resolved = project::resolve(compose.files.clone(), &options, &mut content)
        .map_err(|error| failed(error, &compose))?;

    let mut unset = resolved.unset.clone();
    unset.extend(read.unset);
    let mut warnings: Vec<String> = unset.iter().map(|name| variables::warning(name)).collect();
    let beside = directory
        .as_deref()
        .and_then(|it| Sources::jaco_path(Some(it)));
    if let Some(path) = beside.filter(|_| jaco.is_none() && resolved.jaco.is_none()) {
        let path = path.display();
        warnings.push(format!(
            "{path} is not used: with -f, name it too, as in `jaco apply {path} -f …`"
        ));
    }
    let binds = shipped::binds(&resolved)?;
    for (service, path) in &binds.writable {
        warnings.push(format!(
            "service {service:?} mounts a copy of {path}, which it cannot write to: say :ro, or \
             write an absolute path for the file of each machine"
        ));
    }
    if binds.is_local {
        let directory = directory.unwrap_or_default();
        warnings.push(format!(
            "bind paths are local to each machine: relative ones mean {} there",
            directory.display()
        ));
    }
    let document = Document::of(jaco.as_ref(), &resolved, options.directory.as_deref())?;
    refuse_inactive(&document, &resolved.inactive)?;
    // Validation errors are ignored: the daemon decides and may be newer. Only the warnings are
    // used.
    let checked = manifest::validate(Some(&document.bytes), Some(&resolved.bytes));
    warnings.extend(checked.unwrap_or_default());
    Ok(Manifests {
        deployment: document.parsed.deployment,
        jaco_path: jaco.map(|file| file.path.display().to_string()),
        compose_path: compose.shown(),
        images: images(&resolved.bytes),
        jaco: document.bytes,
        compose: resolved.bytes.clone(),
        resolved,
        variables: options.variables,
        binds: binds.files,
        secrets: document.parsed.secrets,
        warnings,
    })
}

/// A `jaco.yaml` on disk.
struct JacoFile {
    path: PathBuf,
    bytes: Vec<u8>,
    parsed: Jaco,
}

impl JacoFile {
    fn read(path: &Path) -> Result<Self, Failure> {
        let bytes = read(path)?;
        let parsed = match Jaco::parse(&bytes) {
            Ok(parsed) => parsed,
            Err(error) => nameless(&bytes, &error).ok_or_else(|| {
                let shown = path.display().to_string();
                excerpt::attach(error.into(), &[text(JACO, &shown, &bytes)])
            })?,
        };
        Ok(Self {
            path: path.to_owned(),
            bytes,
            parsed,
        })
    }

    /// The file of the project directory, if it has one.
    fn beside(sources: &Sources) -> Result<Option<Self>, Failure> {
        let path = Sources::jaco_path(sources.project_directory.as_deref());
        path.map(|path| Self::read(&path)).transpose()
    }

    /// Path of the environment file, if the manifest names one.
    fn environment(&self) -> Option<PathBuf> {
        let path = self.parsed.environment.as_ref()?;
        Some(files::directory(&self.path).join(path))
    }
}

/// Text of a manifest with this name of its deployment, which it does not have itself. The name comes
/// last, so that its lines stay.
fn named(bytes: &[u8], name: &str) -> Vec<u8> {
    let name = format!("\ndeployment: {name:?}\n");
    [bytes, name.as_bytes()].concat()
}

/// A manifest that lacks nothing but the name of its deployment, which is then empty.
fn nameless(bytes: &[u8], error: &Error) -> Option<Jaco> {
    error
        .details
        .get("field")
        .filter(|it| *it == "deployment")?;
    let parsed = Jaco::parse(&named(bytes, "unnamed")).ok()?;
    Some(Jaco {
        deployment: String::new(),
        ..parsed
    })
}

/// The deployment manifest that is sent.
struct Document {
    bytes: Vec<u8>,
    parsed: Jaco,
}

impl Document {
    /// Returns the file, else `x-jaco` of the compose file, else the name alone.
    fn of(
        jaco: Option<&JacoFile>,
        resolved: &Resolved,
        directory: Option<&Path>,
    ) -> Result<Self, Failure> {
        let name = || resolved.name.clone().or_else(|| directory_name(directory?));
        if let Some(jaco) = jaco {
            if resolved.jaco.is_some() {
                let message = format!(
                    "the compose file has x-jaco beside {}: keep one of them",
                    jaco.path.display()
                );
                return Err(invalid(message).with("field", "x-jaco"));
            }
            if jaco.parsed.deployment.is_empty() {
                let name = name().ok_or_else(no_name)?;
                let bytes = named(&jaco.bytes, &name);
                let parsed = Jaco::parse(&bytes)?;
                return Ok(Self { bytes, parsed });
            }
            return Ok(Self {
                bytes: jaco.bytes.clone(),
                parsed: jaco.parsed.clone(),
            });
        }
        let parse = |bytes: Vec<u8>| match Jaco::parse(&bytes) {
            Ok(parsed) => Ok(Self { bytes, parsed }),
            Err(mut error) => {
                // Its lines are not those of the compose file.
                error
                    .details
                    .retain(|key, _| !matches!(key.as_str(), "line" | "col"));
                Err(Failure::from(error).with("file", "x-jaco"))
            }
        };
        let own = resolved.jaco.clone().unwrap_or_default();
        if has_secrets(&own) {
            let message = "x-jaco cannot have secrets, since the cluster stores the compose file with \
                           its variables resolved: write them to jaco.yaml beside it";
            return Err(invalid(message).with("field", "x-jaco.secrets"));
        }
        let has_name = own.starts_with(b"deployment:")
            || own.windows(12).any(|window| window == b"\ndeployment:");
        if has_name {
            return parse(own);
        }
        let name = name().filter(|name| !name.is_empty()).ok_or_else(no_name)?;
        let mut bytes = format!("deployment: {name:?}\n").into_bytes();
        if own != b"{}\n" {
            bytes.extend(own);
        }
        parse(bytes)
    }
}

/// Whether the text of a manifest has `secrets`.
fn has_secrets(bytes: &[u8]) -> bool {
    let document = yaml::parse(bytes).ok();
    let root = document.and_then(|document| document.root);
    let map = root.as_ref().and_then(yaml::Node::as_map);
    map.is_some_and(|map| map.get("secrets").is_some())
}

fn no_name() -> Failure {
    let message = "the deployment has no name: give a jaco.yaml, or set name: in the compose file";
    Failure::new(Local::UsageError, message)
}

/// Name of a deployment in a directory.
fn directory_name(directory: &Path) -> Option<String> {
    let name = directory.file_name()?.to_str()?;
    Some(project_name(name)).filter(|name| !name.is_empty())
}

fn invalid(message: impl Into<String>) -> Failure {
    Error::new(ErrorCode::ValidationFailed, message).into()
}

/// Fails if the deployment manifest is about a service that is left out.
fn refuse_inactive(document: &Document, inactive: &Inactive) -> Result<(), Failure> {
    let jaco = &document.parsed;
    let services = jaco.services.iter().map(|service| &service.name.value);
    let routed = jaco.routes.iter().map(|route| &route.service.value);
    for name in services.chain(routed) {
        if let Some(profiles) = inactive.get(name) {
            let message = format!(
                "jaco.yaml is about service {name:?}, which is left out: activate one of its \
                 profiles with --profile {}",
                profiles.join(" or --profile ")
            );
            return Err(invalid(message).with("service", name));
        }
    }
    Ok(())
}

fn failed(error: ResolveError, compose: &Compose) -> Failure {
    match error {
        ResolveError::Read { path, source } => {
            let shown = path.display();
            Failure::new(Local::FileError, format!("read {shown}: {source}")).with("path", shown)
        }
        ResolveError::Interpolate(error) => interpolation_failed(&error, compose),
        ResolveError::Variables { path, source } => {
            let message = format!("load environment file {}: {source}", path.display());
            Failure::new(Local::EnvFileError, message)
                .with("path", path.display())
                .with("line", source.line)
        }
        ResolveError::Fold(error) => fold_failed(&error),
        ResolveError::Invalid(error) => {
            let failure = Failure::from(error);
            let path = failure.details.get("file").cloned().unwrap_or_default();
            let bytes = compose.bytes(&path);
            excerpt::attach(failure, &[text(&path, &path, &bytes)])
        }
    }
}

fn interpolation_failed(error: &interpolate::Error, compose: &Compose) -> Failure {
    let (at, path) = match error {
        interpolate::Error::Yaml { path, source } => (source.at, path),
        interpolate::Error::SecondDocument { path, at }
        | interpolate::Error::Template { path, at, .. }
        | interpolate::Error::DuplicateKey { path, at, .. } => (*at, path),
    };
    let failure = Failure::new(Local::InterpolationFailed, chain(error))
        .with("file", path)
        .with("line", at.line)
        .with("col", at.col);
    excerpt::attach(failure, &[text(path, path, &compose.bytes(path))])
}

fn fold_failed(error: &FoldError) -> Failure {
    let failure = Failure::new(Local::EnvFileError, chain(error));
    match error {
        FoldError::Yaml(_) | FoldError::SecondDocument(_) => failure,
        FoldError::NoDirectory { service } | FoldError::Entry { service, .. } => {
            failure.with("service", service)
        }
        FoldError::NotFound { service, path }
        | FoldError::Read { service, path, .. }
        | FoldError::File { service, path, .. } => {
            failure.with("service", service).with("path", path)
        }
    }
}

/// Images by service; empty if the file is invalid, because the daemon will refuse it.
fn images(compose: &[u8]) -> BTreeMap<String, String> {
    let Ok(project) = Project::parse(compose) else {
        return BTreeMap::new();
    };
    let services = project.services.into_iter();
    services
        .filter_map(|(name, service)| Some((name, service.image?)))
        .collect()
}
