//! The certificate checks of both sides: the chain by webpki, membership by the [`Roster`].

use std::sync::Arc;

use rustls::{
    CertificateError, ClientConfig, DistinguishedName, ServerConfig, SignatureScheme,
    client::{
        ResolvesClientCert, Resumption, WebPkiServerVerifier,
        danger::{ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    server::{
        ClientHello, NoServerSessionStorage, ParsedCertificate, ResolvesServerCert,
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};

use super::{ALPN, Member, Roster};
use crate::{
    pki::{Fingerprint, certificates},
    tls::{CertSlot, Error, delegate_signatures, provider, roots},
};

/// Certificates after the leaf that are considered: the CA's, and a few for the same key.
const MAX_OTHER_CERTIFICATES: usize = 8;

/// The TLS configurations of both sides: TLS 1.3 with mutual authentication, without resumption or
/// early data.
pub(super) fn configurations(
    identity: &Arc<CertSlot>,
    ca_pem: &str,
    roster: Arc<dyn Roster>,
) -> Result<(ServerConfig, ClientConfig), Error> {
    let roots = roots(&certificates(ca_pem).map_err(|_| Error::Pem("CA certificate"))?)?;
    let servers = WebPkiServerVerifier::builder_with_provider(roots.clone(), provider())
        .build()
        .map_err(Error::Anchor)?;
    let clients = WebPkiClientVerifier::builder_with_provider(roots, provider())
        .build()
        .map_err(Error::Anchor)?;

    let versions = &[&rustls::version::TLS13];
    let mut server = ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(Error::Unusable)?
        .with_client_cert_verifier(Arc::new(ClientVerifier {
            path: clients,
            roster: roster.clone(),
        }))
        .with_cert_resolver(Arc::new(MemberCertResolver(identity.clone())));
    server.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would not present its certificate again.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    server.max_early_data_size = 0;

    let mut client = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(versions)
        .map_err(Error::Unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(ServerVerifier {
            path: servers,
            roster,
        }))
        .with_client_cert_resolver(Arc::new(MemberCertResolver(identity.clone())));
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.resumption = Resumption::disabled();
    client.enable_early_data = false;
    Ok((server, client))
}

/// Fingerprints of the certificates that identify the peer: `leaf`, and those of the `rest` that
/// were issued for the same key.
///
/// A renewed certificate keeps its key, so a roster that is behind or ahead of the renewal still
/// identifies the peer by another certificate for that key.
pub(super) fn fingerprints(
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
) -> Vec<Fingerprint> {
    let mut fingerprints = vec![Fingerprint::of(leaf)];
    if let Ok(parsed) = ParsedCertificate::try_from(leaf) {
        let key = parsed.subject_public_key_info();
        let same_key = |other: &&CertificateDer<'_>| {
            ParsedCertificate::try_from(*other)
                .is_ok_and(|other| other.subject_public_key_info() == key)
        };
        let others = rest.iter().take(MAX_OTHER_CERTIFICATES).filter(same_key);
        fingerprints.extend(others.map(|other| Fingerprint::of(other)));
    }
    fingerprints
}

/// The member whose fingerprint is one of `fingerprints`.
pub(super) fn find_member(
    roster: &dyn Roster,
    fingerprints: &[Fingerprint],
) -> Option<Arc<Member>> {
    fingerprints.iter().find_map(|print| roster.member(print))
}

/// The member that `leaf` belongs to; the certificate must carry its hostname.
fn member(
    roster: &dyn Roster,
    leaf: &CertificateDer<'_>,
    rest: &[CertificateDer<'_>],
) -> Result<Arc<Member>, rustls::Error> {
    // This error becomes the TLS alert `access_denied`, which no other check sends.
    let not_member = CertificateError::ApplicationVerificationFailure;
    let member = find_member(roster, &fingerprints(leaf, rest)).ok_or(not_member)?;
    let name = ServerName::try_from(member.hostname.as_str())
        .map_err(|_| CertificateError::NotValidForName)?;
    verify_server_name(&ParsedCertificate::try_from(leaf)?, &name)?;
    Ok(member)
}

/// Verifies the certificate of a dialled member.
#[derive(Debug)]
struct ServerVerifier {
    path: Arc<WebPkiServerVerifier>,
    roster: Arc<dyn Roster>,
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.path.verify_server_cert(leaf, rest, name, ocsp, now)?;
        let member = member(&*self.roster, leaf, rest)?;
        if name.to_str() != member.hostname.as_str() {
            return Err(CertificateError::NotValidForName.into());
        }
        Ok(verified)
    }

    delegate_signatures!(path);
}

/// Verifies the certificate of a dialling member.
#[derive(Debug)]
struct ClientVerifier {
    path: Arc<dyn ClientCertVerifier>,
    roster: Arc<dyn Roster>,
}

impl ClientCertVerifier for ClientVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.path.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        rest: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        let verified = self.path.verify_client_cert(leaf, rest, now)?;
        member(&*self.roster, leaf, rest)?;
        Ok(verified)
    }

    delegate_signatures!(path);
}

/// Presents the slot's chain for members.
#[derive(Debug)]
struct MemberCertResolver(Arc<CertSlot>);

impl ResolvesClientCert for MemberCertResolver {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(self.0.to_members())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

impl ResolvesServerCert for MemberCertResolver {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.to_members())
    }
}
