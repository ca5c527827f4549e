//! The certificate authority of a cluster.

use std::{
    net::IpAddr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jaco_proto::secret::SecretString;
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ED25519,
    PublicKeyData, SanType,
};
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, pem::PemObject};

use super::{
    Error, Fingerprint, LIFETIME, MAX_CLOCK_SKEW, NodeCert, NodeKey, check_hostname, params,
};

/// The common name of every cluster authority.
pub const COMMON_NAME: &str = "JACO Cluster CA";
/// Maximum number of addresses in one signing request.
pub const MAX_REQUEST_ADDRESSES: usize = 64;

/// The CA of one cluster: its certificate and its key.
pub struct ClusterCa {
    cert_pem: String,
    key_pem: SecretString,
    fingerprint: Fingerprint,
    not_before: SystemTime,
    issuer: Issuer<'static, KeyPair>,
}

impl ClusterCa {
    /// Generates a new CA, valid from [`MAX_CLOCK_SKEW`] before `now` for ten years.
    ///
    /// # Errors
    /// [`Error::Random`] or [`Error::Crypto`] when the machine cannot generate keys.
    pub fn generate(now: SystemTime) -> Result<Self, Error> {
        let key =
            KeyPair::generate_for(&PKCS_ED25519).map_err(Error::crypto("generate the CA key"))?;
        let mut params = params(now - MAX_CLOCK_SKEW, now + LIFETIME)?;
        params.distinguished_name = common_name(COMMON_NAME);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let cert = params
            .self_signed(&key)
            .map_err(Error::crypto("sign the CA certificate"))?;
        Self::from_pem(&cert.pem(), &SecretString::new(key.serialize_pem()))
    }

    /// Restores a CA from the PEM texts of its certificate and PKCS#8 key.
    ///
    /// # Errors
    /// [`Error::Pem`] if either does not parse; [`Error::Mismatch`] if the key is not the
    /// certificate's.
    pub fn from_pem(cert_pem: &str, key_pem: &SecretString) -> Result<Self, Error> {
        let key = KeyPair::from_pem(key_pem.expose()).map_err(|_| Error::Pem("CA key"))?;
        let der = CertificateDer::from_pem_slice(cert_pem.as_bytes())
            .map_err(|_| Error::Pem("CA certificate"))?;
        if public_key(&der)? != key.der_bytes() {
            return Err(Error::Mismatch("the CA key belongs to another certificate"));
        }
        let fingerprint = Fingerprint::of(&der);
        let not_before = not_before(&der)?;
        let issuer =
            Issuer::from_ca_cert_der(&der, key).map_err(|_| Error::Pem("CA certificate"))?;
        Ok(Self {
            cert_pem: cert_pem.to_owned(),
            key_pem: key_pem.clone(),
            fingerprint,
            not_before,
            issuer,
        })
    }

    /// The certificate as PEM.
    #[must_use]
    pub fn cert_pem(&self) -> &str {
        &self.cert_pem
    }

    /// The PKCS#8 key as PEM.
    #[must_use]
    pub fn key_pem(&self) -> &SecretString {
        &self.key_pem
    }

    /// SHA-256 of the certificate; the last field of every join token.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Issues the certificate of the node that bootstraps the cluster, for its existing key.
    ///
    /// # Errors
    /// [`Error::Hostname`] if the name cannot be a node's.
    pub fn issue(
        &self,
        key: &NodeKey,
        hostname: &str,
        ips: &[IpAddr],
        now: SystemTime,
    ) -> Result<NodeCert, Error> {
        check_hostname(hostname)?;
        self.sign(key.pair(), hostname, ips, now)
    }

    /// Signs a PEM signing request, taking only its public key and addresses from it.
    ///
    /// The request may name `hostname` only: its common name and its one DNS name must be exactly
    /// that. Its addresses must be dialable, must not be in `taken` (the addresses of other nodes),
    /// and must be no more than [`MAX_REQUEST_ADDRESSES`].
    ///
    /// # Errors
    /// [`Error::Pem`] if it does not parse, [`Error::Request`] if its signature is wrong or it
    /// violates one of these rules.
    pub fn sign_request(
        &self,
        csr_pem: &str,
        hostname: &str,
        taken: &[IpAddr],
        now: SystemTime,
    ) -> Result<NodeCert, Error> {
        check_hostname(hostname)?;
        let der = CertificateSigningRequestDer::from_pem_slice(csr_pem.as_bytes())
            .map_err(|_| Error::Pem("signing request"))?;
        let request = CertificateSigningRequestParams::from_der(&der)
            .map_err(|why| Error::Request(why.to_string()))?;
        let ips = check_request(&request.params, hostname, taken)?;
        self.sign(&request.public_key, hostname, &ips, now)
    }

