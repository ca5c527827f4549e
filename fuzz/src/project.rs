//! Fuzzes the merge of compose files, `extends`, `include`, profiles and paths.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use jaco_proto::{
    manifest::{
        compose::Project,
        project::{Given, Options, ResolveError, Resolved, resolve},
    },
    yaml::Position,
};

use crate::{parts::parts, tree};

/// Input: a compose file, one that is merged over it, one that either may extend or include, and an
/// environment file for them.
///
/// The resolved text refers to no other file and no profile: resolved again it is itself. A fault has
/// a position in the file that it names, and so has every key of the text.
pub fn project(data: &[u8]) {
    let [first, second, other, env] = parts(data);
    let disk: BTreeMap<&str, &[u8]> = [
        ("/p/a.yaml", first),
        ("/p/b.yaml", second),
        ("/p/c.yaml", other),
        ("/p/e", env),
        ("/p/.env", env),
    ]
    .into();
    let names: &[&str] = match second {
        [] => &["/p/a.yaml"],
        _ => &["/p/a.yaml", "/p/b.yaml"],
    };
    let given: Vec<Given> = names
        .iter()
        .map(|name| Given {
            path: PathBuf::from(name),
            bytes: disk[name].to_vec(),
        })
        .collect();
    let options = Options {
        directory: Some("/p".into()),
        home: Some("/home".into()),
        variables: [("V".to_owned(), "v".to_owned())].into(),
        profiles: BTreeSet::from(["on".to_owned()]),
    };
    let mut read = |path: &Path| {
        let found = path.to_str().and_then(|path| disk.get(path));
        let missing = || io::Error::from(io::ErrorKind::NotFound);
        found.map(|bytes| bytes.to_vec()).ok_or_else(missing)
    };
    match resolve(given, &options, &mut read) {
        Ok(resolved) => assert_resolved(&resolved, &options),
        Err(ResolveError::Invalid(error)) => {
            assert!(!error.details.contains_key("file_number"), "{error:?}");
            let place = |key: &str| error.details.get(key)?.parse::<u32>().ok();
            let file = error.details.get("file").and_then(|file| disk.get(&**file));
            if let (Some(line), Some(col), Some(file)) = (place("line"), place("col"), file) {
                let at = Position { line, col, file: 0 };
                tree::assert_inside(file, at);
            }
        }
        Err(_) => {}
    }
}

fn assert_resolved(resolved: &Resolved, options: &Options) {
    if resolved.bytes.is_empty() {
        return;
    }
    let document = tree::read(&resolved.bytes).expect("a resolved text is a document");
    let root = document.root.expect("a resolved text has content");
    if resolved.is_edited() {
        for (key, _) in root.as_map().expect("a mapping").iter() {
            let origin = resolved.origin(key.at.line, key.at.col);
            let (file, at) = origin.expect("every key was written somewhere");
            tree::assert_inside(&file.bytes, at);
        }
    }
    // Variables may have values with `$` in them, which are expanded no more.
    if resolved.bytes.contains(&b'$') {
        return;
    }
    let again = Given {
        path: PathBuf::from("/p/resolved.yaml"),
        bytes: resolved.bytes.clone(),
    };
    let mut nothing = |path: &Path| panic!("a resolved text refers to {}", path.display());
    let again = resolve(vec![again], options, &mut nothing).expect("it is resolved");
    assert_eq!(
        String::from_utf8_lossy(&again.bytes),
        String::from_utf8_lossy(&resolved.bytes)
    );
    let _ = Project::parse(&resolved.bytes);
}
