//! Golden tests of manifests: files of inputs with the expected results.
//!
//! ```text
//! == name of the case
//! -- web                 input: the keys of service `web`, beside a service `db`
//! ports: ["9001:80"]
//! -- apply               question, followed by the expected answer
//! tcp 9001 -> web:80
//! ```
//!
//! Inputs: `jaco` (default `deployment: d`), `compose` (a whole file) or `web` with `head` and
//! `file` (top-level keys before and after the services), `env` (an environment file), `envfile
//! NAME`, `other`. All other sections are questions; each runner answers those it supports. With
//! `UPDATE_GOLDEN=1` the answers are written to the files instead of compared: review the diff like
//! code.

use std::{fmt::Write as _, fs, path::PathBuf};

const INPUTS: [&str; 8] = [
    "jaco", "compose", "head", "web", "file", "env", "envfile", "other",
];

/// One test case.
pub(crate) struct Case {
    /// Position in the file, for messages.
    pub(crate) place: String,
    /// Name of the case.
    pub(crate) name: String,
    /// Inputs and questions in file order.
    pub(crate) sections: Vec<Section>,
}

/// An input or question of a case.
pub(crate) struct Section {
    /// First word of its line.
    pub(crate) kind: String,
    /// The rest of its line.
    pub(crate) argument: String,
    /// The lines that follow.
    pub(crate) text: String,
}

impl Case {
    /// Returns the input of a kind.
    pub(crate) fn input(&self, kind: &str) -> Option<&str> {
        let mut sections = self.sections.iter();
        let section = sections.find(|section| section.kind == kind);
        section.map(|section| section.text.as_str())
    }

    /// Returns the `jaco.yaml` of the case.
    pub(crate) fn jaco(&self) -> &str {
        self.input("jaco").unwrap_or("deployment: d\n")
    }

    /// Returns the compose file of the case.
    pub(crate) fn compose(&self) -> String {
        if let Some(text) = self.input("compose") {
            return text.to_owned();
        }
        let mut text = self.input("head").unwrap_or_default().to_owned();
        text += "services:\n  db:\n    image: pg\n  web:\n";
        match self.input("web") {
            Some(keys) if !keys.is_empty() => {
                for line in keys.lines() {
                    let _ = writeln!(text, "    {line}");
                }
            }
            Some(_) | None => text += "    image: nginx\n",
        }
        text + self.input("file").unwrap_or_default()
    }
}

fn directory() -> PathBuf {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../proto/tests/manifest");
    PathBuf::from(tests)
}

fn files() -> Vec<PathBuf> {
    let entries = fs::read_dir(directory()).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = paths
        .filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "case")
        })
        .collect();
    files.sort();
    files
}

/// Returns the cases of all files.
pub(crate) fn all() -> Vec<Case> {
    files().iter().flat_map(|path| read(path).1).collect()
}

/// Compares the answers to all questions of `kinds` with the expected ones; returns their number.
pub(crate) fn check(kinds: &[&str], answer: impl Fn(&Case, &Section) -> String) -> usize {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut asked = 0;
    let mut wrong = Vec::new();
    for path in files() {
        let (head, mut cases) = read(&path);
        for case in &mut cases {
            for index in 0..case.sections.len() {
                if !kinds.contains(&case.sections[index].kind.as_str()) {
                    continue;
                }
                asked += 1;
                let got = answer(case, &case.sections[index]);
                let section = &mut case.sections[index];
                if got.trim_end() == section.text.trim_end() {
                    continue;
                }
                let (place, name, kind) = (&case.place, &case.name, &section.kind);
                let expected = &section.text;
                wrong.push(format!(
                    "{place}: {name}: {kind}\n--- expected\n{expected}--- got\n{got}"
                ));
                section.text = got;
            }
        }
        if update {
            fs::write(&path, written(&head, &cases)).unwrap();
        }
    }
    assert!(
        update || wrong.is_empty(),
        "{} of {asked} answers differ:\n\n{}",
        wrong.len(),
        wrong.join("\n\n")
    );
    asked
}

/// Returns the text before the first case of a file, and its cases.
fn read(path: &PathBuf) -> (String, Vec<Case>) {
    let text = fs::read_to_string(path).unwrap();
    let file = path.file_name().unwrap().to_string_lossy();
    let mut head = String::new();
    let mut cases: Vec<Case> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let place = format!("{file}:{}", index + 1);
        if let Some(name) = line.strip_prefix("== ") {
            cases.push(Case {
                place,
                name: name.to_owned(),
                sections: Vec::new(),
            });
        } else if let Some(case) = cases.last_mut() {
            if let Some(line) = line.strip_prefix("-- ") {
                let (kind, argument) = line.split_once(' ').unwrap_or((line, ""));
                case.sections.push(Section {
                    kind: kind.to_owned(),
                    argument: argument.to_owned(),
                    text: String::new(),
                });
            } else {
                let section = case.sections.last_mut();
                let section = section.unwrap_or_else(|| panic!("{place}: text before a section"));
                section.text += line;
                section.text += "\n";
            }
        } else {
            head += line;
            head += "\n";
        }
    }
    for case in &mut cases {
        for section in &mut case.sections {
            let kept = section.text.trim_end_matches('\n').len();
            section.text.truncate(kept);
            if !section.text.is_empty() {
                section.text += "\n";
            }
        }
        let questions = case.sections.iter();
        let questions = questions.filter(|section| !INPUTS.contains(&section.kind.as_str()));
        assert!(questions.count() > 0, "{}: no question", case.place);
    }
    (head, cases)
}

fn written(head: &str, cases: &[Case]) -> String {
    let mut text = head.to_owned();
    for (index, case) in cases.iter().enumerate() {
        if index > 0 {
            text += "\n";
        }
        let _ = writeln!(text, "== {}", case.name);
        for section in &case.sections {
            let line = format!("-- {} {}", section.kind, section.argument);
            let _ = writeln!(text, "{}", line.trim_end());
            text += section.text.trim_end();
            if !section.text.is_empty() {
                text += "\n";
            }
        }
    }
    text
}