    /// Signs a certificate that is valid from the beginning of the authority, whatever the clock of
    /// this machine reads: every node that accepts the authority accepts the certificate too.
    fn sign(
        &self,
        key: &impl PublicKeyData,
        hostname: &str,
        ips: &[IpAddr],
        now: SystemTime,
    ) -> Result<NodeCert, Error> {
        let mut params = params(self.not_before, now + LIFETIME)?;
        name_node(&mut params, hostname, ips)?;
        params.is_ca = IsCa::ExplicitNoCa;
        params.use_authority_key_identifier_extension = true;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        let cert = params
            .signed_by(key, &self.issuer)
            .map_err(Error::crypto("sign the node certificate"))?;
        NodeCert::from_pem(&cert.pem())
    }
}

/// A subject with only a common name.
pub(super) fn common_name(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

/// Sets subject and alternative names of a node certificate or request.
pub(super) fn name_node(
    params: &mut CertificateParams,
    hostname: &str,
    ips: &[IpAddr],
) -> Result<(), Error> {
    let dns = hostname
        .to_owned()
        .try_into()
        .map_err(Error::crypto("encode the hostname"))?;
    params.distinguished_name = common_name(hostname);
    params.subject_alt_names = vec![SanType::DnsName(dns)];
    params
        .subject_alt_names
        .extend(ips.iter().copied().map(SanType::IpAddress));
    Ok(())
}

/// The public key bytes inside a DER certificate.
pub(super) fn public_key(der: &[u8]) -> Result<Vec<u8>, Error> {
    let (_, cert) =
        x509_parser::parse_x509_certificate(der).map_err(|_| Error::Pem("certificate"))?;
    Ok(cert.public_key().subject_public_key.data.to_vec())
}

/// The beginning of a DER certificate's validity; times before 1970 read as 1970.
fn not_before(der: &[u8]) -> Result<SystemTime, Error> {
    let (_, cert) =
        x509_parser::parse_x509_certificate(der).map_err(|_| Error::Pem("certificate"))?;
    let seconds = u64::try_from(cert.validity().not_before.timestamp()).unwrap_or(0);
    Ok(UNIX_EPOCH + Duration::from_secs(seconds))
}

/// The addresses of a request, provided it names only `hostname`.
fn check_request(
    params: &CertificateParams,
    hostname: &str,
    taken: &[IpAddr],
) -> Result<Vec<IpAddr>, Error> {
    let refuse = |why: String| Err(Error::Request(why));
    if params.distinguished_name != common_name(hostname) {
        return refuse(format!("subject is not exactly CN={hostname}"));
    }
    if matches!(params.is_ca, IsCa::Ca(_)) {
        return refuse("a node certificate cannot be an authority".to_owned());
    }
    if params.subject_alt_names.len() > 1 + MAX_REQUEST_ADDRESSES {
        return refuse(format!("names more than {MAX_REQUEST_ADDRESSES} addresses"));
    }
    let mut named = false;
    let mut ips = Vec::new();
    for name in &params.subject_alt_names {
        match name {
            SanType::DnsName(dns) if dns.as_str() == hostname => named = true,
            SanType::IpAddress(ip) => {
                // An IPv4 address and its IPv4-mapped IPv6 form reach the same machine.
                let ip = ip.to_canonical();
                if !dialable(ip) {
                    return refuse(format!("address {ip} cannot be dialled"));
                }
                if taken.iter().any(|taken| taken.to_canonical() == ip) {
                    return refuse(format!("address {ip} is that of another node"));
                }
                ips.push(ip);
            }
            other => return refuse(format!("names {other:?}")),
        }
    }
    if named {
        Ok(ips)
    } else {
        refuse(format!("no DNS name {hostname}"))
    }
}

/// Whether another machine could reach this one at `ip`.
#[must_use]
pub fn dialable(ip: IpAddr) -> bool {
    let local = match ip {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
}
