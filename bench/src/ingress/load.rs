//! Loads a proxy with requests, as fast as it answers or at a given rate.

use std::{
    cell::RefCell,
    collections::VecDeque,
    io,
    net::Ipv4Addr,
    os::fd::OwnedFd,
    rc::Rc,
    sync::Barrier,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use tokio::{
    io::unix::AsyncFd,
    sync::Notify,
    task::{JoinSet, LocalSet},
};

use super::{
    Protocol, Proxy,
    client::{Connection, Connector, Resource},
};
use crate::Samples;

/// Time for which a proxy is loaded before anything is counted.
const WARM_UP: Duration = Duration::from_millis(300);
/// Requests that one connection of HTTP/2 or HTTP/3 carries at a time.
const STREAMS: usize = 8;

/// How often requests are sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// Each client sends the next request when it has the response.
    Closed,
    /// So many per second, whatever the proxy does. Latency counts from the time at which a request
    /// was due, so that a proxy that is late with one answers for those that wait behind it.
    Rate(f64),
}

/// A way to load a proxy.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// The protocol of the clients.
    pub protocol: Protocol,
    /// The resource that they request.
    pub resource: Resource,
    /// Whether each request has a connection of its own.
    pub new_connections: bool,
    /// Requests in flight at most.
    pub clients: usize,
    /// Threads of the clients.
    pub threads: usize,
    /// How often requests are sent.
    pub pace: Pace,
    /// Time for which responses are counted.
    pub time: Duration,
}

/// One request that was answered correctly.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// When it was due.
    pub due: Instant,
    /// Time from then to the end of the response.
    pub latency: Duration,
}

/// Figures of one load.
#[derive(Debug)]
pub struct Outcome {
    /// Responses, in no order; at least one.
    pub answers: Vec<Answer>,
    /// Time in which they came.
    pub time: Duration,
    /// Processor time of the proxy in that time.
    pub cpu: Duration,
}

impl Outcome {
    /// Responses per second.
    #[must_use]
    pub fn per_second(&self) -> f64 {
        self.answers.len() as f64 / self.time.as_secs_f64()
    }

    /// Processor time of the proxy per response, in microseconds.
    #[must_use]
    pub fn cpu_micros(&self) -> f64 {
        self.cpu.as_secs_f64() * 1e6 / self.answers.len() as f64
    }

    /// The latencies.
    #[must_use]
    pub fn latencies(&self) -> Samples {
        Samples::new(self.answers.iter().map(|answer| answer.latency).collect())
    }
}

/// The times of a run.
#[derive(Clone, Copy)]
struct Window {
    start: Instant,
    end: Instant,
}

impl Window {
    fn begin(time: Duration) -> Self {
        let start = Instant::now() + WARM_UP;
        Self {
            start,
            end: start + time,
        }
    }
}

/// Loads `proxy`.
///
/// # Errors
/// The first request that failed, was answered with another status than 200 or another length, or
/// had no answer.
pub fn run(proxy: &Proxy, load: &Load) -> Result<Outcome> {
    let connected = Barrier::new(load.threads + 1);
    thread::scope(|scope| {
        let work = || run_thread(proxy, load, &connected);
        let threads: Vec<_> = (0..load.threads).map(|_| scope.spawn(work)).collect();
        connected.wait();
        let window = Window::begin(load.time);
        sleep_until(window.start);
        let before = proxy.process.cpu()?;
        sleep_until(window.end);
        let (cpu, time) = (proxy.process.cpu()? - before, window.start.elapsed());
        let mut answers = Vec::new();
        for thread in threads {
            let of_thread = thread.join().map_err(|_| anyhow!("a client panicked"))?;
            answers.extend(of_thread.with_context(|| format!("a client of {}", proxy.name))?);
        }
        ensure!(!answers.is_empty(), "{} answered nothing", proxy.name);
        Ok(Outcome { answers, time, cpu })
    })
}

fn sleep_until(time: Instant) {
    thread::sleep(time.saturating_duration_since(Instant::now()));
}

fn run_thread(proxy: &Proxy, load: &Load, connected: &Barrier) -> Result<Vec<Answer>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let opened = open(proxy, load).await;
        // All threads begin together, also if one cannot.
        connected.wait();
        let (connector, connections) = opened?;
        let window = Window::begin(load.time);
        let arrivals = Rc::new(Arrivals::default());
        let mut clients = JoinSet::new();
        for connection in connections {
            let client = Client {
                connector: connector.clone(),
                connection,
                load: *load,
                window,
                arrivals: arrivals.clone(),
            };
            clients.spawn_local(client.run());
        }
        if let Pace::Rate(rate) = load.pace {
            let rate = rate / load.threads as f64;
            arrivals.produce(rate, window.end).await?;
        }
        let mut answers = Vec::new();
        while let Some(of_client) = clients.join_next().await {
            answers.extend(of_client??);
        }
        Ok(answers)
    })
}

