//! Faults that a registry's proxy injects.

use bytes::Bytes;

/// Requests that a fault applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
    /// Every request.
    Everything,
    /// Those for manifests, by tag or by digest.
    Manifests,
    /// Those for layers and configurations.
    Blobs,
}

/// Effect of a fault on a matching request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Answers with this response, for any request.
    Answer {
        /// HTTP status.
        status: u16,
        /// Header `Content-Type`.
        content_type: &'static str,
        /// The whole body.
        body: Bytes,
    },
    /// Delays the request until the fault ends, then forwards it.
    Hang,
    /// Sends the body up to this byte, and the rest once the fault ends.
    StallAt(usize),
    /// Sends the body up to this byte, then closes the connection.
    CutAt(usize),
    /// Changes the byte at this position of the body.
    CorruptAt(usize),
    /// Replaces the media type of the answer.
    ContentType(&'static str),
}

impl Fault {
    /// An error answer in the format of the registry API.
    #[must_use]
    pub fn error(status: u16, code: &str, message: &str) -> Self {
        let body = serde_json::json!({"errors": [{"code": code, "message": message}]});
        Self::Answer {
            status,
            content_type: "application/json",
            body: body.to_string().into(),
        }
    }
}

/// The faults in force, the newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults(Vec<(RequestKind, String, Fault)>);

impl Faults {
    /// Adds a fault for a repository and all below it; for all repositories if it is empty.
    pub(super) fn add(&mut self, part: RequestKind, repository: &str, fault: Fault) {
        self.0.push((part, repository.to_owned(), fault));
    }

    /// The newest fault that applies to a path.
    pub(super) fn of(&self, path: &str) -> Option<&Fault> {
        let wanted = |part: &RequestKind, under: &String| {
            let (repository, found) = repository(path);
            let covered =
                under.is_empty() || repository.is_some_and(|name| has_path_prefix(name, under));
            covered && (*part == RequestKind::Everything || *part == found)
        };
        let mut faults = self.0.iter().rev();
        faults
            .find(|(part, under, _)| wanted(part, under))
            .map(|(_, _, fault)| fault)
    }
}

/// The repository of a path, and the part of it that is requested.
pub(super) fn repository(path: &str) -> (Option<&str>, RequestKind) {
    let Some(rest) = path.strip_prefix("/v2/") else {
        return (None, RequestKind::Everything);
    };
    for (mark, part) in [
        ("/manifests/", RequestKind::Manifests),
        ("/blobs/", RequestKind::Blobs),
    ] {
        if let Some((name, _)) = rest.rsplit_once(mark) {
            return (Some(name), part);
        }
    }
    (None, RequestKind::Everything)
}

/// Whether a name is `under` or lies below it, segment by segment.
pub(super) fn has_path_prefix(name: &str, under: &str) -> bool {
    name.strip_prefix(under)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_applies_to_its_part_and_repository() {
        let mut faults = Faults::default();
        faults.add(RequestKind::Manifests, "own", Fault::Hang);
        faults.add(RequestKind::Blobs, "", Fault::CutAt(1));
        for (path, fault) in [
            ("/v2/", None),
            ("/v2/own/app/manifests/1", Some(&Fault::Hang)),
            ("/v2/own/manifests/sha256:ab", Some(&Fault::Hang)),
            ("/v2/owner/app/manifests/1", None),
            ("/v2/owner/app/blobs/sha256:ab", Some(&Fault::CutAt(1))),
        ] {
            assert_eq!(faults.of(path), fault, "{path}");
        }
        faults.add(RequestKind::Everything, "", Fault::Hang);
        assert_eq!(faults.of("/v2/"), Some(&Fault::Hang));
    }
}
