//! Remote control of a lab that outlives the command that made it: its owner process serves verbs
//! on a socket.
//!
//! A request is one line: a JSON array of words. The reply is one line too:
//! `{"ok": .., "text": ..}`.

use std::{future::Future, io, path::PathBuf, time::Duration};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{UnixListener, UnixStream},
    signal::unix::{Signal, SignalKind, signal},
};

use super::{Impairment, Lab, Name, netns, node::HTTP_PORT, registry};

/// Longest request, in bytes.
const REQUEST_MAX: u64 = 64 * 1024;

/// A command to a lab.
#[derive(Clone, Debug, PartialEq)]
pub enum Verb {
    /// Show nodes, faults and leader.
    Status,
    /// Initialise the cluster on the first node.
    Init,
    /// Initialise the cluster and join all other nodes.
    JoinAll,
    /// Join nodes through another.
    Join(Vec<u8>, u8),
    /// Add this number of nodes.
    Add(u8),
    /// Drop everything between two groups.
    Cut(Vec<u8>, Vec<u8>),
    /// Drop everything from the first to the second group.
    CutOneWay(Vec<u8>, Vec<u8>),
    /// Partition nodes from all others.
    Isolate(Vec<u8>),
    /// Impair the links between two groups.
    Impair(Vec<u8>, Vec<u8>, Impairment),
    /// Remove all faults from the links between two groups.
    Heal(Vec<u8>, Vec<u8>),
    /// Remove all faults from all links.
    HealAll,
    /// Act on each of these machines.
    Each(NodeAction, Vec<u8>),
    /// Set the clocks of daemons, in seconds from the right time.
    Skew(Vec<u8>, i64),
    /// Remove the lab.
    Down,
}

/// An action on one machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeAction {
    /// Stop the daemon's process (SIGSTOP).
    Pause,
    /// Continue the daemon's process (SIGCONT).
    Resume,
    /// Kill the daemon.
    Kill,
    /// Start the daemon.
    Start,
    /// Stop the daemon gracefully.
    Stop,
    /// Kill and start the daemon.
    Restart,
    /// Cut the power of the machine.
    Crash,
    /// Restart a crashed machine.
    Boot,
    /// Delete everything its daemon stored.
    Wipe,
    /// Fill its disk.
    Fill,
    /// Remove the file that fills its disk.
    Free,
}

/// Usage text of all verbs.
pub const HELP: &str = "\
  status                     nodes, leader, faults
  init                       found a cluster on n1
  join NODES [THROUGH]       make nodes join through a member (default n1)
  join-all                   found a cluster on n1 and make all others join
  add N                      add N machines
  cut A B                    drop all packets between A and B
  cut-from A B               drop all packets from A to B
  isolate A                  cut A off from all others
  impair A B HOW...          loss=5% delay=200ms jitter=20ms reorder=25% duplicate=1%
                             largest=1300 (bytes; larger packets vanish)
  heal [A B]                 make lines whole: between A and B, or all
  pause|resume A             stop the daemon's process from running, let it go on
  kill|start|stop|restart A  the daemon; its containers stay
  crash|boot A               the whole machine, as if its power were cut
  wipe A                     forget all that a stopped daemon kept
  fill|free A                the disk of the data directory (up --disk)
  skew A SECONDS             set the daemon's clock ahead or behind (up --clocks)
A and B are nodes: n1, n1,n3 or all.";

impl Verb {
    /// Parses the words of a verb, in a lab of this number of nodes.
    ///
    /// # Errors
    /// Describes the words that are not valid.
    pub fn parse(words: &[&str], nodes: u8) -> Result<Self> {
        let group = |text: &str| group(text, nodes);
        Ok(match words {
            ["status"] => Self::Status,
            ["init"] => Self::Init,
            ["join-all"] => Self::JoinAll,
            ["join", a] => Self::Join(group(a)?, 1),
            ["join", a, through] => Self::Join(group(a)?, one(through, nodes)?),
            ["add", count] => Self::Add(count.parse().context("a number of nodes")?),
            ["cut", a, b] => Self::Cut(group(a)?, group(b)?),
            ["cut-from", a, b] => Self::CutOneWay(group(a)?, group(b)?),
            ["isolate", a] => Self::Isolate(group(a)?),
            ["impair", a, b, how @ ..] => Self::Impair(group(a)?, group(b)?, impairment(how)?),
            ["heal"] => Self::HealAll,
            ["heal", a, b] => Self::Heal(group(a)?, group(b)?),
            ["skew", a, seconds] => Self::Skew(group(a)?, seconds.parse().context("seconds")?),
            ["down"] => Self::Down,
            [deed, a] => Self::Each(node_action(deed)?, group(a)?),
            _ => bail!("no such verb: {}\n{HELP}", words.join(" ")),
        })
    }
}

