//! Client-side resolution of the manifests before they are sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use jaco_proto::{
    chain,
    manifest::{
        self,
        compose::Project,
        env_file::{self, FoldError},
        interpolate,
        jaco::Jaco,
    },
};

use crate::client::{
    excerpt::{self, Text},
    failure::{Failure, Local},
    validate::read,
};

/// Default names of a compose file, in order of precedence.
const COMPOSE_NAMES: [&str; 4] = [
    "compose.yml",
    "compose.yaml",
    "docker-compose.yml",
    "docker-compose.yaml",
];

/// The resolved manifests and metadata about them.
pub(super) struct Manifests {
    /// Name of the deployment.
    pub(super) deployment: String,
    /// Paths as given by the user.
    pub(super) jaco_path: String,
    pub(super) compose_path: String,
    /// Content of `jaco.yaml`, unchanged.
    pub(super) jaco: Vec<u8>,
    /// Compose file with variables and env files resolved.
    pub(super) compose: Vec<u8>,
    /// Whether resolution changed the compose file.
    pub(super) compose_edited: bool,
    /// Image of every service that has one.
    pub(super) images: BTreeMap<String, String>,
    /// Warnings about valid but suspicious content.
    pub(super) warnings: Vec<String>,
}

/// Reads and resolves both files; `-` reads the compose file from stdin.
///
/// # Errors
/// `file_error`, `env_file_error`, `interpolation_failed`, or the validation error of `jaco.yaml`.
pub(super) fn manifests(jaco_path: &Path, compose: Option<&Path>) -> Result<Manifests, Failure> {
    let jaco = read(jaco_path)?;
    let shown = jaco_path.display().to_string();
    let parsed = Jaco::parse(&jaco).map_err(|error| {
        let text = Text {
            name: "jaco.yaml",
            path: &shown,
            bytes: &jaco,
        };
        excerpt::attach(error.into(), &[text])
    })?;
    let directory = directory(jaco_path);
    let source = match compose {
        Some(path) if path == Path::new("-") => Source::stdin()?,
        Some(path) => Source::file(path)?,
        None => Source::file(&beside(directory)?)?,
    };
    let mut unset = BTreeSet::new();
    let variables = match &parsed.environment {
        Some(path) => environment(&directory.join(path), &mut unset)?,
        None => BTreeMap::new(),
    };
    let interpolated = manifest::interpolate(&source.bytes, &source.path, &variables)
        .map_err(|error| interpolation_failed(&error, &source))?;
    unset.extend(interpolated.unset);
    let folded = fold(&interpolated.bytes, source.directory.as_deref())?;
    unset.extend(folded.unset);

    let mut warnings: Vec<String> = unset
        .iter()
        .map(|name| format!("variable {name} is not set, so it is empty"))
        .collect();
    // Validation errors are ignored: the daemon decides and may be newer. Only the warnings are
    // used.
    warnings.extend(manifest::validate(Some(&jaco), Some(&folded.bytes)).unwrap_or_default());
    Ok(Manifests {
        deployment: parsed.deployment,
        jaco_path: shown,
        compose_edited: folded.bytes != source.bytes,
        images: images(&folded.bytes),
        compose_path: source.path,
        jaco,
        compose: folded.bytes,
        warnings,
    })
}

/// A compose file before resolution.
struct Source {
    path: String,
    /// Base of its relative paths; `None` for stdin.
    directory: Option<PathBuf>,
    bytes: Vec<u8>,
}

impl Source {
    fn file(path: &Path) -> Result<Self, Failure> {
        Ok(Self {
            path: path.display().to_string(),
            directory: Some(directory(path).to_owned()),
            bytes: read(path)?,
        })
    }