/// Opens the connections of the clients of one thread, of those that keep one.
async fn open(proxy: &Proxy, load: &Load) -> Result<(Connector, Vec<Option<Connection>>)> {
    let addr = proxy.addr(load.protocol);
    let connector = Connector::new(addr, load.protocol, Ipv4Addr::LOCALHOST)?;
    let clients = load.clients.div_ceil(load.threads);
    let mut connections: Vec<Option<Connection>> = Vec::with_capacity(clients);
    while connections.len() < clients {
        if load.new_connections {
            connections.push(None);
            continue;
        }
        let connection = connector.open().await?;
        let shares = (1..STREAMS).map_while(|_| connection.share().map(Some));
        let shares: Vec<_> = shares.collect();
        connections.push(Some(connection));
        connections.extend(shares);
    }
    connections.truncate(clients);
    Ok((connector, connections))
}

/// Sends one request at a time.
struct Client {
    connector: Connector,
    connection: Option<Connection>,
    load: Load,
    window: Window,
    arrivals: Rc<Arrivals>,
}

impl Client {
    async fn run(mut self) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        while let Some(due) = self.next().await {
            self.request().await?;
            let now = Instant::now();
            let is_counted = match self.load.pace {
                Pace::Closed => now >= self.window.start && now < self.window.end,
                Pace::Rate(_) => due >= self.window.start,
            };
            if is_counted {
                let latency = now - due;
                answers.push(Answer { due, latency });
            }
        }
        Ok(answers)
    }

    /// When the next request is due.
    async fn next(&self) -> Option<Instant> {
        match self.load.pace {
            Pace::Closed => Some(Instant::now()).filter(|now| *now < self.window.end),
            Pace::Rate(_) => self.arrivals.next().await,
        }
    }

    async fn request(&mut self) -> Result<()> {
        let resource = self.load.resource;
        match &mut self.connection {
            Some(connection) => connection.get(resource, false).await,
            None => self.connector.open().await?.get(resource, true).await,
        }
    }
}

/// Requests that are due and not sent yet.
#[derive(Default)]
struct Arrivals {
    waiting: RefCell<VecDeque<Instant>>,
    ended: RefCell<bool>,
    changed: Notify,
}

impl Arrivals {
    /// Adds `rate` requests per second until `end`.
    async fn produce(&self, rate: f64, end: Instant) -> Result<()> {
        let interval = Duration::from_secs_f64(1.0 / rate);
        let timer = ticker(interval)?;
        #[expect(unsafe_code, reason = "tokio's registration of descriptors is unsafe")]
        // SAFETY: an owned descriptor stays the same one, and stays open until it is dropped.
        let timer = unsafe { AsyncFd::register(timer) }.map_err(io::Error::from)?;
        let mut due = Instant::now() + interval;
        while due < end {
            timer.readable().await?.clear_ready();
            // Ticks are not counted but compared with the clock.
            let _ = rustix::io::read(&timer, &mut [0; 8]);
            while due <= Instant::now().min(end) {
                self.waiting.borrow_mut().push_back(due);
                self.changed.notify_one();
                due += interval;
            }
        }
        *self.ended.borrow_mut() = true;
        self.changed.notify_waiters();
        Ok(())
    }

    /// Takes the oldest; `None` after the last.
    async fn next(&self) -> Option<Instant> {
        loop {
            if let Some(due) = self.waiting.borrow_mut().pop_front() {
                return Some(due);
            }
            if *self.ended.borrow() {
                return None;
            }
            self.changed.notified().await;
        }
    }
}

/// A timer of the kernel: those of tokio have a resolution of a millisecond.
fn ticker(interval: Duration) -> Result<OwnedFd> {
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK)?;
    let time = Timespec {
        tv_sec: interval.as_secs().try_into()?,
        tv_nsec: interval.subsec_nanos().into(),
    };
    let times = Itimerspec {
        it_interval: time,
        it_value: time,
    };
    timerfd_settime(&timer, TimerfdTimerFlags::empty(), &times)?;
    Ok(timer)
}