fn node_action(word: &str) -> Result<NodeAction> {
    Ok(match word {
        "pause" => NodeAction::Pause,
        "resume" => NodeAction::Resume,
        "kill" => NodeAction::Kill,
        "start" => NodeAction::Start,
        "stop" => NodeAction::Stop,
        "restart" => NodeAction::Restart,
        "crash" => NodeAction::Crash,
        "boot" => NodeAction::Boot,
        "wipe" => NodeAction::Wipe,
        "fill" => NodeAction::Fill,
        "free" => NodeAction::Free,
        _ => bail!("no such verb: {word}\n{HELP}"),
    })
}

/// `n1`, or several with commas, or `all`.
fn group(text: &str, nodes: u8) -> Result<Vec<u8>> {
    if text == "all" {
        return Ok((1..=nodes).collect());
    }
    text.split(',').map(|name| one(name, nodes)).collect()
}

fn one(text: &str, nodes: u8) -> Result<u8> {
    let index = text
        .strip_prefix('n')
        .and_then(|digits| digits.parse().ok());
    let index = index.filter(|index| (1..=nodes).contains(index));
    index.with_context(|| format!("{text:?} is no node: they are n1 to n{nodes}"))
}

fn impairment(words: &[&str]) -> Result<Impairment> {
    let mut how = Impairment::default();
    for word in words {
        let (key, value) = word
            .split_once('=')
            .with_context(|| format!("{word:?}: KEY=VALUE"))?;
        match key {
            "loss" => how.loss = share(value)?,
            "reorder" => how.reorder = share(value)?,
            "duplicate" => how.duplicate = share(value)?,
            "delay" => how.delay = milliseconds(value)?,
            "jitter" => how.jitter = milliseconds(value)?,
            "largest" => how.largest = Some(value.parse().context("a number of bytes")?),
            _ => bail!("{key:?}: loss, delay, jitter, reorder, duplicate or largest"),
        }
    }
    if how == Impairment::default() {
        bail!("how? loss, delay, jitter, reorder, duplicate or largest");
    }
    Ok(how)
}

fn share(text: &str) -> Result<f64> {
    let percent = text
        .strip_suffix('%')
        .and_then(|number| number.parse::<f64>().ok());
    let percent = percent.filter(|percent| (0.0..=100.0).contains(percent));
    Ok(percent.with_context(|| format!("{text:?} is no share, such as 5%"))? / 100.0)
}

fn milliseconds(text: &str) -> Result<Duration> {
    let number = text
        .strip_suffix("ms")
        .and_then(|number| number.parse().ok());
    number
        .map(Duration::from_millis)
        .with_context(|| format!("{text:?} is no time, such as 20ms"))
}

/// Path of the socket on which the owner of a lab listens.
#[must_use]
pub fn socket(name: &Name) -> PathBuf {
    name.dir().join("control")
}

/// Stream of the signals that end a process: SIGINT, SIGTERM and SIGHUP.
#[derive(Debug)]
pub struct ExitSignals([Signal; 3]);