    fn stdin() -> Result<Self, Failure> {
        let mut bytes = Vec::new();
        io::stdin()
            .lock()
            .read_to_end(&mut bytes)
            .map_err(|error| {
                Failure::new(
                    Local::FileError,
                    format!("read the compose file from stdin: {error}"),
                )
            })?;
        Ok(Self {
            path: "stdin".to_owned(),
            directory: None,
            bytes,
        })
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

fn beside(directory: &Path) -> Result<PathBuf, Failure> {
    let mut candidates = COMPOSE_NAMES.iter().map(|name| directory.join(name));
    candidates.find(|path| path.is_file()).ok_or_else(|| {
        let shown = if directory == Path::new("") {
            Path::new(".")
        } else {
            directory
        };
        let message = format!(
            "no compose file found next to jaco.yaml in {}; name one with --compose",
            shown.display()
        );
        Failure::new(Local::FileError, message)
            .with("directory", shown.display())
            .with("tried", COMPOSE_NAMES.join(" "))
    })
}

fn environment(
    path: &Path,
    unset: &mut BTreeSet<String>,
) -> Result<BTreeMap<String, String>, Failure> {
    let failed = |why: &dyn std::fmt::Display| {
        let message = format!("load environment file {}: {why}", path.display());
        Failure::new(Local::EnvFileError, message).with("path", path.display())
    };
    let bytes = fs::read(path).map_err(|error| failed(&error))?;
    let variables = env_file::parse(&bytes, |_| None)
        .map_err(|error| failed(&error).with("line", error.line))?;
    unset.extend(variables.unset);
    Ok(variables.values)
}

fn interpolation_failed(error: &interpolate::Error, source: &Source) -> Failure {
    let failure = Failure::new(Local::InterpolationFailed, chain(error)).with("file", &source.path);
    let at = match error {
        interpolate::Error::Yaml { source, .. } => source.at,
        interpolate::Error::SecondDocument { at, .. }
        | interpolate::Error::Template { at, .. }
        | interpolate::Error::DuplicateKey { at, .. } => *at,
    };
    let failure = failure.with("line", at.line).with("col", at.col);
    excerpt::attach(
        failure,
        &[Text {
            name: &source.path,
            path: &source.path,
            bytes: &source.bytes,
        }],
    )
}

fn fold(compose: &[u8], directory: Option<&Path>) -> Result<env_file::Folded, Failure> {
    let result = match directory {
        Some(directory) => {
            let mut read = |path: &str| fs::read(directory.join(path));
            env_file::fold(compose, Some(&mut read))
        }
        None => env_file::fold(compose, None),
    };
    result.map_err(|error| {
        let failure = Failure::new(Local::EnvFileError, chain(&error));
        match &error {
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
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn with(files: &[(&str, &str)]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            for (name, content) in files {
                fs::write(dir.path().join(name), content).unwrap();
            }
            Self(dir)
        }

        fn resolve(&self) -> Result<Manifests, Failure> {
            manifests(&self.0.path().join("jaco.yaml"), None)
        }
    }

    const JACO: (&str, &str) = ("jaco.yaml", "deployment: app\n");
    const PLAIN: &str = "services:\n  web: {image: nginx}\n";

    #[test]
    fn first_default_compose_file_is_used() {
        let files: Vec<_> = COMPOSE_NAMES.iter().map(|name| (*name, PLAIN)).collect();
        for from in 0..COMPOSE_NAMES.len() {
            let dir = Dir::with(&[&[JACO], &files[from..]].concat());
            let found = dir.resolve().unwrap();
            assert!(
                found
                    .compose_path
                    .ends_with(&format!("/{}", COMPOSE_NAMES[from]))
            );
            assert_eq!(
                (found.compose.as_slice(), found.compose_edited),
                (PLAIN.as_bytes(), false)
            );
            assert_eq!(found.images["web"], "nginx");
        }
        let failure = Dir::with(&[JACO]).resolve().err().unwrap();
        assert_eq!(failure.code, "file_error");
        assert!(failure.message.contains("no compose file found next to"));
    }

    #[test]
    fn variables_and_env_files_are_resolved() {
        let dir = Dir::with(&[
            ("jaco.yaml", "deployment: app\nenvironment: vars\n"),
            ("vars", "TAG=1.2\n"),
            ("web.env", "A=1\n"),
            (
                "compose.yml",
                "services:\n  web:\n    image: nginx:${TAG}\n    env_file: web.env\n    command: echo $NO\n",
            ),
        ]);
        let found = dir.resolve().unwrap();
        assert!(found.compose_edited);
        assert_eq!(found.images["web"], "nginx:1.2");
        let project = Project::parse(&found.compose).unwrap();
        assert_eq!(
            project.services["web"].environment["A"].as_deref(),
            Some("1")
        );
        assert!(
            found.warnings.iter().any(|warning| warning.contains("NO")),
            "{:?}",
            found.warnings
        );
    }

    #[test]
    fn error_names_the_faulty_file() {
        let environment = ("jaco.yaml", "deployment: app\nenvironment: vars\n");
        let folded = (
            "compose.yml",
            "services:\n  web: {image: i, env_file: gone}\n",
        );
        let template = (
            "compose.yml",
            "services:\n  web:\n    image: i\n    user: ${DB:?need db}\n",
        );
        for (files, code, word) in [
            (vec![], "file_error", "jaco.yaml"),
            (
                vec![("jaco.yaml", "deployment: [\n")],
                "parse_failed",
                "line",
            ),
            (
                vec![("jaco.yaml", "deployment: a\nnope: 1\n")],
                "validation_failed",
                "nope",
            ),
            (
                vec![environment, ("compose.yml", PLAIN)],
                "env_file_error",
                "load environment file",
            ),
            (
                vec![environment, ("vars", "A='\n"), ("compose.yml", PLAIN)],
                "env_file_error",
                "load environment file",
            ),
            (vec![JACO, folded], "env_file_error", "resolve env_file"),
            (
                vec![JACO, template],
                "interpolation_failed",
                "line 4 col 11",
            ),
        ] {
            let failure = Dir::with(&files).resolve().err().unwrap();
            assert_eq!(failure.code, code, "{}", failure.message);
            assert!(failure.message.contains(word), "{}", failure.message);
        }
    }

    #[test]
    fn template_error_shows_its_line() {
        let template = (
            "compose.yml",
            "services:\n  web:\n    image: i\n    user: ${DB:?need db}\n",
        );
        let failure = Dir::with(&[JACO, template]).resolve().err().unwrap();
        assert!(
            failure
                .message
                .contains("interpolate ${DB} at line 4 col 11")
        );
        assert!(
            failure
                .message
                .ends_with("required variable DB is missing a value: need db")
        );
        assert_eq!(
            failure.excerpt.as_deref(),
            Some(" 4 |     user: ${DB:?need db}\n   |           ^\n")
        );
    }
}
