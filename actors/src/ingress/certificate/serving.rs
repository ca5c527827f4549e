//! Keeps the certificates and challenges of the data plane up to date.

use std::{collections::BTreeMap, sync::Arc};

use jaco_net::ingress::{self, ChallengeTable, Proxy, certified_key};
use jaco_supervision::{ChildSpec, Context, Failure, Worker};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tracing::{debug, error};

use super::{Certificates, Material, Token};

/// Child specification of the worker that lets `proxy` serve what `certificates` publishes.
pub(crate) fn child(proxy: Proxy, certificates: watch::Receiver<Certificates>) -> ChildSpec {
    let args = TlsArgs {
        proxy,
        certificates,
    };
    ChildSpec::worker::<TlsActor>("tls", args).0
}

/// Arguments of a [`TlsActor`]; clones share the data plane.
#[derive(Clone)]
pub(crate) struct TlsArgs {
    proxy: Proxy,
    certificates: watch::Receiver<Certificates>,
}

/// Messages of a [`TlsActor`].
pub(crate) enum Msg {
    /// Certificates or challenges changed.
    Changed(Certificates),
}

/// Follows the published certificates and challenges of one node.
///
/// The data plane keeps the last ones while the actor restarts.
pub(crate) struct TlsActor {
    proxy: Proxy,
    /// Parsed certificates by name, so that each is parsed once; `None` for an unusable one.
    parsed: BTreeMap<String, (Arc<Material>, Option<Arc<CertifiedKey>>)>,
    /// Whether this instance has handed over certificates; an earlier one may have left others.
    served: bool,
}

impl Worker for TlsActor {
    type Msg = Msg;
    type Args = TlsArgs;
    const KIND: &'static str = "TlsActor";

    async fn start(ctx: &Context<Self>, args: TlsArgs) -> Result<Self, Failure> {
        let mut certificates = args.certificates;
        certificates.mark_changed();
        ctx.watch(certificates, Msg::Changed);
        Ok(Self {
            proxy: args.proxy,
            parsed: BTreeMap::new(),
            served: false,
        })
    }

    async fn handle(&mut self, _ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Changed(newest) => {
                self.serve(&newest.by_domain);
                let tokens = newest.tokens.as_deref();
                self.proxy.swap_challenges(tokens.map(challenge_table));
            }
        }
        Ok(())
    }
}

impl TlsActor {
    /// Presents these certificates from the next handshake on.
    fn serve(&mut self, by_domain: &BTreeMap<String, Arc<Material>>) {
        let unchanged = self.parsed.len() == by_domain.len()
            && by_domain.iter().all(|(name, material)| {
                let known = self.parsed.get(name);
                known.is_some_and(|(known, _)| known == material)
            });
        let first = !std::mem::replace(&mut self.served, true);
        if unchanged && !first {
            return;
        }
        let mut before = std::mem::take(&mut self.parsed);
        for (name, material) in by_domain {
            let known = before.remove(name).filter(|(known, _)| known == material);
            let parsed = known.unwrap_or_else(|| (Arc::clone(material), parse(name, material)));
            self.parsed.insert(name.clone(), parsed);
        }
        let usable = self.parsed.iter();
        let usable = usable.filter_map(|(name, (_, key))| Some((name.clone(), key.clone()?)));
        let certificates = ingress::Certificates::new(usable);
        self.proxy.certificates().swap(certificates);
        debug!(
            subsystem = "ingress",
            count = self.parsed.len(),
            "certificates swapped"
        );
    }
}

/// Parses a certificate for the handshakes of a domain. A failure concerns that domain alone.
fn parse(name: &str, material: &Material) -> Option<Arc<CertifiedKey>> {
    let parsed = certified_key(&material.chain_pem, &material.key_pem);
    parsed
        .inspect_err(|error| {
            error!(
                subsystem = "ingress",
                domain = name,
                %error,
                "stored certificate is not usable"
            );
        })
        .ok()
}

