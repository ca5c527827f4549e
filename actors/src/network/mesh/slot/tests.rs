use std::{
    io,
    sync::{Mutex as StdMutex, mpsc},
};

use jaco_net::wireguard::{Descriptors, Error, Peer as DevicePeer, PublicKey};
use jaco_policy::network::probe::drops::DropReason;
use tokio::sync::oneshot;

use super::*;
use crate::{lock::lock, network::mesh::port::Device};

/// The devices that exist, and the operations on them.
#[derive(Clone, Default)]
struct World(Arc<StdMutex<Vec<String>>>);

impl World {
    fn log(&self, what: impl ToString) {
        lock(&self.0).push(what.to_string());
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.0))
    }

    /// Outcome of opening the device `name`.
    fn device(&self, name: &'static str) -> FakeDevice {
        self.log(format!("open {name}"));
        FakeDevice {
            name,
            world: self.clone(),
            gate: None,
        }
    }

    /// Removal of the link, which takes until it is polled.
    fn removal(&self) -> impl Future<Output = Result<(), PortError>> + Send + 'static {
        let world = self.clone();
        async move {
            world.log("remove link");
            Ok(())
        }
    }
}

/// A device with one peer, which it names after itself.
struct FakeDevice {
    name: &'static str,
    world: World,
    /// Its peers are set once something was received.
    gate: Option<StdMutex<mpsc::Receiver<()>>>,
}

impl FakeDevice {
    fn opened(self) -> Opened {
        Opened {
            device: Box::new(self),
            index: None,
            backend: "fake",
            fallback: None,
        }
    }
}

impl Device for FakeDevice {
    fn drops(&self) -> Drops {
        [(DropReason::MeshInvalid, 3)].into()
    }

    fn descriptors(&self) -> io::Result<Option<Descriptors>> {
        let file = || io::Result::Ok(std::fs::File::open("/dev/null")?.into());
        Ok(Some(Descriptors {
            queues: vec![file()?],
            sockets: vec![file()?],
        }))
    }

    fn set_peers(&self, _: Vec<DevicePeer>) -> Result<(), Error> {
        if let Some(gate) = &self.gate {
            let _ = lock(gate).recv(); // an error: the test has failed
        }
        self.world.log(format!("set peers of {}", self.name));
        Ok(())
    }

    fn stats(&self) -> Vec<PeerStats> {
        self.world.log(format!("stats of {}", self.name));
        vec![PeerStats {
            public_key: PublicKey([0; 32]),
            endpoint: None,
            last_handshake: None,
            rtt: None,
            loss: None,
            rx_bytes: 0,
            tx_bytes: 0,
        }]
    }

