//! The actor that turns a daemon into a member: by init, or by what the disk says.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering};

use jaco_proto::{Error, ErrorCode, v1};
use jaco_raftnode::Propose;

use super::{
    Running, Shared,
    announce::announce,
    files::{FilesError, Layout},
    init,
    start::{fatal, verticals},
};
use crate::supervision::{Context, Failure, Reply, Worker};

/// What a [`NodeActor`] is told.
pub enum Msg {
    /// Open the membership found on disk, if there is one.
    Open,
    /// Found a cluster of this name.
    Init(String, Reply<Result<v1::ClusterInitResponse, Error>>),
    /// The cluster knows what it needs to know about this node.
    Announced,
    /// The founding finished on its blocking thread.
    Founded(
        Result<v1::ClusterInitResponse, Error>,
        Reply<Result<v1::ClusterInitResponse, Error>>,
    ),
}

/// What a [`NodeActor`] starts from.
#[derive(Clone)]
pub struct Args {
    pub(super) shared: Arc<Shared>,
    pub(super) layout: Layout,
    pub(super) hostname: String,
}

/// The root of the node's life: decides once, then keeps the answer in [`Shared`].
pub struct NodeActor {
    args: Args,
    founding: bool,
}

impl Worker for NodeActor {
    type Msg = Msg;
    type Args = Args;
    const KIND: &'static str = "NodeActor";

    async fn start(ctx: &Context<Self>, args: Args) -> Result<Self, Failure> {
        // Not done here: starting the other verticals is the business of a node that is up.
        ctx.send_to_self(Msg::Open);
        Ok(Self {
            args,
            founding: false,
        })
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: Msg) -> Result<(), Failure> {
        match msg {
            Msg::Open => self.open(ctx).await,
            Msg::Init(name, reply) => {
                self.init(ctx, name, reply);
                Ok(())
            }
            Msg::Announced => Ok(()),
            Msg::Founded(result, reply) => {
                self.founding = false;
                if result.is_ok() {
                    self.open(ctx).await?;
                }
                reply.send(result);
                Ok(())
            }
        }
    }
}

impl NodeActor {
    /// Starts the verticals of a member. Idempotent: after a restart of this actor they run.
    async fn open(&mut self, ctx: &Context<Self>) -> Result<(), Failure> {
        let shared = &self.args.shared;
        let running = match shared.running.get() {
            Some(running) => running.clone(),
            None => {
                let args = self.args.clone();
                // Opening reads the whole state from disk.
                let opened = tokio::task::spawn_blocking(move || {
                    let _one = lock(&args.shared.founding);
                    member(&args)
                });
                match opened.await? {
                    Ok(None) => return Ok(()),
                    Ok(Some((running, fingerprint))) => {
                        let (member, config) = (running.clone(), shared.config.clone());
                        ctx.spawn(async move {
                            announce(member, config, fingerprint).await;
                            Msg::Announced
                        });
                        running
                    }
                    Err(error) => return Err(fatal(shared, &error)),
                }
            }
        };
        for spec in verticals(shared, &running) {
            // Taken keys are verticals that survived this actor.
            let _ = ctx.supervisor().start_child(spec).await;
        }
        shared.running.get_or_init(|| running);
        shared.member.store(true, Ordering::Release);
        lock(&shared.setup_token).take();
        self.args.layout.remove_setup();
        Ok(())
    }

    fn init(
        &mut self,
        ctx: &Context<Self>,
        name: String,
        reply: Reply<Result<v1::ClusterInitResponse, Error>>,
    ) {
        if let Some(running) = self.args.shared.running.get() {
            let id = running
                .raft
                .state()
                .cluster
                .as_ref()
                .map(|c| c.cluster_id.clone());
            reply.send(Err(Error::new(
                ErrorCode::ClusterAlreadyInitialized,
                "this node is a member of a cluster already",
            )
            .with("cluster_id", id.unwrap_or_default())));
            return;
        }
        if self.founding {
            reply.send(Err(Error::new(
                ErrorCode::ClusterAlreadyInitialized,
                "another init is under way",
            )));
            return;
        }
        self.founding = true;
        let args = self.args.clone();
        ctx.spawn(async move {
            let founding = tokio::task::spawn_blocking(move || {
                let _one = lock(&args.shared.founding);
                init::found(&args.layout, &args.shared.config, &args.hostname, name)
            });
            let result = founding.await.unwrap_or_else(|error| {
                Err(
                    Error::new(ErrorCode::Internal, "the cluster could not be created")
                        .with("reason", error),
                )
            });
            Msg::Founded(result, reply)
        });
    }
}

/// Opens identity and state, if the disk says that this node is a member.
fn member(args: &Args) -> Result<Option<(Arc<Running>, [u8; 32])>, FilesError> {
    let shared = &args.shared;
    let Some(membership) = args.layout.read_membership(&shared.config)? else {
        return Ok(None);
    };
    let (identity, fingerprint) = args.layout.identity(&membership)?;
    let running = super::start::open(shared, &args.layout, &membership)?;
    shared.certificate.replace(&identity);
    Ok(Some((running, fingerprint)))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
