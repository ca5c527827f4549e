//! Serves the certificates of operators on a node that obtains none.

use std::sync::Arc;

use jaco_policy::ingress::certificate::domains;
use jaco_raftnode::LeaderProposer;
use jaco_state::State;
use jaco_supervision::{ChildSpec, Context, Failure, Worker};
use tokio::sync::watch;

use super::{Certificates, Imported, selection::Selection};
use crate::clock::Clock;

/// Arguments of an [`ImportFeed`]; clones share everything.
#[derive(Clone)]
pub struct FeedArgs {
    /// Reads the state.
    pub raft: Arc<dyn LeaderProposer>,
    /// Source of the time that certificates are judged by.
    pub clock: Clock,
    /// Certificates of operators.
    pub imported: watch::Receiver<Imported>,
    /// Receives what the data plane serves.
    pub certificates: watch::Sender<Certificates>,
}

/// Child specification of the feed, to be placed under the ingress supervisor.
#[must_use]
pub fn child(args: FeedArgs) -> ChildSpec {
    ChildSpec::worker::<ImportFeed>("certificates", args).0
}

/// Messages of an [`ImportFeed`].
pub enum Msg {
    /// Routes changed.
    Changed,
    /// Certificates of operators changed.
    Imported,
    /// A certificate expires.
    Expired,
}

/// Publishes the certificates of operators for the domains that ask for one.
pub struct ImportFeed(FeedArgs);

impl Worker for ImportFeed {
    type Msg = Msg;
    type Args = FeedArgs;
    const KIND: &'static str = "ImportFeed";

    async fn start(ctx: &Context<Self>, args: FeedArgs) -> Result<Self, Failure> {
        let mut states = args.raft.follow();
        let last = states.borrow_and_update().clone();
        ctx.watch_if(
            states,
            last,
            |last, next| !same_domains(last, next),
            |_| Msg::Changed,
        );
        let mut imported = args.imported.clone();
        imported.mark_changed();
        ctx.watch(imported, |_| Msg::Imported);
        Ok(Self(args))
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Changed | Msg::Imported | Msg::Expired => self.publish(ctx),
        }
        Ok(())
    }
}

impl ImportFeed {
    fn publish(&self, ctx: &Context<Self>) {
        let imported = self.0.imported.borrow().clone();
        let state = self.0.raft.state();
        let mut selection = Selection::new(self.0.clock.now(), &imported);
        for domain in domains::wanted(&state, "").into_keys() {
            selection.add(&domain, &[]);
        }
        self.0.certificates.send_replace(Certificates {
            by_domain: selection.finish(ctx, Msg::Expired),
            tokens: None,
            state: Some(state),
        });
    }
}

/// Whether the same domains ask for a certificate in both states.
fn same_domains(a: &State, b: &State) -> bool {
    a.routes.ptr_eq(&b.routes) && a.route_tls_overrides.ptr_eq(&b.route_tls_overrides)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeMap,
        time::{Duration, SystemTime},
    };

    use jaco_policy::ingress::certificate::{Chain, Slot};
    use jaco_proto::{
        secret::SecretString,
        v1::{self, command::Payload},
    };
    use jaco_raftnode::{command, testing::MemoryRaft};
    use jaco_supervision::{Strategy, SupervisorSpec, Tree};

    use super::{super::Material, *};

    fn material(name: &str) -> (String, Arc<Material>) {
        let begin = SystemTime::UNIX_EPOCH;
        let material = Material {
            directory: "imported".to_owned(),
            slot: Slot::Production,
            chain: Chain {
                fingerprint: [1; 32],
                not_before: begin,
                not_after: begin + Duration::from_secs(10),
                covers: true,
            },
            chain_pem: name.to_owned(),
            key_pem: SecretString::new("key".to_owned()),
        };
        (name.to_owned(), Arc::new(material))
    }

    fn route(domain: &str, tls_auto: bool) -> Payload {
        let route = v1::Route {
            domain: domain.to_owned(),
            deployment: "shop".to_owned(),
            service: "web".to_owned(),
            tls_auto,
            ..v1::Route::default()
        };
        Payload::RouteUpsert(v1::RouteUpsert { route: Some(route) })
    }

    #[tokio::test]
    async fn imports_are_served_for_domains_that_ask() {
        let raft = MemoryRaft::with_ready_nodes(&["n1"]);
        let apply = |payload| raft.apply(command("test", Default::default(), payload));
        apply(route("a.example", true)).unwrap();
        apply(route("plain.example", false)).unwrap();
        let (imports, imported) = watch::channel(Imported::default());
        let (certificates, mut published) = watch::channel(Certificates::default());
        let args = FeedArgs {
            raft: Arc::new(raft.clone()),
            clock: Clock::from_fn(|| SystemTime::UNIX_EPOCH),
            imported,
            certificates,
        };
        let spec = SupervisorSpec::new(Strategy::OneForOne).child(child(args));
        let _tree = Tree::start("ingress", spec).await.unwrap();

        let names = ["a.example", "plain.example", "*.other.example"];
        let by_name = Arc::new(BTreeMap::from(names.map(material)));
        imports.send_replace(Imported { by_name });
        let mut served = async |expected: &[(&str, &str)]| {
            let equal = |published: &Certificates| {
                let served = published.by_domain.iter();
                served
                    .map(|(domain, material)| (&**domain, &*material.chain_pem))
                    .eq(expected.iter().copied())
                    && published.tokens.is_none()
            };
            let waited = published.wait_for(equal);
            let waited = tokio::time::timeout(Duration::from_secs(10), waited).await;
            waited.expect("in time").unwrap();
        };
        served(&[("a.example", "a.example")]).await;
        apply(route("b.other.example", true)).unwrap();
        served(&[
            ("a.example", "a.example"),
            ("b.other.example", "*.other.example"),
        ])
        .await;
        imports.send_replace(Imported::default());
        served(&[]).await;
    }
}