impl ExitSignals {
    /// Installs handlers, which replace the default action of these signals.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> io::Result<Self> {
        Ok(Self([
            signal(SignalKind::interrupt())?,
            signal(SignalKind::terminate())?,
            signal(SignalKind::hangup())?,
        ]))
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.0;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

/// Builds a lab and serves verbs until [`Verb::Down`] or a signal of [`ExitSignals`], also during
/// the construction; then removes the lab.
///
/// # Errors
/// When it cannot be built, or nothing can be served.
pub async fn serve(lab: impl Future<Output = Result<Lab>>) -> Result<()> {
    let mut ending = ExitSignals::listen()?;
    let mut lab = tokio::select! {
        lab = lab => lab?,
        () = ending.next() => return Ok(()),
    };
    let listener = UnixListener::bind(socket(lab.name()))?;
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted?.0,
            () = ending.next() => return Ok(()),
        };
        // One request at a time: the next verb sees the effects of this one. An error means that
        // the client has disconnected.
        if let Ok(Some(waiting)) = answer(&mut lab, stream).await {
            let name = lab.name().as_str().to_owned();
            drop(lab);
            let _ = reply(waiting, Ok(format!("{name} is gone"))).await; // client may be gone
            return Ok(());
        }
    }
}

/// Answers one request. Leaves [`Verb::Down`] to the caller and returns its stream.
async fn answer(lab: &mut Lab, mut stream: UnixStream) -> Result<Option<UnixStream>> {
    let mut line = String::new();
    let mut reader = BufReader::new((&mut stream).take(REQUEST_MAX));
    reader.read_line(&mut line).await?;
    let words: Vec<String> = serde_json::from_str(&line)?;
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match Verb::parse(&words, u8::try_from(lab.nodes().len())?) {
        Ok(Verb::Down) => return Ok(Some(stream)),
        Ok(verb) => perform(lab, verb).await,
        Err(error) => Err(error),
    };
    reply(stream, result).await?;
    Ok(None)
}

async fn reply(mut stream: UnixStream, result: Result<String>) -> Result<()> {
    let answer = match result {
        Ok(text) => json!({"ok": true, "text": text}),
        Err(error) => json!({"ok": false, "text": format!("{error:#}")}),
    };
    Ok(stream.write_all(format!("{answer}\n").as_bytes()).await?)
}

/// Sends words to the owner of a lab and returns its reply.
///
/// # Errors
/// When the owner does not answer, and the owner's error.
pub async fn request(name: &Name, words: &[&str]) -> Result<String> {
    let asked = async {
        let mut stream = UnixStream::connect(socket(name)).await?;
        stream
            .write_all(format!("{}\n", json!(words)).as_bytes())
            .await?;
        let mut text = String::new();
        stream.read_to_string(&mut text).await?;
        Ok::<_, std::io::Error>(text)
    };
    let text = asked
        .await
        .with_context(|| format!("{} does not answer", name.as_str()))?;
    let answer: Value = serde_json::from_str(&text).context("an answer")?;
    let text = answer["text"].as_str().unwrap_or_default();
    if answer["ok"] == true {
        Ok(text.to_owned())
    } else {
        Err(anyhow!("{text}"))
    }
}

async fn perform(lab: &mut Lab, verb: Verb) -> Result<String> {
    match verb {
        Verb::Status => return Ok(status(lab).await),
        Verb::Init => lab.init().await?,
        Verb::JoinAll => lab.join_all().await?,
        Verb::Join(nodes, through) => {
            for node in nodes {
                lab.join(node, through).await?;
            }
        }
        Verb::Add(count) => lab.add(count).await?,
        Verb::Cut(a, b) => lab.cut(&a, &b)?,
        Verb::CutOneWay(a, b) => lab.cut_one_way(&a, &b)?,
        Verb::Isolate(a) => lab.isolate(&a)?,
        Verb::Impair(a, b, how) => lab.impair(&a, &b, how)?,
        Verb::Heal(a, b) => lab.heal(&a, &b)?,
        Verb::HealAll => lab.heal_all()?,
        Verb::Each(deed, nodes) => {
            for node in nodes {
                deed.perform(lab, node).await?;
            }
        }
        Verb::Skew(nodes, seconds) => {
            for node in nodes {
                lab.node(node).skew_clock(seconds)?;
            }
        }
        Verb::Down => {} // handled by the caller
    }
    Ok(String::new())
}