fn challenge_table(tokens: &BTreeMap<String, Token>) -> ChallengeTable {
    let challenges = tokens.iter().map(|(token, row)| {
        let challenge = ingress::Challenge {
            key_auth: row.key_auth.expose().to_owned().into(),
            expires_at: row.expires_at,
        };
        (token.clone(), challenge)
    });
    challenges.collect()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use jaco_net::{ingress::Settings, pki::BootstrapCert};
    use jaco_policy::ingress::certificate::{Chain, Slot};
    use jaco_proto::secret::SecretString;
    use jaco_supervision::{KillMode, Strategy, SupervisorSpec, Tree};

    use super::*;

    /// A self-signed certificate; a damaged one has a key that does not parse.
    fn material(domain: &str, damaged: bool) -> Arc<Material> {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_900_000_000);
        let cert = BootstrapCert::generate(domain, &[], now).unwrap();
        let key_pem = if damaged {
            SecretString::new("damaged".to_owned())
        } else {
            cert.key_pem().clone()
        };
        Arc::new(Material {
            directory: "ca".to_owned(),
            slot: Slot::Production,
            chain: Chain {
                fingerprint: [0; 32],
                not_before: now,
                not_after: now + Duration::from_secs(3600),
                covers: true,
            },
            chain_pem: cert.cert_pem().to_owned(),
            key_pem,
        })
    }

    fn published(
        materials: &[(&str, &Arc<Material>)],
        tokens: Option<BTreeMap<String, Token>>,
    ) -> Certificates {
        let named = materials.iter();
        let named = named.map(|(name, material)| ((*name).to_owned(), Arc::clone(material)));
        Certificates {
            by_domain: Arc::new(named.collect()),
            tokens: tokens.map(Arc::new),
        }
    }

    async fn until(holds: impl Fn() -> bool) {
        let holds = async {
            while !holds() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(60), holds).await;
        waited.expect("the data plane follows");
    }

    #[tokio::test(start_paused = true)]
    async fn data_plane_follows_and_outlives_the_actor() {
        let proxy = Proxy::new(Settings::default());
        let (sender, receiver) = watch::channel(Certificates::default());
        let spec = SupervisorSpec::new(Strategy::OneForOne);
        let spec = spec.child(child(proxy.clone(), receiver));
        let tree = Tree::start("ingress", spec).await.unwrap();

        // An unusable certificate leaves the others.
        let (a, b) = (material("a-example", false), material("b-example", true));
        sender.send_replace(published(&[("a-example", &a), ("b-example", &b)], None));
        until(|| proxy.certificates().covers("a-example")).await;
        assert!(!proxy.certificates().covers("b-example"));

        // An unchanged certificate is not parsed again.
        let first = proxy.certificates().find("a-example").unwrap();
        let c = material("c-example", false);
        sender.send_replace(published(&[("a-example", &a), ("c-example", &c)], None));
        until(|| proxy.certificates().covers("c-example")).await;
        let again = proxy.certificates().find("a-example").unwrap();
        assert!(Arc::ptr_eq(&first, &again));

        // The next instance publishes everything again; a renewed certificate replaces the other.
        tree.kill("ingress/tls", KillMode::Kill).unwrap();
        assert!(proxy.certificates().covers("a-example"));
        let renewed = material("a-example", false);
        sender.send_replace(published(&[("a-example", &renewed)], None));
        until(|| !proxy.certificates().covers("c-example")).await;
        let found = proxy.certificates().find("a-example").unwrap();
        assert!(!Arc::ptr_eq(&first, &found));

        sender.send_replace(Certificates::default());
        until(|| !proxy.certificates().covers("a-example")).await;
    }

    #[test]
    fn challenges_keep_their_expiry() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let token = Token {
            key_auth: SecretString::new("proof".to_owned()),
            expires_at: at(10),
        };
        let table = challenge_table(&BTreeMap::from([("token".to_owned(), token)]));
        let answer = table.answer("token", at(9));
        assert_eq!(answer.as_deref(), Some(&b"proof"[..]));
        assert_eq!(table.answer("token", at(10)), None);
    }
}
