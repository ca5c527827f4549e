use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::manifest::compose::Project;

/// Files by absolute path.
struct Disk(HashMap<PathBuf, Vec<u8>>);

impl Disk {
    fn of(files: &[(&str, &str)]) -> Self {
        let files = files
            .iter()
            .map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec()));
        Self(files.collect())
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let bytes = self.0.get(path).cloned();
        bytes.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn given(&self, paths: &[&str]) -> Vec<Given> {
        let given = paths.iter().map(|path| Given {
            path: PathBuf::from(path),
            bytes: self.read(Path::new(path)).unwrap(),
        });
        given.collect()
    }

    /// Resolves files in `/p` with some variables.
    fn resolve(&self, paths: &[&str], profiles: &[&str]) -> Result<Resolved, ResolveError> {
        let options = Options {
            directory: Some("/p".into()),
            home: Some("/home/me".into()),
            variables: [("TAG".to_owned(), "1.2".to_owned())].into(),
            profiles: profiles.iter().map(|&profile| profile.to_owned()).collect(),
        };
        let mut read = |path: &Path| self.read(path);
        resolve(self.given(paths), &options, &mut read)
    }

    fn text(&self, paths: &[&str]) -> String {
        let resolved = self.resolve(paths, &[]);
        let resolved = resolved.unwrap_or_else(|error| panic!("{error}"));
        String::from_utf8(resolved.bytes).unwrap()
    }

    fn fault(&self, paths: &[&str]) -> Error {
        match self.resolve(paths, &[]) {
            Err(ResolveError::Invalid(error)) => error,
            other => panic!("{other:?}"),
        }
    }
}

const MAIN: &str = "/p/compose.yaml";