impl NodeAction {
    async fn perform(self, lab: &mut Lab, index: u8) -> Result<()> {
        let node = lab.node_mut(index);
        match self {
            Self::Pause => node.pause(),
            Self::Resume => node.resume(),
            Self::Kill => node.kill(),
            Self::Start => node.start().await,
            Self::Stop => node.stop().await.map(drop),
            Self::Restart => {
                node.kill()?;
                node.start().await
            }
            Self::Crash => lab.crash(index),
            Self::Boot => lab.boot(index).await,
            Self::Wipe => node.wipe(),
            Self::Fill => node.fill_disk(),
            Self::Free => node.free_disk(),
        }
    }
}

/// Describes the lab for a person: nodes, sockets, faults, operator token.
async fn status(lab: &Lab) -> String {
    let mut lines = vec![format!(
        "lab {}  {}",
        lab.name().as_str(),
        lab.dir().display()
    )];
    for node in lab.nodes() {
        let state = match (node.pid(), node.is_paused()) {
            (Err(_), _) => "no daemon".to_owned(),
            (Ok(pid), true) => format!("paused, pid {pid}"),
            (Ok(pid), false) => {
                let asked = tokio::time::timeout(Duration::from_secs(2), node.api().status());
                let seen = match asked.await {
                    Ok(Ok(seen)) if !seen.initialized => "no cluster".to_owned(),
                    Ok(Ok(seen)) => format!("leader {:?}", seen.leader_hostname),
                    Ok(Err(error)) => error.to_string(),
                    Err(_) => "no answer".to_owned(),
                };
                format!("pid {pid}, {seen}")
            }
        };
        lines.push(format!(
            "{:<4} {}  {state}\n     jaco --socket {}   nsenter --net={} curl http://{}:{HTTP_PORT}/",
            node.host(),
            node.api_address(),
            node.socket().display(),
            netns::path(lab.network().namespace()).display(),
            node.address(),
        ));
    }
    let cuts = lab.network().cuts().iter();
    lines.extend(cuts.map(|(from, to)| format!("cut      {from} -> {to}")));
    let impaired = lab.network().impairments().iter();
    lines.extend(impaired.map(|((from, to), how)| format!("impaired {from} -> {to}  {how:?}")));
    if !lab.operator_token().is_empty() {
        lines.push(format!("operator token {}", lab.operator_token()));
    }
    lines.push(format!("registry {}", registry::address()));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_are_parsed() {
        let slow = Impairment {
            loss: 0.05,
            delay: Duration::from_millis(200),
            ..Impairment::default()
        };
        let narrow = Impairment {
            largest: Some(1300),
            ..Impairment::default()
        };
        for (line, expected) in [
            ("status", Verb::Status),
            ("cut n1 n2,n3", Verb::Cut(vec![1], vec![2, 3])),
            ("cut-from all n2", Verb::CutOneWay(vec![1, 2, 3], vec![2])),
            (
                "impair n1 n2 loss=5% delay=200ms",
                Verb::Impair(vec![1], vec![2], slow),
            ),
            (
                "impair n1 n2 largest=1300",
                Verb::Impair(vec![1], vec![2], narrow),
            ),
            ("heal", Verb::HealAll),
            ("heal n1 n2", Verb::Heal(vec![1], vec![2])),
            ("join n2,n3", Verb::Join(vec![2, 3], 1)),
            ("join n3 n2", Verb::Join(vec![3], 2)),
            ("crash n3", Verb::Each(NodeAction::Crash, vec![3])),
            ("skew n1 -90", Verb::Skew(vec![1], -90)),
            ("down", Verb::Down),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            assert_eq!(Verb::parse(&words, 3).unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn invalid_verb_error_names_the_word() {
        for (line, word) in [
            ("", "no such verb"),
            ("explode n1", "explode"),
            ("kill n4", "n1 to n3"),
            ("kill n0", "n0"),
            ("kill 1", "\"1\""),
            ("impair n1 n2", "how?"),
            ("impair n1 n2 loss=5", "5%"),
            ("impair n1 n2 loss=101%", "101%"),
            ("impair n1 n2 delay=1s", "20ms"),
            ("impair n1 n2 speed=1", "speed"),
            ("cut n1", "no such verb"),
        ] {
            let words: Vec<&str> = line.split(' ').collect();
            let error = format!("{:#}", Verb::parse(&words, 3).unwrap_err());
            assert!(error.contains(word), "{line}: {error}");
        }
    }
}
