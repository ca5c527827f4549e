//! Compares the output of every command with the files in `tests/golden`.
//!
//! `NAME.table`, `NAME.json` and `NAME.yaml` are stdout in that format; `NAME.err` is stderr, or
//! `NAME.FORMAT.err` if it depends on the format. Empty output has no file.
//! `UPDATE_GOLDEN=1 cargo test -p jaco-cli golden` rewrites the files.

mod cases;
mod schema;
pub(super) mod setup;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::LazyLock,
};

use serde_json::Value;

use self::cases::{CASES, Case};
use super::{
    fake::{Captured, Fake, Script},
    output::{Format, Ui},
};

const FORMATS: [(Format, &str); 3] = [
    (Format::Table, "table"),
    (Format::Json, "json"),
    (Format::Yaml, "yaml"),
];

/// File contents by file name.
type Files = BTreeMap<String, String>;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The current output and the recorded files, which are rewritten first if `UPDATE_GOLDEN` is set.
static FILES: LazyLock<(Files, Files)> = LazyLock::new(|| {
    let printed = printed();
    if env::var_os("UPDATE_GOLDEN").is_some() {
        for name in read().keys().filter(|name| !printed.contains_key(*name)) {
            fs::remove_file(directory().join(name)).unwrap();
        }
        for (name, content) in &printed {
            fs::write(directory().join(name), content).unwrap();
        }
    }
    (printed, read())
});

fn recorded() -> &'static Files {
    &FILES.1
}

fn read() -> Files {
    let entries = fs::read_dir(directory()).unwrap();
    entries
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            (name, fs::read_to_string(path).unwrap())
        })
        .collect()
}

/// Runs one case in one format against a fake daemon of its own, as the process would.
fn run(runtime: &tokio::runtime::Runtime, case: &Case, format: &str) -> Captured {
    let server = runtime.block_on(Fake::start());
    server.script(|script: &mut Script| (case.setup)(script));
    let files = tempfile::tempdir().unwrap();
    setup::write_manifests(files.path());
    let dir = files.path().to_str().unwrap();
    let words = case.line.split(' ').map(|word| word.replace("DIR", dir));
    let socket = server.socket().display().to_string();
    let args = ["jaco", "--socket", &socket, "-o", format].map(str::to_owned);
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = super::run(
        args.into_iter().chain(words).map(Into::into),
        &mut Ui {
            out: &mut out,
            err: &mut err,
            format: Format::Table,
            quiet: false,
            err_columns: None,
            out_is_terminal: false,
        },
    );
    let text = |bytes: Vec<u8>| {
        let text = String::from_utf8(bytes).unwrap().replace(dir, "DIR");
        text.replace(setup::archive_digest(), "DIGEST")
    };
    let captured = Captured {
        out: text(out),
        err: text(err),
    };
    assert_eq!(status, case.status, "{} {format}: {captured:?}", case.name);
    captured
}

fn keep(files: &mut Files, name: &str, outputs: &[(&str, Captured)]) {
    for (format, output) in outputs.iter().filter(|(_, output)| !output.out.is_empty()) {
        files.insert(format!("{name}.{format}"), output.out.clone());
    }
    let same = outputs
        .iter()
        .all(|(_, output)| output.err == outputs[0].1.err);
    for (format, output) in outputs.iter().filter(|(_, output)| !output.err.is_empty()) {
        let file = match same {
            true => format!("{name}.err"),
            false => format!("{name}.{format}.err"),
        };
        files.insert(file, output.err.clone());
    }
}

fn printed() -> Files {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let mut files = Files::new();
    for case in CASES {
        let outputs = FORMATS.map(|(_, format)| (format, run(&runtime, case, format)));
        keep(&mut files, case.name, &outputs);
    }
    // The password comes from stdin, which a test cannot replace, so the function below is called.
    let outputs = FORMATS.map(|(format, name)| (name, runtime.block_on(setup::logged_in(format))));
    keep(&mut files, "registry-login", &outputs);
    files
}

