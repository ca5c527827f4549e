//! Clients that write and read registers of a cluster through all of its nodes at once.
//!
//! A register is a pull credential: its user name is the value. Every write leaves an event in the
//! audit trail, which records the writes that took effect, acknowledged or not.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use jaco_proto::{
    error::{DecodedError, ErrorCode},
    v1::{self, AuditEventType},
};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tonic::{Request, Status};

use crate::{
    Api, Rng,
    linear::{self, Action, Operation},
};

/// Number of registers: few enough for concurrent operations on each.
const REGISTERS: u64 = 8;
/// Deadline of each call.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed call, so that a refusing cluster is not flooded.
const PAUSE: Duration = Duration::from_millis(20);
/// Suffix of every register's name.
const SUFFIX: &str = ".register.example";

/// Running clients.
#[derive(Debug)]
pub struct Registers {
    shared: Arc<ClientState>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
}

#[derive(Debug)]
struct ClientState {
    start: Instant,
    apis: Vec<Api>,
    seen: Mutex<Record>,
    accepted: Notify,
}

#[derive(Debug, Default)]
struct Record {
    histories: BTreeMap<u64, Vec<Operation>>,
    /// Values whose write was refused.
    refused: BTreeSet<u64>,
    values: u64,
    /// Times of call and answer of every acknowledged write.
    accepted: Vec<(u64, u64)>,
    errors: BTreeMap<String, u64>,
}

/// Record of all operations.
#[derive(Debug)]
pub struct Outcome {
    histories: BTreeMap<u64, Vec<Operation>>,
    refused: BTreeSet<u64>,
    /// Number of errors by code.
    pub errors: BTreeMap<String, u64>,
}

impl Registers {
    /// Starts this number of clients, each of which chooses a random node for each operation.
    #[must_use]
    pub fn start(apis: Vec<Api>, clients: u32, seed: u64) -> Self {
        let shared = Arc::new(ClientState {
            start: Instant::now(),
            apis,
            seen: Mutex::default(),
            accepted: Notify::new(),
        });
        let stop = watch::Sender::new(false);
        let mut set = JoinSet::new();
        for client in 0..clients {
            let (shared, mut stopped) = (Arc::clone(&shared), stop.subscribe());
            let mut rng = Rng::new(seed.wrapping_add(client.into()));
            set.spawn(async move {
                // Stop between calls only, so that the outcome of each is known.
                while !*stopped.borrow_and_update() {
                    shared.step(client, &mut rng).await;
                }
            });
        }
        Self {
            shared,
            stop,
            clients: set,
        }
    }

    /// Waits for the first acknowledged write that was called after `moment`, and returns the time
    /// from `moment` to its acknowledgment.
    ///
    /// # Errors
    /// When there is none within `limit`.
    pub async fn next_accepted(&self, moment: Instant, limit: Duration) -> Result<Duration> {
        let after = self.shared.nanos(moment);
        let found = async {
            loop {
                let notified = self.shared.accepted.notified();
                let mut notified = std::pin::pin!(notified);
                notified.as_mut().enable();
                if let Some(answered) = self.shared.lock().first_accepted(after) {
                    return Duration::from_nanos(answered - after);
                }
                notified.await;
            }
        };
        let found = tokio::time::timeout(limit, found).await;
        found.with_context(|| {
            let errors = self.shared.lock().errors.clone();
            format!("no write was accepted within {limit:?}; errors so far: {errors:?}")
        })
    }

    /// Number of writes acknowledged so far.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.lock().accepted.len()
    }

    /// Stops all clients after their current call, and returns their record.
    ///
    /// # Errors
    /// When a client panicked.
    pub async fn stop(mut self) -> Result<Outcome> {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            ended.context("a client")?;
        }
        let seen = std::mem::take(&mut *self.shared.lock());
        Ok(Outcome {
            histories: seen.histories,
            refused: seen.refused,
            errors: seen.errors,
        })
    }
}

