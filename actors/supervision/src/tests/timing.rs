//! Watched channels and deadlines of a worker.

use tokio::sync::{oneshot, watch};

use super::*;

/// Worker that watches channels and sets deadlines on request, and reports each message.
struct Follower(mpsc::UnboundedSender<String>);

enum FollowerMsg {
    Watch(watch::Receiver<u32>),
    WatchEvery(Duration, watch::Receiver<u32>),
    /// Watches for changes of the tens.
    WatchTens(watch::Receiver<u32>, u32),
    Changed(u32),
    SetDeadline(Option<Instant>, &'static str),
    DeadlinePassed(&'static str),
    /// Blocks the mailbox until the sender is dropped.
    Block(oneshot::Receiver<()>),
    Fail,
}

impl Worker for Follower {
    type Msg = FollowerMsg;
    type Args = mpsc::UnboundedSender<String>;
    const KIND: &'static str = "Follower";

    async fn start(_ctx: &Context<Self>, events: Self::Args) -> Result<Self, Failure> {
        Ok(Self(events))
    }

    async fn handle(&mut self, ctx: &Context<Self>, msg: FollowerMsg) -> Result<(), Failure> {
        match msg {
            FollowerMsg::Watch(values) => {
                ctx.watch(values, FollowerMsg::Changed);
            }
            FollowerMsg::WatchEvery(interval, values) => {
                ctx.watch_every(interval, values, FollowerMsg::Changed);
            }
            FollowerMsg::WatchTens(values, handled) => {
                let differs = |a: &u32, b: &u32| a / 10 != b / 10;
                ctx.watch_if(values, handled, differs, FollowerMsg::Changed);
            }
            FollowerMsg::Changed(value) => self.report(value),
            FollowerMsg::SetDeadline(at, what) => {
                ctx.set_deadline(at, FollowerMsg::DeadlinePassed(what));
            }
            FollowerMsg::DeadlinePassed(what) => self.report(what),
            FollowerMsg::Block(released) => {
                let _ = released.await;
            }
            FollowerMsg::Fail => Err("boom")?,
        }
        Ok(())
    }
}

impl Follower {
    fn report(&self, what: impl ToString) {
        let _ = self.0.send(what.to_string());
    }
}

struct World {
    recorder: Recorder,
    follower: Handle<FollowerMsg>,
    _tree: Tree,
}

impl World {
    async fn start() -> Self {
        let recorder = Recorder::new();
        let (spec, follower) = ChildSpec::worker::<Follower>("a", recorder.sender.clone());
        let tree = start(SupervisorSpec::new(Strategy::OneForOne).child(spec)).await;
        Self {
            recorder,
            follower,
            _tree: tree,
        }
    }

    fn cast(&self, msg: FollowerMsg) {
        self.follower.cast(msg).unwrap();
    }

    /// Blocks the mailbox until the result is dropped.
    fn block(&self) -> oneshot::Sender<()> {
        let (release, released) = oneshot::channel();
        self.cast(FollowerMsg::Block(released));
        release
    }

    fn set_deadline(&self, at: Option<Instant>, what: &'static str) {
        self.cast(FollowerMsg::SetDeadline(at, what));
    }
}

fn after(millis: u64) -> Option<Instant> {
    Some(Instant::now() + Duration::from_millis(millis))
}

#[tokio::test(start_paused = true)]
async fn watch_reports_each_unseen_value() {
    let mut world = World::start().await;
    let (sender, values) = watch::channel(1);
    world.cast(FollowerMsg::Watch(values));
    assert!(world.recorder.recorded().await.is_empty());
    sender.send_replace(2);
    assert_eq!(world.recorder.recorded().await, ["2"]);
    sender.send_replace(3);
    assert_eq!(world.recorder.recorded().await, ["3"]);
}

#[tokio::test(start_paused = true)]
async fn watch_of_changed_receiver_reports_present_value() {
    let mut world = World::start().await;
    let (_sender, mut values) = watch::channel(1);
    values.mark_changed();
    world.cast(FollowerMsg::Watch(values));
    assert_eq!(world.recorder.recorded().await, ["1"]);
}

#[tokio::test(start_paused = true)]
async fn changes_during_message_arrive_as_one() {
    let mut world = World::start().await;
    let (sender, values) = watch::channel(0);
    world.cast(FollowerMsg::Watch(values));
    world.recorder.recorded().await;
    let blocked = world.block();
    for value in 1..=5 {
        sender.send_replace(value);
        rest().await;
    }
    drop(blocked);
    assert_eq!(world.recorder.recorded().await, ["5"]);
}

#[tokio::test(start_paused = true)]
async fn watch_ends_with_sender() {
    let mut world = World::start().await;
    let (sender, values) = watch::channel(0);
    world.cast(FollowerMsg::Watch(values));
    world.recorder.recorded().await;
    sender.send_replace(1);
    drop(sender);
    assert_eq!(world.recorder.recorded().await, ["1"]);
    assert!(world.follower.is_running());
}

#[tokio::test(start_paused = true)]
async fn watch_ends_with_instance() {
    let mut world = World::start().await;
    let (sender, values) = watch::channel(0);
    world.cast(FollowerMsg::Watch(values));
    world.recorder.recorded().await;
    world.cast(FollowerMsg::Fail);
    rest().await;
    world.follower.running().await;
    assert_eq!(sender.receiver_count(), 0);
    sender.send_replace(1);
    assert!(world.recorder.recorded().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn watch_every_delays_changes_by_interval() {
    let mut world = World::start().await;
    let (sender, mut values) = watch::channel(0);
    values.mark_changed();
    world.cast(FollowerMsg::WatchEvery(Duration::from_millis(100), values));
    assert_eq!(world.recorder.recorded().await, ["0"]);
    for value in 1..=5 {
        sender.send_replace(value);
        assert!(world.recorder.recorded().await.is_empty());
    }
    advance(Duration::from_millis(100)).await;
    assert_eq!(world.recorder.recorded().await, ["5"]);
}

#[tokio::test(start_paused = true)]
async fn watch_if_reports_only_values_that_differ() {
    let mut world = World::start().await;
    let (sender, values) = watch::channel(10);
    world.cast(FollowerMsg::WatchTens(values, 10));
    for value in [11, 12, 25, 24, 31] {
        sender.send_replace(value);
        rest().await;
    }
    assert_eq!(world.recorder.recorded().await, ["25", "31"]);
}

#[tokio::test(start_paused = true)]
async fn watch_if_drops_change_undone_in_mailbox() {
    let mut world = World::start().await;
    let (sender, values) = watch::channel(10);
    world.cast(FollowerMsg::WatchTens(values, 10));
    rest().await;
    let blocked = world.block();
    sender.send_replace(20);
    rest().await;
    sender.send_replace(11);
    drop(blocked);
    assert!(world.recorder.recorded().await.is_empty());
    sender.send_replace(20);
    assert_eq!(world.recorder.recorded().await, ["20"]);
}

#[tokio::test(start_paused = true)]
async fn watch_if_reports_value_newer_than_handled() {
    let mut world = World::start().await;
    let (_sender, mut values) = watch::channel(20);
    values.mark_changed();
    world.cast(FollowerMsg::WatchTens(values, 10));
    assert_eq!(world.recorder.recorded().await, ["20"]);
}

#[tokio::test(start_paused = true)]
async fn deadline_arrives_at_its_time() {
    let mut world = World::start().await;
    let set = Instant::now();
    world.set_deadline(after(50), "due");
    world.recorder.expect_exactly(&["due"]).await;
    assert_eq!(set.elapsed().as_millis(), 50);
    world.set_deadline(Some(set), "past");
    world.recorder.expect_exactly(&["past"]).await;
    assert_eq!(set.elapsed().as_millis(), 50);
}

#[tokio::test(start_paused = true)]
async fn later_deadline_replaces_earlier_one() {
    let mut world = World::start().await;
    let set = Instant::now();
    world.set_deadline(after(50), "first");
    world.set_deadline(after(80), "second");
    world.recorder.expect_exactly(&["second"]).await;
    assert_eq!(set.elapsed().as_millis(), 80);
    advance(Duration::from_secs(1)).await;
    assert!(world.recorder.recorded().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn same_deadline_keeps_timer_and_replaces_message() {
    let mut world = World::start().await;
    let at = after(50);
    world.set_deadline(at, "first");
    rest().await;
    world.set_deadline(at, "second");
    advance(Duration::from_millis(50)).await;
    assert_eq!(world.recorder.recorded().await, ["second"]);
}

#[tokio::test(start_paused = true)]
async fn cleared_deadline_is_not_delivered() {
    let mut world = World::start().await;
    world.set_deadline(after(50), "cleared");
    world.set_deadline(None, "unused");
    advance(Duration::from_secs(1)).await;
    assert!(world.recorder.recorded().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn fired_deadline_replaced_in_mailbox_is_dropped() {
    for replaced in [false, true] {
        let mut world = World::start().await;
        world.set_deadline(after(50), "stale");
        rest().await;
        let blocked = world.block();
        world.set_deadline(after(1_000).filter(|_| replaced), "later");
        advance(Duration::from_millis(100)).await;
        rest().await;
        drop(blocked);
        assert!(world.recorder.recorded().await.is_empty());
        advance(Duration::from_secs(2)).await;
        let expected: &[&str] = if replaced { &["later"] } else { &[] };
        assert_eq!(world.recorder.recorded().await, expected);
    }
}