    fn is_altered(&self) -> bool {
        false
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

impl Drop for FakeDevice {
    fn drop(&mut self) {
        self.world.log(format!("end {}", self.name));
    }
}

/// An opening of the device `name` that waits until it is released.
fn held(
    world: &World,
    name: &'static str,
) -> (
    oneshot::Sender<()>,
    impl Future<Output = Result<Opened, PortError>> + Send + 'static,
) {
    let (release, released) = oneshot::channel();
    let world = world.clone();
    let opening = async move {
        let _ = released.await; // an error: the test has failed
        Ok(world.device(name).opened())
    };
    (release, opening)
}

/// Polls a future once, which begins its operation.
fn begin<F: Future + Unpin>(future: &mut F) {
    assert!(future.now_or_never().is_none(), "the operation has to wait");
}

#[tokio::test]
async fn close_after_a_slow_open_leaves_no_device() {
    let (slot, world) = (DeviceSlot::default(), World::default());
    let (release, opening) = held(&world, "one");
    let mut open = Box::pin(slot.open(opening));
    begin(&mut open);
    let mut close = Box::pin(slot.close(world.removal()));
    begin(&mut close);
    release.send(()).unwrap();
    close.await.unwrap();
    open.await.unwrap();
    assert_eq!(world.take(), ["open one", "end one", "remove link"]);
    assert_eq!(slot.stats().await.unwrap().0, []);
    assert_eq!(world.take(), [""; 0]);
}

#[tokio::test]
async fn close_after_an_abandoned_open_leaves_no_device() {
    let (slot, world) = (DeviceSlot::default(), World::default());
    let (release, opening) = held(&world, "one");
    let mut open = Box::pin(slot.open(opening));
    begin(&mut open);
    drop(open);
    let mut close = Box::pin(slot.close(world.removal()));
    begin(&mut close);
    release.send(()).unwrap();
    close.await.unwrap();
    assert_eq!(world.take(), ["open one", "end one", "remove link"]);
}

#[tokio::test]
async fn abandoned_operations_are_carried_out_in_order() {
    let (slot, world) = (DeviceSlot::default(), World::default());
    let (release, opening) = held(&world, "one");
    begin(&mut Box::pin(slot.open(opening)));
    begin(&mut Box::pin(slot.set_peers(Vec::new())));
    begin(&mut Box::pin(slot.close(world.removal())));
    let second = world.clone();
    let reopen = async move { Ok(second.device("two").opened()) };
    begin(&mut Box::pin(slot.open(reopen)));
    release.send(()).unwrap();
    assert_eq!(slot.stats().await.unwrap().0.len(), 1);
    let expected = [
        "open one",
        "set peers of one",
        "end one",
        "remove link",
        "open two",
        "stats of two",
    ];
    assert_eq!(world.take(), expected);
}

#[tokio::test]
async fn slow_device_blocks_no_async_thread() {
    let (slot, world) = (DeviceSlot::default(), World::default());
    let (release, gate) = mpsc::channel();
    let mut device = world.device("one");
    device.gate = Some(StdMutex::new(gate));
    let opening = async { Ok(device.opened()) };
    slot.open(opening).await.unwrap();
    let mut set = Box::pin(slot.set_peers(Vec::new()));
    begin(&mut set);
    let mut stats = Box::pin(slot.stats());
    begin(&mut stats);
    // The only async thread still runs this test while both wait.
    tokio::task::yield_now().await;
    begin(&mut stats);
    release.send(()).unwrap();
    assert_eq!(stats.await.unwrap().0.len(), 1);
    set.await.unwrap();
    assert_eq!(
        world.take(),
        ["open one", "set peers of one", "stats of one"]
    );
}

#[tokio::test]
async fn device_ends_before_the_next_one_opens() {
    let (slot, world) = (DeviceSlot::default(), World::default());
    for name in ["one", "two"] {
        let opener = world.clone();
        let opening = async move { Ok(opener.device(name).opened()) };
        slot.open(opening).await.unwrap();
    }
    assert_eq!(world.take(), ["open one", "end one", "open two"]);
    // Packets that the first one dropped still count.
    for _ in 0..2 {
        let (_, drops) = slot.stats().await.unwrap();
        assert_eq!(drops, [(DropReason::MeshInvalid, 6)].into());
    }
    assert_eq!(world.take(), ["stats of two"; 2]);
    let failing = async { Err(PortError("no such device".to_owned())) };
    let error = slot.open(failing).await.unwrap_err();
    assert_eq!(error.to_string(), "no such device");
    assert_eq!(world.take(), ["end two"]);
    let error = slot.set_peers(Vec::new()).await.unwrap_err();
    assert_eq!(error.to_string(), "the mesh device is not open");
}

#[tokio::test]
async fn panic_of_an_operation_leaves_the_slot_usable() {
    let (slot, world) = (DeviceSlot::default(), World::default());
    slot.open(async { panic!("on purpose") }).await.unwrap_err();
    let opener = world.clone();
    let opening = async move { Ok(opener.device("one").opened()) };
    slot.open(opening).await.unwrap();
    assert_eq!(slot.stats().await.unwrap().0.len(), 1);
}

#[tokio::test]
async fn released_device_ends_and_seems_open() {
    let (slot, world) = (DeviceSlot::default(), World::default());
    assert!(slot.descriptors(true).await.unwrap().is_empty());
    let opener = world.clone();
    let opening = async move { Ok(opener.device("one").opened()) };
    slot.open(opening).await.unwrap();
    world.take();
    let names = async |release| -> Vec<String> {
        let passed = slot.descriptors(release).await.unwrap().into_iter();
        passed.map(|(name, _)| name).collect()
    };
    let all = ["mesh.tun", "mesh.udp", "mesh.peers"];
    assert_eq!(names(false).await, all);
    assert_eq!(world.take(), [""; 0], "it works on");
    assert_eq!(names(true).await, all);
    assert_eq!(world.take(), ["end one"]);
    // Nothing is opened in its place.
    slot.set_peers(Vec::new()).await.unwrap();
    let inspect = |turn: Turn| async move { Ok(turn.inspect(1).await?.1) };
    assert_eq!(slot.run(inspect).await.unwrap(), Some((Vec::new(), false)));
    assert_eq!(names(true).await, [""; 0]);
    assert_eq!(world.take(), [""; 0]);
    let dropped = [(DropReason::MeshInvalid, 3)].into();
    assert_eq!(slot.stats().await.unwrap().1, dropped);
}
