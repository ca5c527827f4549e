//! Keeps the certificates and challenges of the data plane up to date.

use std::{collections::BTreeMap, sync::Arc};

use jaco_net::ingress::{self, ChallengeTable, Proxy, certified_key};
use jaco_state::State;
use jaco_supervision::{ChildSpec, Context, Failure, Worker};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;
use tracing::{debug, error};

use super::{Certificates, Material, Token};
use crate::serving::Installed;

/// Whether the same tokens are answered in both states.
pub(crate) fn same_tokens(a: &State, b: &State) -> bool {
    a.challenge_tokens.ptr_eq(&b.challenge_tokens)
}

/// Child specification of the worker that lets `proxy` serve what `certificates` publishes, and
/// records in `installed` the states of what it serves.
pub(crate) fn child(
    proxy: Proxy,
    certificates: watch::Receiver<Certificates>,
    installed: Installed,
) -> ChildSpec {
    let args = TlsArgs {
        proxy,
        certificates,
        installed,
    };
    ChildSpec::worker::<TlsActor>("tls", args).0
}

/// Arguments of a [`TlsActor`]; clones share the data plane.
#[derive(Clone)]
pub(crate) struct TlsArgs {
    proxy: Proxy,
    certificates: watch::Receiver<Certificates>,
    installed: Installed,
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
    installed: Installed,
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
            installed: args.installed,
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
                if let Some(state) = newest.state {
                    self.installed.set(state);
                }
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

    use futures::FutureExt as _;
    use jaco_net::{ingress::Settings, pki::BootstrapCert};
    use jaco_policy::ingress::{
        certificate::{Chain, Slot},
        view::SameInput,
    };
    use jaco_proto::{
        secret::SecretString,
        v1::{self, command::Payload},
    };
    use jaco_raftnode::{StateReader as _, command, testing::MemoryRaft};
    use jaco_supervision::{KillMode, Strategy, SupervisorSpec, Tree};
    use prost_types::Timestamp;

    use super::*;
    use crate::serving::Serving;

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

    /// A data plane, and the state that what it serves is derived from.
    struct Lab {
        proxy: Proxy,
        raft: MemoryRaft,
        serving: Serving,
        published: watch::Sender<Certificates>,
        tree: Tree,
    }

    impl Lab {
        async fn start(same_input: SameInput) -> Self {
            let proxy = Proxy::new(Settings::default());
            let (published, receiver) = watch::channel(Certificates::default());
            let serving = Serving::default();
            let installed = serving.part(same_input);
            let spec = SupervisorSpec::new(Strategy::OneForOne);
            let spec = spec.child(child(proxy.clone(), receiver, installed));
            Self {
                proxy,
                raft: MemoryRaft::with_ready_nodes(&["n1"]),
                serving,
                published,
                tree: Tree::start("ingress", spec).await.unwrap(),
            }
        }

        /// Stores a token, and returns the index of its entry.
        fn challenge(&self, token: &str) -> u64 {
            let token = v1::ChallengeToken {
                token: token.to_owned(),
                domain: "a-example".to_owned(),
                key_auth: "proof".to_owned(),
                expires_at: Some(Timestamp::default()),
            };
            let store = v1::ChallengeTokenStore { token: Some(token) };
            let store = Payload::ChallengeTokenStore(store);
            let store = command("test", Timestamp::default(), store);
            self.raft.apply(store).unwrap();
            self.raft.state().applied_index
        }

        fn publish(&self, materials: &[(&str, &Arc<Material>)]) {
            let named = materials.iter();
            let named = named.map(|(name, material)| ((*name).to_owned(), Arc::clone(material)));
            self.published.send_replace(Certificates {
                by_domain: Arc::new(named.collect()),
                tokens: None,
                state: Some(self.raft.state()),
            });
        }

        /// Publishes certificates with a newer state, and waits until the data plane has them.
        async fn serve(&self, materials: &[(&str, &Arc<Material>)]) {
            let index = self.challenge("next");
            self.publish(materials);
            self.serving.reached(&self.raft, index).await;
        }
    }

    #[tokio::test]
    async fn data_plane_follows_and_outlives_the_actor() {
        let lab = Lab::start(|_, _| false).await;
        let certificates = lab.proxy.certificates();

        // An unusable certificate leaves the others.
        let (a, b) = (material("a-example", false), material("b-example", true));
        lab.serve(&[("a-example", &a), ("b-example", &b)]).await;
        assert!(certificates.covers("a-example"));
        assert!(!certificates.covers("b-example"));

        // An unchanged certificate is not parsed again.
        let first = certificates.find("a-example").unwrap();
        let c = material("c-example", false);
        lab.serve(&[("a-example", &a), ("c-example", &c)]).await;
        assert!(certificates.covers("c-example"));
        let again = certificates.find("a-example").unwrap();
        assert!(Arc::ptr_eq(&first, &again));

        // The next instance publishes everything again; a renewed certificate replaces the other.
        lab.tree.kill("ingress/tls", KillMode::Kill).unwrap();
        assert!(certificates.covers("a-example"));
        let renewed = material("a-example", false);
        lab.serve(&[("a-example", &renewed)]).await;
        assert!(!certificates.covers("c-example"));
        let found = certificates.find("a-example").unwrap();
        assert!(!Arc::ptr_eq(&first, &found));

        lab.serve(&[]).await;
        assert!(!certificates.covers("a-example"));
    }

    #[tokio::test]
    async fn token_counts_once_the_data_plane_has_it() {
        let lab = Lab::start(same_tokens).await;
        let index = lab.challenge("token");
        let reached = lab.serving.reached(&lab.raft, index).shared();
        assert!(
            reached.clone().now_or_never().is_none(),
            "nothing is served"
        );
        lab.publish(&[]);
        reached.await;
        let index = lab.challenge("another");
        let reached = lab.serving.reached(&lab.raft, index).shared();
        assert!(
            reached.clone().now_or_never().is_none(),
            "only the first one"
        );
        lab.publish(&[]);
        reached.await;
        // An entry about something else needs nothing new.
        let upsert = v1::CertBlobUpsert {
            blob: Some(v1::CertBlob {
                key: "key".to_owned(),
                value: vec![1],
                ..v1::CertBlob::default()
            }),
        };
        let upsert = Payload::CertBlobUpsert(upsert);
        let upsert = command("test", Timestamp::default(), upsert);
        lab.raft.apply(upsert).unwrap();
        let index = lab.raft.state().applied_index;
        lab.serving.reached(&lab.raft, index).await;
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
