//! Frames within the budget of their member.

use std::{
    future::poll_fn,
    pin::{Pin, pin},
    task::Poll,
};

use super::*;

/// Patience of a reader that is never served.
const SHORT: Duration = Duration::from_millis(1);

async fn is_pending<F: Future>(mut future: Pin<&mut F>) -> bool {
    poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx).is_pending())).await
}

/// Sends `frames` on a stream of their own.
async fn send(connection: &Connection, frames: &[Vec<u8>]) -> Sender {
    let mut sender = connection.open_uni(Kind::Raft).await.unwrap();
    for frame in frames {
        sender.frame(frame.clone()).await.unwrap();
    }
    sender
}

#[tokio::test]
async fn frame_waits_for_its_members_budget() {
    let (a, mut b) = pair();
    let here = a.endpoint.dial("b", b.address).await.unwrap();
    let there = b.admitted().await;
    let budget = ReceiveBudget::new(100);
    let mut readers = Vec::new();
    let mut senders = Vec::new();
    for byte in [1, 2] {
        senders.push(send(&here, &[vec![byte; 60], vec![byte; 60]]).await);
        let reader = accept(&there, Kind::Raft, 60).await;
        readers.push(reader.within(&budget));
    }
    let [one, two] = &mut readers[..] else {
        unreachable!()
    };
    assert_eq!(one.next().await.unwrap().unwrap(), [1; 60]);
    assert_eq!(budget.available(), 40);
    {
        let mut waiting = pin!(two.next());
        assert!(is_pending(waiting.as_mut()).await);
        // This stream began later, so the frame that waits has arrived.
        senders.push(send(&here, &[vec![3; 30]]).await);
        let mut third = accept(&there, Kind::Raft, 60).await;
        assert_eq!(third.next().await.unwrap().unwrap(), [3; 30]);
        assert!(is_pending(waiting.as_mut()).await);
        // A caller that keeps the frame keeps its share.
        let kept = one.take_reservation();
        assert_eq!(kept.bytes(), 60);
        assert!(is_pending(pin!(one.next())).await);
        assert!(is_pending(waiting.as_mut()).await);
        drop(kept);
        assert_eq!(waiting.await.unwrap().unwrap(), [2; 60]);
    }
    readers.clear();
    assert_eq!(budget.available(), 100);
}

#[tokio::test]
async fn long_messages_are_assembled_one_by_one() {
    let (a, mut b) = pair();
    let here = a.endpoint.dial("b", b.address).await.unwrap();
    let there = b.admitted().await;
    let budget = ReceiveBudget::new(1000);
    let long = [vec![1; 16], vec![2; 4]];
    let mut senders = Vec::new();
    let mut reader = async |frames: &[Vec<u8>], patience| {
        senders.push(send(&here, frames).await);
        let reader = accept(&there, Kind::Raft, 16).await;
        reader.assembled_within(&budget, patience)
    };
    let mut first = reader(&long, TIMEOUT).await;
    assert_eq!(first.next().await.unwrap().unwrap(), long[0]);
    let mut second = reader(&long, SHORT).await;
    assert_eq!(second.next().await.unwrap_err(), StreamError::Busy);
    let mut short = reader(&long[1..], SHORT).await;
    assert_eq!(short.next().await.unwrap().unwrap(), long[1]);
    assert_eq!(first.next().await.unwrap().unwrap(), long[1]);
    drop(first);
    let mut third = reader(&long, TIMEOUT).await;
    assert_eq!(third.next().await.unwrap().unwrap(), long[0]);
}
