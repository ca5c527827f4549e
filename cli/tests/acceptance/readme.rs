//! The commands of the README, run as it prints them.

use std::{
    fmt::Write as _,
    fs,
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    docker::Docker,
    lab::{Workdir, free_address},
};

const README: &str = include_str!("../../../README.md");

/// The text of a section, up to the next heading of its level.
fn section(heading: &str) -> &'static str {
    let start = README.find(&format!("\n## {heading}\n")).unwrap();
    let text = &README[start + 1..];
    text.split_once("\n## ")
        .map_or(text, |(section, _)| section)
}

/// Contents of the code blocks of a language.
fn blocks(text: &'static str, language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    let blocks = text.split(&*fence).skip(1);
    blocks
        .map(|rest| rest.split_once("```").unwrap().0)
        .collect()
}

/// A command of a console block, and the output that the README shows.
#[derive(Debug)]
struct Step {
    command: String,
    output: Vec<&'static str>,
}

fn steps(block: &'static str) -> Vec<Step> {
    let mut steps: Vec<Step> = Vec::new();
    let mut document_end = None;
    for line in block.lines() {
        match (document_end, line.strip_prefix("# ")) {
            (Some(end), _) => {
                writeln!(steps.last_mut().unwrap().command, "{line}").unwrap();
                document_end = (line != end).then_some(end);
            }
            (None, Some(command)) => {
                document_end = command
                    .split_once("<<'")
                    .map(|(_, end)| end.trim_end_matches('\''));
                let command = format!("{command}\n");
                steps.push(Step {
                    command,
                    output: Vec::new(),
                });
            }
            (None, None) => steps.last_mut().unwrap().output.push(line),
        }
    }
    steps
}

/// A script that runs the steps, fails at the first that fails, and repeats one with an output until
/// it prints lines of that shape: digits of ids differ.
fn script(steps: &[Step]) -> String {
    let mut script = String::new();
    for step in steps {
        if step.output.is_empty() {
            script += &step.command;
            continue;
        }
        let shape = |line: &&str| line.replace(|c: char| c.is_ascii_hexdigit(), ".");
        let shapes: Vec<_> = step.output.iter().map(shape).collect();
        let (command, count) = (step.command.trim_end(), shapes.len());
        writeln!(script, "expected=$'{}'", shapes.join("\\n")).unwrap();
        writeln!(
            script,
            "for attempt in $(seq 100); do\n  \
               printed=\"$({command} 2>&1 | tail -n {count} | sed 's/[0-9a-fA-F]/./g')\" && \
               [ \"$printed\" = \"$expected\" ] && break\n  sleep 0.2\ndone\n\
             [ \"$printed\" = \"$expected\" ] || {{ echo \"printed: $printed\"; exit 1; }}"
        )
        .unwrap();
    }
    script
}

/// The text with free ports in place of those that the README uses.
fn with_free_ports(text: String) -> String {
    ["17000", "17001", "18080"].iter().fold(text, |text, port| {
        text.replace(port, &free_address().port().to_string())
    })
}

#[test]
fn single_machine_is_set_up_by_hand() {
    let text = section("One machine, by hand");
    let steps: Vec<_> = blocks(text, "console")
        .into_iter()
        .flat_map(steps)
        .collect();
    assert!(steps.len() > 15, "{steps:#?}");
    let mut docker = Docker::new();
    let engine = docker.engine();
    let workdir = Workdir::new();
    let data = workdir.path("jaco");
    let settings = format!(
        "hostname: demo\ndocker_socket: unix://{}\nipam_pool: {}\n",
        engine.socket.display(),
        engine.pool
    );
    let commands = with_free_ports(script(&steps))
        .replace("/tmp/jaco", data.to_str().unwrap())
        .replace("/tmp/dockerd.log", "/dev/null")
        .replace("hostname: demo\n", &settings);
    // The binaries and the engine are there already.
    let script = format!(
        "set -eum\nmake() {{ :; }}\ndockerd() {{ exec sleep infinity; }}\n\
         trap 'kill -9 $(jobs -p) 2>/dev/null || true' EXIT\nPS4='README: '\nset -x\n{commands}"
    );
    let binaries = Path::new(env!("CARGO_BIN_EXE_jaco")).parent().unwrap();
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap());
    let script = script.replace("$HOME/.cache/jaco/target/debug", binaries.to_str().unwrap());
    let output = Command::new("bash")
        .args(["-c", &script])
        .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
        .env("PATH", path)
        .env("DOCKER_HOST", format!("unix://{}", engine.socket.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let log = fs::read_to_string(data.join("log")).unwrap_or_default();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let id = out
        .lines()
        .find_map(|line| line.strip_prefix("cluster_id: "));
    docker.cluster_id = id.unwrap_or_default().to_owned();
    docker.output_lines(&["rmi", "jaco-example/hello:1"]);
    assert!(output.status.success(), "{out}\n{err}\n{log}");
    assert!(!docker.cluster_id.is_empty(), "{out}");
    let left = docker.owned(&["ps", "-a"]);
    assert!(!data.exists() && left.is_empty(), "left: {left:?}");
}

#[test]
fn example_manifest_is_valid() {
    let workdir = Workdir::new();
    let manifest = blocks(section("Writing manifests"), "yaml")[0];
    workdir.file("jaco.yaml", 0o644, manifest);
    workdir.file(
        "compose.yml",
        0o644,
        "services:\n  web:\n    image: nginx:1\n",
    );
    workdir
        .jaco("validate --jaco jaco.yaml --compose compose.yml")
        .ok();
}

/// Paths of the files of the repository, from its root.
fn files(dir: &Path, prefix: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let path = format!("{prefix}/{name}");
        if entry.file_type().unwrap().is_file() {
            found.push(path);
        } else if !name.starts_with('.') && name != "target" {
            files(&entry.path(), &path, found);
        }
    }
}

#[test]
fn files_named_in_documents_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    files(root, "", &mut found);
    let mut count = 0;
    for document in ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"] {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let code = text.replace("```", "").replace('\n', " ");
        for name in code.split('`') {
            let is_path = [".rs", ".sh", ".py"].iter().any(|end| name.ends_with(end));
            if is_path && name.contains('/') && !name.contains(char::is_whitespace) {
                let named = format!("/{name}");
                assert!(
                    found.iter().any(|file| file.ends_with(&named)),
                    "{document}: {name}"
                );
                count += 1;
            }
        }
    }
    assert!(count > 50, "{count}");
}
