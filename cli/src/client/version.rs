//! `jaco version`.

use serde::Serialize;

use super::{
    failure::Stop,
    output::{Ui, View},
};

/// The version of this program.
#[derive(Serialize)]
struct VersionView {
    version: &'static str,
}

impl View for VersionView {
    fn text(&self) -> String {
        format!("{}\n", self.version)
    }
}

/// Prints the version.
pub(crate) fn run(ui: &mut Ui<'_>) -> Result<(), Stop> {
    ui.data(&VersionView {
        version: crate::version(),
    })
}
