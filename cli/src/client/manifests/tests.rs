use std::fs;

use super::{files::NAMES, *};

struct Dir(tempfile::TempDir);

impl Dir {
    fn with(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for (name, content) in files {
            fs::write(dir.path().join(name), content).unwrap();
        }
        Self(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn resolve(&self) -> Result<Manifests, Failure> {
        manifests(Some(&self.path("jaco.yaml")), &Sources::default())
    }

    /// Resolves compose files without a `jaco.yaml`.
    fn compose(&self, names: &[&str]) -> Result<Manifests, Failure> {
        let files = names.iter().map(|name| self.path(name)).collect();
        let sources = Sources {
            files,
            ..Sources::default()
        };
        manifests(None, &sources)
    }
}

const JACO: (&str, &str) = ("jaco.yaml", "deployment: app\n");
const PLAIN: &str = "services:\n  web: {image: nginx}\n";

#[test]
fn first_default_compose_file_is_used() {
    let files: Vec<_> = NAMES.iter().map(|name| (*name, PLAIN)).collect();
    for from in 0..NAMES.len() {
        let dir = Dir::with(&[&[JACO], &files[from..]].concat());
        let found = dir.resolve().unwrap();
        assert!(found.compose_path.ends_with(&format!("/{}", NAMES[from])));
        assert_eq!(
            (found.compose.as_slice(), found.resolved.is_edited()),
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
    assert!(found.resolved.is_edited());
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

#[test]
fn override_beside_the_file_is_merged() {
    let over = "services: {web: {user: b}}\n";
    for (name, beside, merged) in [
        ("compose.yaml", "compose.override.yaml", true),
        ("compose.yml", "compose.override.yaml", true),
        ("docker-compose.yml", "docker-compose.override.yml", true),
        ("docker-compose.yml", "compose.override.yml", false),
    ] {
        let dir = Dir::with(&[JACO, (name, PLAIN), (beside, over)]);
        let project = Project::parse(&dir.resolve().unwrap().compose).unwrap();
        let user = project.services["web"].user.as_deref();
        assert_eq!(user == Some("b"), merged, "{name} {beside}");
        // Files of the command line have no override.
        let named = dir.compose(&[name]).unwrap();
        assert_eq!(
            Project::parse(&named.compose).unwrap().services["web"].user,
            None
        );
    }
}

#[test]
fn deployment_has_the_name_of_file_or_directory() {
    let named = format!("name: my-shop\n{PLAIN}");
    let dir = Dir::with(&[("named.yaml", &named), ("plain.yaml", PLAIN)]);
    let found = dir.compose(&["named.yaml"]).unwrap();
    assert_eq!(found.deployment, "my-shop");
    assert_eq!(found.jaco, b"deployment: \"my-shop\"\n");
    let found = dir.compose(&["plain.yaml"]).unwrap();
    let directory = dir.0.path().file_name().unwrap().to_str().unwrap();
    assert_eq!(found.deployment, project_name(directory));
    assert_eq!(
        found.paths(),
        [dir.path("plain.yaml").display().to_string()]
    );
}

#[test]
fn nameless_manifest_gets_name_of_the_file() {
    let route = "routes: [{domain: a.io, service: web, port: 80}]";
    let named = format!("name: shop\n{PLAIN}");
    for (jaco, compose, expected) in [
        (route, named.as_str(), "shop"),
        ("deployment: app\n", named.as_str(), "app"),
    ] {
        let dir = Dir::with(&[("jaco.yaml", jaco), ("compose.yaml", compose)]);
        let found = dir.resolve().unwrap();
        assert_eq!(found.deployment, expected, "{jaco}");
        assert!(found.jaco.starts_with(jaco.as_bytes()), "its lines stay");
    }
    // A name that is given and wrong is no missing one, and a flow mapping has no room for it.
    for (jaco, code) in [
        ("deployment: ''\n", "validation_failed"),
        ("deployment: [a]\n", "parse_failed"),
        ("{acme: off}", "validation_failed"),
    ] {
        let dir = Dir::with(&[("jaco.yaml", jaco), ("compose.yaml", &named)]);
        let failure = dir.resolve().err().unwrap();
        assert_eq!(failure.code, code, "{jaco}");
    }
}

#[test]
fn manifest_beside_files_of_the_command_is_named() {
    let dir = Dir::with(&[JACO, ("compose.yaml", PLAIN)]);
    let found = dir.compose(&["compose.yaml"]).unwrap();
    let [warning] = found.warnings.as_slice() else {
        panic!("{:?}", found.warnings);
    };
    assert!(warning.contains("jaco.yaml is not used"), "{warning}");
    let embedded = format!("{PLAIN}x-jaco: {{acme: off}}\n");
    let dir = Dir::with(&[JACO, ("compose.yaml", &embedded)]);
    let found = dir.compose(&["compose.yaml"]).unwrap();
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
}

#[test]
fn compose_file_may_hold_the_deployment_manifest() {
    let text = "name: shop\nx-jaco:\n  environment: vars\n  routes: [{domain: a.io, service: web, port: 80}]\nservices: {web: {image: 'a:$TAG'}}\n";
    let dir = Dir::with(&[("compose.yaml", text), ("vars", "TAG=3\n")]);
    let found = dir.compose(&["compose.yaml"]).unwrap();
    assert_eq!(found.images["web"], "a:3");
    assert_eq!(Jaco::parse(&found.jaco).unwrap().routes.len(), 1);
    assert_eq!(found.deployment, "shop");
    let other = text.replace("environment: vars", "deployment: other");
    let dir = Dir::with(&[("compose.yaml", &other), JACO]);
    assert_eq!(dir.compose(&["compose.yaml"]).unwrap().deployment, "other");
    let failure = dir.resolve().err().unwrap();
    assert!(
        failure.message.contains("keep one of them"),
        "{}",
        failure.message
    );
    let wrong = text.replace("environment: vars", "replicas: 2");
    let dir = Dir::with(&[("compose.yaml", &wrong)]);
    let failure = dir.compose(&["compose.yaml"]).err().unwrap();
    assert_eq!(
        (&*failure.code, &*failure.details["file"]),
        ("validation_failed", "x-jaco")
    );
}

#[test]
fn variables_come_from_files_in_order_of_precedence() {
    let compose = (
        "compose.yaml",
        "services: {web: {image: 'a:${A}-${B-none}'}}\n",
    );
    let with = |jaco: &'static str, env_files: &[&str]| {
        let dir = Dir::with(&[
            ("jaco.yaml", jaco),
            compose,
            (".env", "A=default\n"),
            ("one", "A=one\nB=one\n"),
            ("two", "B=two-$A\n"),
        ]);
        let sources = Sources {
            env_files: env_files.iter().map(|name| dir.path(name)).collect(),
            ..Sources::default()
        };
        manifests(Some(&dir.path("jaco.yaml")), &sources)
    };
    let image = |found: Result<Manifests, Failure>| found.unwrap().images["web"].clone();
    assert_eq!(image(with(JACO.1, &[])), "a:default-none");
    assert_eq!(image(with(JACO.1, &["one"])), "a:one-one");
    assert_eq!(image(with(JACO.1, &["one", "two"])), "a:one-two-one");
    let named = "deployment: app\nenvironment: one\n";
    assert_eq!(image(with(named, &[])), "a:one-one");
    let failure = with(named, &["two"]).err().unwrap();
    assert_eq!(failure.code, "usage_error");
    let failure = with(JACO.1, &["gone"]).err().unwrap();
    assert_eq!(failure.code, "env_file_error");
}

#[test]
fn variables_of_the_shell_are_not_read() {
    let text = "services: {web: {image: 'a:$PATH', user: $NOWHERE}}\n";
    let dir = Dir::with(&[("compose.yaml", text)]);
    let found = dir.compose(&["compose.yaml"]).unwrap();
    assert_eq!(found.images["web"], "a:");
    let about = |name: &str| {
        let mut warnings = found.warnings.iter();
        warnings
            .find(|warning| warning.contains(name))
            .cloned()
            .unwrap()
    };
    assert!(about("PATH").contains("is set in this shell"));
    assert!(!about("NOWHERE").contains("shell"));
}

#[test]
fn relative_paths_are_absolute_with_one_warning() {
    let text = "services:\n  a: {image: a, volumes: ['./x:/x', './y:/y']}\n  b: {image: b, volumes: ['$HOME/z:/z']}\n";
    let dir = Dir::with(&[("compose.yaml", text)]);
    let found = dir.compose(&["compose.yaml"]).unwrap();
    found.check().unwrap();
    let base = fs::canonicalize(dir.0.path()).unwrap();
    let text = String::from_utf8_lossy(&found.compose).into_owned();
    assert!(text.contains(&format!("{}/x:/x", base.display())), "{text}");
    let local = |warning: &&String| warning.starts_with("bind paths are local");
    assert_eq!(found.warnings.iter().filter(local).count(), 1);
}

#[test]
fn manifest_about_an_inactive_service_is_refused() {
    let text = "services: {web: {image: a}, debug: {image: b, profiles: [dbg]}}\n";
    let dir = Dir::with(&[
        (
            "jaco.yaml",
            "deployment: app\nservices: [{name: debug, replicas: 2}]\n",
        ),
        ("compose.yaml", text),
    ]);
    let failure = dir.resolve().err().unwrap();
    assert!(
        failure.message.contains("--profile dbg"),
        "{}",
        failure.message
    );
    let sources = Sources {
        profiles: vec!["dbg".to_owned()],
        ..Sources::default()
    };
    assert!(manifests(Some(&dir.path("jaco.yaml")), &sources).is_ok());
}

#[test]
fn failures_name_the_file_that_was_written() {
    let over = "# one\nservices:\n  web:\n    mem_limit: lots\n";
    let dir = Dir::with(&[("a.yaml", PLAIN), ("b.yaml", over)]);
    let found = dir.compose(&["a.yaml", "b.yaml"]).unwrap();
    let failure = found.check().unwrap_err();
    assert_eq!(
        failure.details["file"],
        dir.path("b.yaml").display().to_string()
    );
    assert_eq!(failure.details["line"], "4");
    let excerpt = failure.excerpt.unwrap();
    assert!(
        excerpt.starts_with(" 4 |     mem_limit: lots\n"),
        "{excerpt}"
    );
}

#[test]
fn nothing_to_apply_is_said() {
    let failure = Dir::with(&[JACO]).resolve().err().unwrap();
    assert!(
        failure.message.contains("name one with -f"),
        "{}",
        failure.message
    );
    let failure = Dir::with(&[]).compose(&["gone.yaml"]).err().unwrap();
    assert_eq!(failure.code, "file_error");
}
