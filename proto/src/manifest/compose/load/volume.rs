//! Declared volumes.

use crate::{
    Error,
    manifest::compose::{VolumeDeclaration, keys::VOLUME},
    yaml::{Key, Node},
};

use super::{declaration, declared::Reader};

/// Reads one entry of `volumes:` at the top level.
pub(super) fn read(key: &Key, node: &Node, unresolved: bool) -> Result<VolumeDeclaration, Error> {
    let Some(map) = declaration("volumes", key, node, &VOLUME, unresolved)? else {
        return Ok(VolumeDeclaration::default());
    };
    let reader = Reader {
        table: "volumes",
        key,
        unresolved,
    };
    let (name, external) = reader.name_and_external(map)?;
    let foreign = |key: &str| !matches!(key, "name" | "external") && !key.starts_with("x-");
    if external && let Some((other, _)) = map.iter().find(|(key, _)| foreign(&key.text)) {
        let what = format!("is external, so {:?} has no place in it", other.text);
        return Err(reader.fail(&what, other.at));
    }
    Ok(VolumeDeclaration {
        name,
        external,
        driver: reader.text(map, "driver")?.unwrap_or_default(),
        driver_opts: reader.texts(map, "driver_opts")?,
        labels: reader.texts(map, "labels")?,
    })
}