#[test]
fn output_matches_the_golden_files() {
    let (printed, recorded) = &*FILES;
    for (name, content) in printed {
        let known = recorded.get(name).map(String::as_str).unwrap_or_default();
        assert_eq!(content, known, "{name}");
    }
    let stale = recorded.keys().find(|name| !printed.contains_key(*name));
    assert_eq!(stale, None, "no command has this output any more");
}

#[test]
fn every_command_has_golden_files() {
    use clap::CommandFactory;

    fn leaves(command: &clap::Command, path: &str, found: &mut Vec<String>) {
        let own = command
            .get_subcommands()
            .filter(|sub| sub.get_name() != "help");
        let below: Vec<_> = own.collect();
        if below.is_empty() || !command.is_subcommand_required_set() && !path.is_empty() {
            found.push(path.to_owned());
        }
        for sub in below {
            let path = format!("{path} {}", sub.get_name());
            leaves(sub, path.trim_start(), found);
        }
    }
    let mut commands = Vec::new();
    leaves(&super::args::Cli::command(), "", &mut commands);
    // Completion scripts and manual pages have tests of their own.
    commands.retain(|path| path != "completions" && path != "man");
    let names = recorded();
    for command in commands {
        let name = command.replace(' ', "-");
        for format in ["table", "json", "yaml"] {
            let file = format!("{name}.{format}");
            // `validate` prints nothing as a table if the manifests are valid.
            let silent = file == "validate.table";
            assert!(names.contains_key(&file) || silent, "{file}");
        }
    }
}

#[test]
fn json_has_the_documented_schema() {
    let files = recorded();
    let json = files.iter().filter(|(name, _)| name.ends_with(".json"));
    for (name, content) in json {
        let command = name.split('.').next().unwrap();
        let schema = schema::of(command).unwrap_or_else(|| panic!("{name} has no schema"));
        for document in schema::documents(content) {
            if let Err(problem) = schema.check(&document) {
                panic!("{name}: {problem}\n{content}");
            }
        }
    }
}

#[test]
fn yaml_equals_json() {
    let files = recorded();
    for (name, json) in files.iter().filter(|(name, _)| name.ends_with(".json")) {
        let yaml = &files[&name.replace(".json", ".yaml")];
        let documents: Vec<_> = yaml
            .split_inclusive('\n')
            .fold(vec![String::new()], |mut documents, line| {
                match line {
                    "---\n" => documents.push(String::new()),
                    line => documents.last_mut().unwrap().push_str(line),
                }
                documents
            })
            .iter()
            .filter(|text| !text.is_empty())
            .map(|text| schema::yaml(text))
            .collect();
        assert_eq!(documents, schema::documents(json), "{name}");
    }
}

#[test]
fn failures_print_one_error_report() {
    let files = recorded();
    for (name, report) in files.iter().filter(|(name, _)| name.ends_with("error.err")) {
        let lines: Vec<&str> = report
            .lines()
            .skip_while(|line| line.starts_with("warning: "))
            .collect();
        let code = lines[0].strip_prefix("Error: ").unwrap();
        let code = code.split(':').next().unwrap();
        assert!(
            code.chars().all(|c| c.is_ascii_lowercase() || c == '_'),
            "{name}"
        );
        let keys: Vec<&str> = lines[1..]
            .iter()
            .map(|line| line.split_once('=').unwrap().0)
            .collect();
        assert!(keys.iter().all(|key| key.starts_with("  ")), "{name}");
        assert!(keys.is_sorted(), "{name}");
        let printed = name.replace(".err", ".table");
        assert!(!files.contains_key(&printed), "{name}");
    }
}

/// A value that keeps the order of its keys.
#[derive(Clone, Debug, PartialEq)]
enum Document {
    Scalar(Value),
    List(Vec<Document>),
    Object(Vec<(String, Document)>),
}
