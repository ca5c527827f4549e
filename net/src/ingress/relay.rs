//! Copies bytes between client and replica after a protocol switch.

use std::time::Duration;

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy, split},
    sync::watch,
    time::timeout,
};

use super::{Phase, timeouts::ServingGuard};
use crate::limit::Permit;

/// Time for which one direction may still finish after the other has closed.
const LINGER: Duration = Duration::from_secs(5);

/// Waits until both sides have switched, then relays until either side or the proxy closes.
///
/// `serving` suspends the timeouts of a client connection that carries other requests as well;
/// `permit` counts the request among those in flight.
pub(super) async fn relay(
    client: OnUpgrade,
    replica: OnUpgrade,
    mut phase: watch::Receiver<Phase>,
    serving: Option<ServingGuard>,
    permit: Option<Permit>,
) {
    let run = async {
        match tokio::try_join!(client, replica) {
            Ok((client, replica)) => {
                exchange(TokioIo::new(client), TokioIo::new(replica)).await;
            }
            Err(why) => tracing::debug!(subsystem = "ingress", %why, "upgrade failed"),
        }
    };
    tokio::select! {
        () = run => {}
        // An error means that the proxy was dropped without a drain.
        _ = phase.wait_for(|phase| *phase == Phase::Closed) => {}
    }
    drop((serving, permit));
}

async fn exchange(client: impl AsyncRead + AsyncWrite, replica: impl AsyncRead + AsyncWrite) {
    let (mut from_client, mut to_client) = split(client);
    let (mut from_replica, mut to_replica) = split(replica);
    let up = async {
        let copied = copy(&mut from_client, &mut to_replica).await;
        let _ = to_replica.shutdown().await; // it may be closed already
        copied
    };
    let down = async {
        let copied = copy(&mut from_replica, &mut to_client).await;
        let _ = to_client.shutdown().await; // it may be closed already
        copied
    };
    tokio::pin!(up, down);
    // After an orderly close the other direction may finish; after an error it is cut off.
    tokio::select! {
        copied = &mut up => if copied.is_ok() { let _ = timeout(LINGER, down).await; },
        copied = &mut down => if copied.is_ok() { let _ = timeout(LINGER, up).await; },
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, duplex};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn other_direction_finishes_after_a_close() {
        let ((mut client, near), (far, mut replica)) = (duplex(64), duplex(64));
        let relayed = tokio::spawn(exchange(near, far));
        client.write_all(b"ping").await.unwrap();
        client.shutdown().await.unwrap();
        let mut received = String::new();
        replica.read_to_string(&mut received).await.unwrap();
        replica.write_all(b"pong").await.unwrap();
        drop(replica);
        let mut answered = String::new();
        client.read_to_string(&mut answered).await.unwrap();
        relayed.await.unwrap();
        assert_eq!((received.as_str(), answered.as_str()), ("ping", "pong"));
    }

    #[tokio::test(start_paused = true)]
    async fn relay_ends_after_lingering_for_open_side() {
        let ((client, near), (far, _replica)) = (duplex(64), duplex(64));
        let start = tokio::time::Instant::now();
        drop(client);
        exchange(near, far).await;
        assert_eq!(start.elapsed(), LINGER);
    }
}
