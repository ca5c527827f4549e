//! Ways in which a registry breaks.

use bytes::Bytes;

/// Which requests a fault is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Every request.
    Everything,
    /// Those for manifests, by tag or by digest.
    Manifests,
    /// Those for layers and configurations.
    Blobs,
}

/// What a spoiled request gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This answer, whatever was asked.
    Answer {
        /// HTTP status.
        status: u16,
        /// Header `Content-Type`.
        content_type: &'static str,
        /// The whole body.
        body: Bytes,
    },
    /// Nothing, until the fault is mended; then what was asked for.
    Hang,
    /// The body up to this byte, and the rest once the fault is mended.
    StallAt(usize),
    /// The body up to this byte, and then the end of the connection.
    CutAt(usize),
    /// The body with another byte in this place.
    SpoilAt(usize),
    /// The answer under another media type.
    ContentType(&'static str),
}

impl Fault {
    /// An error as registries tell it.
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

/// The faults of the moment, the newest last.
#[derive(Clone, Debug, Default)]
pub(super) struct Faults(Vec<(Part, String, Fault)>);

impl Faults {
    /// Adds a fault for a repository and everything below it; for all if it is empty.
    pub(super) fn add(&mut self, part: Part, repository: &str, fault: Fault) {
        self.0.push((part, repository.to_owned(), fault));
    }

    /// The newest fault that is for a request.
    pub(super) fn of(&self, path: &str) -> Option<&Fault> {
        let wanted = |part: &Part, under: &String| {
            let (repository, found) = repository(path);
            let covered = under.is_empty() || repository.is_some_and(|name| is_under(name, under));
            covered && (*part == Part::Everything || *part == found)
        };
        let mut faults = self.0.iter().rev();
        faults
            .find(|(part, under, _)| wanted(part, under))
            .map(|(_, _, fault)| fault)
    }
}

/// The repository a path is about, and what of it.
pub(super) fn repository(path: &str) -> (Option<&str>, Part) {
    let Some(rest) = path.strip_prefix("/v2/") else {
        return (None, Part::Everything);
    };
    for (mark, part) in [("/manifests/", Part::Manifests), ("/blobs/", Part::Blobs)] {
        if let Some((name, _)) = rest.rsplit_once(mark) {
            return (Some(name), part);
        }
    }
    (None, Part::Everything)
}

/// Whether a name is `under` or lies below it, segment by segment.
pub(super) fn is_under(name: &str, under: &str) -> bool {
    name.strip_prefix(under)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_meets_its_part_of_its_repository() {
        let mut faults = Faults::default();
        faults.add(Part::Manifests, "own", Fault::Hang);
        faults.add(Part::Blobs, "", Fault::CutAt(1));
        for (path, fault) in [
            ("/v2/", None),
            ("/v2/own/app/manifests/1", Some(&Fault::Hang)),
            ("/v2/own/manifests/sha256:ab", Some(&Fault::Hang)),
            ("/v2/owner/app/manifests/1", None),
            ("/v2/owner/app/blobs/sha256:ab", Some(&Fault::CutAt(1))),
        ] {
            assert_eq!(faults.of(path), fault, "{path}");
        }
        faults.add(Part::Everything, "", Fault::Hang);
        assert_eq!(faults.of("/v2/"), Some(&Fault::Hang));
    }
}