/// Merges two files and returns the service `web` of the result.
fn merged(base: &str, over: &str) -> String {
    let indent = |text: &str| text.replace('\n', "\n    ");
    let file = |text: &str| format!("services:\n  web:\n    {}\n", indent(text));
    let (base, over) = (file(base), file(over));
    let disk = Disk::of(&[(MAIN, &base), ("/p/over.yaml", &over)]);
    let text = disk.text(&[MAIN, "/p/over.yaml"]);
    let web = text.strip_prefix("services:\n  web:\n").unwrap();
    let lines = web.lines().map(|line| line.strip_prefix("    ").unwrap());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn file_without_references_is_passed_on() {
    let text = "# A comment.\nservices:\n  web: {image: nginx}\n";
    let disk = Disk::of(&[(MAIN, text)]);
    assert_eq!(disk.text(&[MAIN]), text);
    assert!(!disk.resolve(&[MAIN], &[]).unwrap().is_edited());
}

#[test]
fn empty_file_is_passed_on() {
    let disk = Disk::of(&[(MAIN, "")]);
    let resolved = disk.resolve(&[MAIN], &[]).unwrap();
    assert!(resolved.bytes.is_empty() && !resolved.is_edited());
}

#[test]
fn later_files_are_merged_by_key() {
    for (base, over, expected) in [
        ("image: a", "image: b", "image: b"),
        ("image: a", "user: b", "image: a\nuser: b"),
        ("command: [a, b]", "command: c", "command: c"),
        ("entrypoint: a", "entrypoint: [b]", "entrypoint:\n  - b"),
        (
            "environment: {A: 1, B: 2}",
            "environment: [B=3, C]",
            "environment:\n  A: 1\n  B: \"3\"\n  C: null",
        ),
        ("labels: [a=b]", "labels: {a: c}", "labels:\n  a: c"),
        (
            "ports: ['80:80']",
            "ports: ['81:81', '80:80/tcp']",
            "ports:\n  - \"80:80/tcp\"\n  - \"81:81\"",
        ),
        (
            "volumes: ['a:/x', 'b:/y']",
            "volumes: ['c:/x']",
            "volumes:\n  - \"c:/x\"\n  - \"b:/y\"",
        ),
        (
            "depends_on: [db]",
            "depends_on: {files: {condition: service_healthy}}",
            "depends_on:\n  db:\n    condition: \"service_started\"\n  files:\n    condition: service_healthy",
        ),
        (
            "networks: [a]",
            "networks: {b: {aliases: [x]}}",
            "networks:\n  a: null\n  b:\n    aliases:\n      - x",
        ),
        (
            "dns: 1.1.1.1",
            "dns: [2.2.2.2]",
            "dns:\n  - 1.1.1.1\n  - 2.2.2.2",
        ),
        (
            "logging: {driver: a, options: {x: 1}}",
            "logging: {driver: b}",
            "logging:\n  driver: b",
        ),
        (
            "logging: {driver: a, options: {x: 1}}",
            "logging: {options: {y: 2}}",
            "logging:\n  driver: a\n  options:\n    x: 1\n    y: 2",
        ),
        (
            "build: .",
            "build: {target: x}",
            "build:\n  context: \".\"\n  target: x",
        ),
        (
            "healthcheck: {test: [CMD, a], retries: 1}",
            "healthcheck: {test: b}",
            "healthcheck:\n  test: b\n  retries: 1",
        ),
        (
            "ulimits: {nofile: {soft: 1, hard: 2}}",
            "ulimits: {nofile: 5}",
            "ulimits:\n  nofile: 5",
        ),
        ("cap_add: [A]", "cap_add: [A, B]", "cap_add:\n  - A\n  - B"),
        (
            "ports: ['80:80']",
            "ports: !override ['81:81']",
            "ports:\n  - \"81:81\"",
        ),
        ("image: a\nports: ['80:80']", "ports: !reset []", "image: a"),
        ("image: a\nuser: x", "user: !reset", "image: a"),
        (
            "environment: {A: 1, B: 2}",
            "environment: {A: !reset null}",
            "environment:\n  B: 2",
        ),
    ] {
        assert_eq!(merged(base, over), expected, "{base} | {over}");
    }
}

#[test]
fn values_that_cannot_be_merged_are_refused() {
    let disk = Disk::of(&[
        (MAIN, "services: {web: {deploy: {replicas: 1}}}"),
        ("/p/over.yaml", "services:\n  web:\n    deploy: [x]\n"),
    ]);
    let error = disk.fault(&[MAIN, "/p/over.yaml"]);
    assert!(
        error.message.contains("services.web.deploy is a list here"),
        "{error}"
    );
    assert_eq!(error.details["file"], "/p/over.yaml");
    assert_eq!(
        (&*error.details["line"], &*error.details["col"]),
        ("3", "13")
    );
}

#[test]
fn variables_are_replaced_in_every_file() {
    let disk = Disk::of(&[
        (MAIN, "services: {web: {image: 'a:${TAG}'}}"),
        ("/p/over.yaml", "services: {web: {user: $NO}}"),
    ]);
    let resolved = disk.resolve(&[MAIN, "/p/over.yaml"], &[]).unwrap();
    assert_eq!(Vec::from_iter(resolved.unset), ["NO"]);
    let project = Project::parse(&resolved.bytes).unwrap();
    assert_eq!(project.services["web"].image.as_deref(), Some("a:1.2"));
}

#[test]
fn services_extend_others() {
    let disk = Disk::of(&[
        (
            MAIN,
            "services:\n  web: {extends: {file: ../lib/base.yaml, service: app}, ports: ['81:81']}\n  \
             job: {extends: web, command: run}\n",
        ),
        (
            "/lib/base.yaml",
            "services:\n  app: {extends: common, volumes: ['./data:/data'], env_file: app.env}\n  \
             common: {image: 'a:${TAG}', ports: ['80:80']}\n",
        ),
        ("/lib/app.env", "A=1\n"),
    ]);
    let expected = "services:\n  web:\n    image: \"a:1.2\"\n    ports:\n      - \"80:80\"\n      - \"81:81\"\n    \
                    volumes:\n      - \"/lib/data:/data\"\n    environment:\n      A: \"1\"\n  \
                    job:\n    image: \"a:1.2\"\n    ports:\n      - \"80:80\"\n      - \"81:81\"\n    \
                    volumes:\n      - \"/lib/data:/data\"\n    command: run\n    environment:\n      A: \"1\"\n";
    assert_eq!(disk.text(&[MAIN]), expected);
}

#[test]
fn reset_acts_on_the_extended_service() {
    let disk = Disk::of(&[(
        MAIN,
        "services:\n  web: {extends: base, ports: !reset [], user: !override b}\n  \
         base: {image: a, ports: ['80:80'], user: a}\n",
    )]);
    let text = disk.text(&[MAIN]);
    assert!(
        text.starts_with("services:\n  web:\n    image: a\n    user: b\n  base:"),
        "{text}"
    );
}

#[test]
fn last_entry_counts_over_several_levels() {
    let text = "services:\n  web: {extends: middle, devices: [/dev/a]}\n  \
                middle: {extends: root, devices: ['/dev/b:/dev/a'], image: x}\n  \
                root: {image: x, devices: [/dev/a]}\n";
    let text = Disk::of(&[(MAIN, text)]).text(&[MAIN]);
    let project = Project::parse(text.as_bytes()).unwrap();
    let source = |service: &str| project.services[service].devices[0].source.clone();
    assert_eq!(source("web"), "/dev/a");
    assert_eq!(source("middle"), "/dev/b");
    assert_eq!(project.services["web"].devices.len(), 1);
}

#[test]
fn invalid_extends_are_refused() {
    for (services, words) in [
        ("web: {extends: web}", "web -> web"),
        (
            "web: {extends: a}\n  a: {extends: b}\n  b: {extends: web}",
            "web -> a -> b -> web",
        ),
        ("web: {extends: wbe}\n  wbe2: {}", "did you mean \"wbe2\""),
        ("web: {extends: {file: other.yaml}}", "names no service"),
        (
            "web: {extends: {service: a, from: b}}",
            "has no key \"from\"",
        ),
        ("web: {extends: [a]}", "not a list"),
        (
            "web: {extends: {service: a, file: 'https://x/y.yaml'}}",
            "read from this machine only",
        ),
    ] {
        let text = format!("services:\n  {services}\n");
        let error = Disk::of(&[(MAIN, &text)]).fault(&[MAIN]);
        assert!(error.message.contains(words), "{services}: {error}");
        assert_eq!(error.details["file"], MAIN);
        assert!(error.details.contains_key("line"));
    }
    let text = "services: {web: {extends: {service: a, file: gone.yaml}}}";
    let error = Disk::of(&[(MAIN, text)]).resolve(&[MAIN], &[]).unwrap_err();
    assert_eq!(error.to_string(), "read /p/gone.yaml");
}

#[test]
fn extends_across_files_end_in_a_cycle() {
    let disk = Disk::of(&[
        (
            MAIN,
            "services: {web: {extends: {file: b.yaml, service: web}}}",
        ),
        (
            "/p/b.yaml",
            "services: {web: {extends: {file: compose.yaml, service: web}}}",
        ),
    ]);
    let error = disk.fault(&[MAIN]);
    assert!(error.message.contains("extend each other"), "{error}");
}

#[test]
fn included_files_are_projects_of_their_own() {
    let disk = Disk::of(&[
        (
            MAIN,
            "include: [db/compose.yaml, {path: [x/a.yaml, x/b.yaml], project_directory: y}]\n\
             services: {web: {image: w, depends_on: [db]}}\n",
        ),
        (
            "/p/db/compose.yaml",
            "services: {db: {image: 'pg:${VERSION}-$TAG', volumes: ['./data:/d']}}\nvolumes: {v: }\n",
        ),
        ("/p/db/.env", "VERSION=16\nTAG=ignored\n"),
        (
            "/p/x/a.yaml",
            "services: {cache: {image: a, volumes: ['./c:/c']}}\n",
        ),
        ("/p/x/b.yaml", "services: {cache: {image: b}}\n"),
    ]);
    let resolved = disk.resolve(&[MAIN], &[]).unwrap();
    let project = Project::parse(&resolved.bytes).unwrap();
    assert_eq!(project.services["db"].image.as_deref(), Some("pg:16-1.2"));
    assert_eq!(project.services["cache"].image.as_deref(), Some("b"));
    assert!(project.volumes.contains_key("v"));
    let text = String::from_utf8(resolved.bytes).unwrap();
    assert!(
        text.contains("/p/db/data:/d") && text.contains("/p/y/c:/c"),
        "{text}"
    );
    let binds = resolved.relative_binds;
    assert!(!binds.to_home);
    assert_eq!(Vec::from_iter(binds.to_project), ["/p/db/data", "/p/y/c"]);
}

#[test]
fn invalid_includes_are_refused() {
    let other = "services: {web: {image: b}}";
    for (text, words) in [
        ("include: x\nservices: {}", "must be a list"),
        ("include: [{}]\nservices: {}", "needs a path"),
        (
            "include: [{path: a, paths: b}]\nservices: {}",
            "has no key \"paths\"",
        ),
        (
            "include: ['oci://x/y']\nservices: {}",
            "read from this machine only",
        ),
        (
            "include: [compose.yaml]\nservices: {}",
            "include each other",
        ),
        ("include: [loop.yaml]\nservices: {}", "include each other"),
        (
            "include: [other.yaml]\nservices: {web: {image: a}}",
            "services.web is in this file",
        ),
    ] {
        let disk = Disk::of(&[
            (MAIN, text),
            ("/p/other.yaml", other),
            ("/p/loop.yaml", "include: [loop.yaml]\nservices: {}"),
        ]);
        let error = disk.fault(&[MAIN]);
        assert!(error.message.contains(words), "{text}: {error}");
    }
}

#[test]
fn services_of_inactive_profiles_are_left_out() {
    let text = "services:\n  web: {image: a}\n  debug: {image: b, profiles: [debug, test]}\n  \
                job: {image: c, profiles: [jobs], depends_on: {debug: {condition: service_started, required: false}}}\n";
    let disk = Disk::of(&[(MAIN, text)]);
    let names = |profiles: &[&str]| {
        let resolved = disk.resolve(&[MAIN], profiles).unwrap();
        let project = Project::parse(&resolved.bytes).unwrap();
        Vec::from_iter(project.services.into_keys())
    };
    assert_eq!(names(&[]), ["web"]);
    assert_eq!(names(&["test"]), ["debug", "web"]);
    assert_eq!(names(&["jobs"]), ["job", "web"]);
    assert_eq!(names(&["*"]), ["debug", "job", "web"]);
    let inactive = disk.resolve(&[MAIN], &["jobs"]).unwrap().inactive;
    assert_eq!(inactive["debug"], ["debug", "test"]);
}

#[test]
fn services_that_need_an_inactive_one_are_refused() {
    for field in [
        "depends_on: [debug]",
        "links: ['debug:d']",
        "volumes_from: [debug]",
        "network_mode: 'service:debug'",
        "pid: 'service:debug'",
    ] {
        let text = format!(
            "services:\n  web: {{image: a, {field}}}\n  debug: {{image: b, profiles: [x, y]}}\n"
        );
        let error = Disk::of(&[(MAIN, &text)]).fault(&[MAIN]);
        assert!(
            error.message.contains("--profile x or --profile y"),
            "{error}"
        );
        assert_eq!(error.details["target_service"], "debug");
        assert_eq!(error.details["line"], "2");
    }
    let text = "services: {web: {image: a, profiles: debug}}";
    let error = Disk::of(&[(MAIN, text)]).fault(&[MAIN]);
    assert!(error.message.contains("must be a list of names"), "{error}");
}

#[test]
fn paths_are_those_of_the_client() {
    let text = "services:\n  web:\n    volumes: ['./a:/a', '../b:/b:ro', '~/c:/c', '/d:/d', 'v:/v', \
                {type: bind, source: e, target: /e}]\nvolumes:\n  v: {driver_opts: {type: none, o: bind, device: ./f}}\n";
    let text = Disk::of(&[(MAIN, text)]).text(&[MAIN]);
    for path in [
        "/p/a:/a",
        "/b:/b:ro",
        "/home/me/c:/c",
        "/d:/d",
        "v:/v",
        "/p/e",
        "/p/f",
    ] {
        assert!(
            text.contains(&format!("\"{path}\"")) || text.contains(&format!("- {path}\n")),
            "{path}: {text}"
        );
    }
}

#[test]
fn labels_and_raw_variables_come_from_files() {
    let disk = Disk::of(&[
        (
            MAIN,
            "services: {web: {image: a, label_file: l, labels: {b: 2}, env_file: [{path: e, format: raw}, {path: gone, required: false}]}}",
        ),
        ("/p/l", "a=1\nb=1\n"),
        ("/p/e", "# comment\nA=\"x\" # y\nB=$TAG\n"),
    ]);
    let project = Project::parse(&disk.resolve(&[MAIN], &[]).unwrap().bytes).unwrap();
    let web = &project.services["web"];
    assert_eq!((&*web.labels["a"], &*web.labels["b"]), ("1", "2"));
    assert_eq!(web.environment["A"].as_deref(), Some("\"x\" # y"));
    assert_eq!(web.environment["B"].as_deref(), Some("$TAG"));
}

#[test]
fn positions_lead_to_the_file_that_was_written() {
    let disk = Disk::of(&[
        (MAIN, "services:\n  web:\n    image: a\n"),
        (
            "/p/over.yaml",
            "# one\n# two\nservices:\n  web:\n    mem_limit: lots\n",
        ),
    ]);
    let resolved = disk.resolve(&[MAIN, "/p/over.yaml"], &[]).unwrap();
    let error = Project::parse(&resolved.bytes).unwrap_err();
    let place = |key: &str| error.details[key].parse::<u32>().unwrap();
    let (file, at) = resolved.origin(place("line"), place("col")).unwrap();
    assert_eq!(file.path, PathBuf::from("/p/over.yaml"));
    assert_eq!((at.line, at.col), (5, 16));
}

#[test]
fn faults_of_one_file_have_its_name() {
    for (text, words) in [
        ("# nothing", "empty compose file"),
        ("- a", "expected a mapping"),
        ("a: 1\n---\nb: 2", "here starts a second"),
        ("a: [", "compose load"),
        ("services: {web: {image: !other x}}", "unsupported tag"),
    ] {
        let error = Disk::of(&[(MAIN, text)]).fault(&[MAIN]);
        assert!(error.message.contains(words), "{text}: {error}");
        assert_eq!(error.details["file"], MAIN);
    }
}

#[test]
fn copies_by_extends_are_bounded() {
    let mut text = "services:\n  s0: {image: a, environment: {".to_owned();
    for index in 0..3000 {
        text += &format!("K{index}: v, ");
    }
    text += "}}\n";
    for index in 1..2000 {
        text += &format!("  s{index}: {{extends: s0}}\n");
    }
    let error = Disk::of(&[(MAIN, &text)]).fault(&[MAIN]);
    assert!(error.message.contains("copies included"), "{error}");
}

#[test]
fn chains_of_extends_are_bounded() {
    let mut text = "services:\n  s0: {image: a}\n".to_owned();
    for index in 1..200 {
        text += &format!("  s{index}: {{extends: s{}}}\n", index - 1);
    }
    // The services are resolved in file order here, each one from the one before it.
    assert!(Disk::of(&[(MAIN, &text)]).resolve(&[MAIN], &[]).is_ok());
    let mut text = "services:\n".to_owned();
    for index in 0..200 {
        text += &format!("  s{index}: {{extends: s{}}}\n", index + 1);
    }
    text += "  s200: {image: a}\n";
    let error = Disk::of(&[(MAIN, &text)]).fault(&[MAIN]);
    assert!(error.message.contains("100 steps"), "{error}");
}

#[test]
fn extension_of_jaco_is_returned() {
    let text = "name: shop-${TAG}\nx-jaco:\n  routes: [{domain: a.io, service: web, port: 80}]\nservices: {web: {image: a}}\n";
    let resolved = Disk::of(&[(MAIN, text)]).resolve(&[MAIN], &[]).unwrap();
    assert_eq!(resolved.name.as_deref(), Some("shop-1.2"));
    let jaco = String::from_utf8(resolved.jaco.unwrap()).unwrap();
    assert!(jaco.starts_with("routes:\n  - domain: a.io"), "{jaco}");
}

proptest! {
    #[test]
    fn arbitrary_files_do_not_panic(
        base in "(services:|include:|web:|db:| |\n|extends|profiles|ports|volumes|env_file|: |-|\\{|\\}|\\[|\\]|,|!reset|!override|\\./|/|a|\\$A){0,40}",
        over in "(services:|web:| |\n|extends|ports|environment|depends_on|: |-|\\{|\\}|\\[|\\]|,|!reset|!override|=|a){0,40}",
    ) {
        let disk = Disk::of(&[(MAIN, &base), ("/p/a", &over)]);
        let _ = disk.resolve(&[MAIN, "/p/a"], &["a"]);
    }

    #[test]
    fn merging_a_file_over_itself_changes_nothing(
        ports in prop::collection::vec(1..9_u16, 0..4),
        env in prop::collection::btree_map("[A-C]", "[a-z]{0,2}", 0..3),
    ) {
        let ports = ports.iter().map(|port| format!("'{port}:{port}'"));
        let ports = ports.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ");
        let env = env.iter().map(|(key, value)| format!("{key}: '{value}'"));
        let env = env.collect::<Vec<_>>().join(", ");
        let text = format!("services: {{web: {{image: a, ports: [{ports}], environment: {{{env}}}}}}}");
        let disk = Disk::of(&[(MAIN, &text), ("/p/b", &text)]);
        let once = Project::parse(&disk.resolve(&[MAIN], &[]).unwrap().bytes).unwrap();
        let mut twice = Project::parse(&disk.resolve(&[MAIN, "/p/b"], &[]).unwrap().bytes).unwrap();
        // Positions are those of the merged text.
        for (port, other) in twice.services.get_mut("web").unwrap().ports.iter_mut().zip(&once.services["web"].ports) {
            port.at = other.at;
        }
        prop_assert_eq!(once, twice);
    }
}

#[test]
fn files_of_configs_and_secrets_are_found() {
    let disk = Disk::of(&[(
        MAIN,
        "services: {web: {image: w, configs: [a], secrets: [b, c], volumes: ['~/x:/x', './y:/y']}}\n\
         configs: {a: {file: ./a.conf}}\n\
         secrets: {b: {file: ../b}, c: {content: 'hunter2 $TAG'}}\n",
    )]);
    let resolved = disk.resolve(&[MAIN], &[]).unwrap();
    let text = String::from_utf8(resolved.bytes.clone()).unwrap();
    assert!(
        text.contains("/p/a.conf") && text.contains("file: \"/b\""),
        "{text}"
    );
    assert!(!text.contains("hunter2") && text.contains(HIDDEN), "{text}");
    assert_eq!(resolved.secrets["c"].expose(), "hunter2 1.2");
    assert!(resolved.relative_binds.to_home);
    assert_eq!(
        Vec::from_iter(&resolved.relative_binds.to_project),
        ["/p/y"]
    );
}

#[test]
fn later_config_replaces_one_of_the_same_target() {
    let over = "/p/over.yaml";
    let disk = Disk::of(&[
        (
            MAIN,
            "services: {web: {image: w, configs: [a, b], secrets: [s]}}\n\
             configs: {a: {file: a}, b: {file: b}, c: {file: c}}\nsecrets: {s: {file: s}}\n",
        ),
        (
            over,
            "services: {web: {configs: [{source: c, target: /a}], \
             secrets: [{source: s, target: /run/secrets/s, mode: 0400}]}}\n",
        ),
    ]);
    let resolved = disk.resolve(&[MAIN, over], &[]).unwrap();
    let project = Project::parse(&resolved.bytes).unwrap();
    let web = &project.services["web"];
    let configs: Vec<_> = web
        .configs
        .iter()
        .map(|one| (&*one.source, &*one.target))
        .collect();
    assert_eq!(configs, [("c", "/a"), ("b", "/b")]);
    assert_eq!(web.secrets.len(), 1);
    assert_eq!(web.secrets[0].mode, 0o400);
}
