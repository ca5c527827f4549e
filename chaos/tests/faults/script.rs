//! Workload that runs while faults are injected.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use jaco_chaos::{Api, History, Rng, Workload};

/// Applies and deletes at random until `stop` is set or a call fails.
pub(crate) async fn work(
    api: Api,
    mut workloads: Vec<Workload>,
    mut history: History,
    mut rng: Rng,
    stop: Arc<AtomicBool>,
) -> (Vec<Workload>, History) {
    while !stop.load(Ordering::Acquire) {
        let n = usize::try_from(rng.within(0..workloads.len() as u64)).unwrap_or(0);
        let workload = &mut workloads[n];
        let name = workload.name.clone();
        let acknowledged = if rng.within(0..10) < 7 {
            workload.revise(rng.number());
            history.apply_sent(&name);
            api.apply(workload)
                .await
                .map(|revision| history.applied(&name, revision))
        } else {
            history.delete_sent(&name);
            api.delete(&name).await.map(|()| history.deleted(&name))
        };
        if acknowledged.is_err() {
            break;
        }
    }
    (workloads, history)
}
