//! Judge of the contents of files: each has a use, and each file has its content.

use std::collections::BTreeSet;

use jaco_proto::v1::MountedFile;
use jaco_state::State;

/// Contents, by deployment and id, that revisions mount.
pub(super) fn of_revisions(state: &State) -> BTreeSet<(String, String)> {
    let rows = state.deployments.values();
    let used = rows.flat_map(|row| {
        let previous = row.previous.iter().flat_map(|previous| &previous.services);
        let files = row
            .services
            .iter()
            .chain(previous)
            .flat_map(|spec| &spec.files);
        files.map(|file| key(&row.name, file))
    });
    used.collect()
}

fn key(deployment: &str, file: &MountedFile) -> (String, String) {
    (deployment.to_owned(), file.content_id.clone())
}

/// Describes the first content that an entry leaves missing, or that nothing mounts after it.
///
/// A pass that was planned from an earlier state may write a row whose content is gone: that replica
/// does not start before the next pass writes the row anew.
pub(super) fn wrong_content(before: &State, state: &State) -> Option<String> {
    let mut used = of_revisions(state);
    let is_missing = |key: &&(String, String)| !state.file_contents.contains_key(*key);
    if let Some((deployment, id)) = used.iter().find(is_missing) {
        return Some(format!("{deployment} mounts {id}, which is not there"));
    }
    for row in state.replicas_desired.values() {
        used.extend(row.files.iter().map(|file| key(&row.deployment, file)));
    }
    let was_there = |key: &&(String, String)| before.file_contents.contains_key(*key);
    let mut lost = used.iter().filter(is_missing).filter(was_there);
    if let Some((deployment, id)) = lost.next() {
        return Some(format!("{deployment} mounts {id}, which was removed"));
    }
    let mut stored = state.file_contents.keys();
    let unused = stored.find(|key| !used.contains(*key))?;
    Some(format!("nothing mounts {} of {}", unused.1, unused.0))
}