impl ClientState {
    fn lock(&self) -> MutexGuard<'_, Record> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nanos(&self, moment: Instant) -> u64 {
        let since = moment.saturating_duration_since(self.start);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    }

    fn now(&self) -> u64 {
        self.nanos(Instant::now())
    }

    /// Performs one operation of a client.
    async fn step(&self, client: u32, rng: &mut Rng) {
        let register = rng.within(0..REGISTERS);
        let Some(api) = rng.choose(&self.apis) else {
            return;
        };
        let failed = if rng.within(0..2) == 0 {
            self.write(api, client, register).await
        } else {
            self.read(api, client, register).await
        };
        if let Err(code) = failed {
            *self.lock().errors.entry(code).or_default() += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn write(&self, api: &Api, client: u32, register: u64) -> Result<(), String> {
        let value = {
            let mut seen = self.lock();
            seen.values += 1;
            seen.values
        };
        let request = v1::RegistryCredentialAddRequest {
            registry: format!("r{register}{SUFFIX}"),
            username: format!("v{value}"),
            secret: "-".into(),
        };
        let called = self.now();
        let mut credentials = api.registry();
        let result = call(request, |request| credentials.add(request)).await;
        let answered = self.now();
        let mut seen = self.lock();
        let answered = match result {
            Ok(_) => {
                seen.accepted.push((called, answered));
                Some(answered)
            }
            Err(ref error) if is_refusal(error) => {
                seen.refused.insert(value);
                return Err(error.code.clone());
            }
            Err(_) => None,
        };
        let action = Action::Write(value);
        seen.histories.entry(register).or_default().push(Operation {
            client,
            action,
            called,
            answered,
        });
        drop(seen);
        self.accepted.notify_waiters();
        result.map(drop).map_err(|error| error.code)
    }

    async fn read(&self, api: &Api, client: u32, register: u64) -> Result<(), String> {
        let called = self.now();
        let mut credentials = api.linearizable().registry();
        let request = v1::RegistryCredentialListRequest {};
        let list = call(request, |request| credentials.list(request)).await;
        let answered = self.now();
        let list = list.map_err(|error| error.code)?.credentials;
        let name = format!("r{register}{SUFFIX}");
        let found = list
            .into_iter()
            .find(|credential| credential.registry == name);
        // A value that no client wrote becomes one that no history explains.
        let value = found.map(|credential| value_of(&credential.username).unwrap_or(u64::MAX));
        let operation = Operation {
            client,
            action: Action::Read(value),
            called,
            answered: Some(answered),
        };
        self.lock()
            .histories
            .entry(register)
            .or_default()
            .push(operation);
        Ok(())
    }
}

impl Record {
    fn first_accepted(&self, after: u64) -> Option<u64> {
        let later = self.accepted.iter().filter(|(called, _)| *called >= after);
        later.map(|(_, answered)| *answered).min()
    }
}

/// Calls with a deadline that is sent to the daemon, and enforced twice as late if it does not
/// answer.
async fn call<R, T, F>(request: R, method: impl FnOnce(Request<R>) -> F) -> Result<T, DecodedError>
where
    F: Future<Output = Result<tonic::Response<T>, Status>>,
{
    let mut request = Request::new(request);
    request.set_timeout(CALL_TIMEOUT);
    let answer = tokio::time::timeout(2 * CALL_TIMEOUT, method(request)).await;
    let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer")));
    Ok(answer?.into_inner())
}

/// Whether an error guarantees that the write did not take effect. All others leave it open.
fn is_refusal(error: &DecodedError) -> bool {
    let refusals = [ErrorCode::NoLeader, ErrorCode::QuorumLost];
    error.known().is_some_and(|code| refusals.contains(&code))
}

fn value_of(username: &str) -> Option<u64> {
    username.strip_prefix('v')?.parse().ok()
}

impl Outcome {
    /// Number of operations that were answered or left open, and of writes that were refused.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (
            self.histories.values().map(Vec::len).sum(),
            self.refused.len(),
        )
    }

    /// Checks that the history of every register is linearizable; that the audit trail of a node
    /// holds every acknowledged write, none twice, and none that was refused; and that the last
    /// write of each register in the trail is the register's value.
    ///
    /// # Errors
    /// Describes the first violation.
    pub async fn check(&self, api: &Api) -> Result<()> {
        linear::check_all(&self.histories)
            .map_err(|(register, violation)| violation_of(register, &violation))?;
        let trail = trail(api).await?;
        let mut counts: BTreeMap<u64, u64> = BTreeMap::new();
        for (_, value) in &trail {
            *counts.entry(*value).or_default() += 1;
        }
        if let Some((value, count)) = counts.iter().find(|(_, count)| **count > 1) {
            bail!("write {value} happened {count} times");
        }
        for operation in self.histories.values().flatten() {
            if let (Action::Write(value), Some(_)) = (operation.action, operation.answered) {
                ensure!(
                    counts.contains_key(&value),
                    "acknowledged and lost: {operation}"
                );
            }
        }
        if let Some(value) = self.refused.iter().find(|value| counts.contains_key(value)) {
            bail!("write {value} was refused, and happened");
        }
        let last: BTreeMap<String, u64> = trail.into_iter().collect();
        let list = api
            .registry()
            .list(v1::RegistryCredentialListRequest {})
            .await?;
        for credential in list.into_inner().credentials {
            let held = value_of(&credential.username);
            let last = last.get(&credential.registry).copied();
            ensure!(
                held == last,
                "{} holds {held:?}, but the last write was {last:?}",
                credential.registry
            );
        }
        Ok(())
    }
}

fn violation_of(register: u64, violation: &linear::Violation) -> anyhow::Error {
    anyhow::anyhow!("register {register}: {violation}")
}

/// Every write in the audit trail of a node, in order: register and value.
async fn trail(api: &Api) -> Result<Vec<(String, u64)>> {
    let query = v1::AuditQueryRequest {
        types: vec![AuditEventType::RegistryCredentialUpsert.into()],
        ..Default::default()
    };
    let mut events = api.audit().query(query).await?.into_inner();
    let mut found = Vec::new();
    while let Some(event) = events.message().await? {
        let of = |key: &str| event.payload.get(key).cloned().unwrap_or_default();
        if let Some(value) = value_of(&of("username")) {
            found.push((of("registry"), value));
        }
    }
    Ok(found)
}
