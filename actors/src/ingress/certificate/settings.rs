//! Settings of the certificates of a node.

use jaco_net::acme::{Directory, DirectoryError};
use jaco_policy::ingress::certificate::store::Directories;

use super::AcmeAuthority;

/// Settings of the certificates of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSettings {
    /// Directories to order from.
    pub directories: Directories,
    /// Contact for domains whose deployments have none; may be empty.
    pub contact: String,
    /// Certificates in PEM that directories may verify under, beside the system's roots.
    pub extra_roots: Option<String>,
    /// Whether the addresses of a domain are asked before its first order.
    pub preflight: bool,
}

impl CertificateSettings {
    /// Creates an authority of the directories.
    ///
    /// # Errors
    /// [`DirectoryError`] if a directory cannot be verified or reached with these
    /// settings.
    pub fn authority(&self) -> Result<AcmeAuthority, DirectoryError> {
        let staging = self.directories.staging.as_ref();
        let urls = [Some(&self.directories.production), staging];
        let roots = self.extra_roots.as_deref();
        let directories = urls.into_iter().flatten();
        let directories = directories.map(|url| Directory::new(url, roots));
        let directories = directories.collect::<Result<Vec<_>, _>>()?;
        Ok(AcmeAuthority::new(directories))
    }
}
