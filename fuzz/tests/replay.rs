//! Replays every input of the corpus.

use std::{fs, panic, path::PathBuf};

use jaco_fuzz::TARGETS;

fn corpus() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

#[test]
fn every_corpus_input_keeps_its_property() {
    let mut broken = Vec::new();
    for (name, target) in TARGETS {
        let mut inputs: Vec<_> = fs::read_dir(corpus().join(name)).unwrap().collect();
        assert!(!inputs.is_empty(), "{name} has no corpus");
        inputs.sort_by_key(|input| input.as_ref().unwrap().file_name());
        for input in inputs {
            let path = input.unwrap().path();
            let data = fs::read(&path).unwrap();
            if panic::catch_unwind(|| target(&data)).is_err() {
                broken.push(path);
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_corpus_and_program_has_a_target() {
    let mut names: Vec<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
    names.sort();
    let list = |dir: &str| {
        let entries = fs::read_dir(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(dir));
        let entries = entries.unwrap().map(|entry| entry.unwrap().path());
        let mut names: Vec<_> = entries
            .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    };
    assert_eq!(list("corpus"), names);
    assert_eq!(list("fuzz_targets"), names);
}
