//! `jaco-lab`: a cluster of machines on one host, for experiments.

use std::{
    os::unix::{net::UnixStream, process::CommandExt as _},
    path::Path,
    process::{Child, Command, ExitCode, Stdio},
    sync::Mutex,
    time::Duration,
};

use anyhow::{Context, Result, anyhow, bail};
use jaco_chaos::{
    Lab,
    daemon::program,
    lab::{
        Name, clean,
        control::{self, ExitSignals, HELP},
        netns,
    },
    until,
    wait::WAIT_TIMEOUT,
};
use rustix::process::{Pid, Signal, kill_process};

/// Time limit for requests to a lab of many nodes.
const BUILD_TIME: Duration = Duration::from_secs(300);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let result = match (runtime, &words[..]) {
        (Err(error), _) => Err(error.into()),
        (Ok(runtime), ["--lab", name, words @ ..]) => runtime.block_on(run(Some(name), words)),
        (Ok(runtime), words) => runtime.block_on(run(None, words)),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            print_error(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(lab: Option<&str>, words: &[&str]) -> Result<()> {
    match words {
        [] | ["help" | "--help" | "-h"] => print(&format!("{}\n{HELP}", usage())),
        ["up", options @ ..] => up(options).await?,
        ["serve", options @ ..] => control::serve(build(options)).await?,
        ["list"] => clean::list().iter().for_each(|name| {
            let whose = if name.is_owned() {
                ""
            } else {
                "  (its owner is gone)"
            };
            print(&format!("{}{whose}", name.as_str()));
        }),
        ["clean"] => {
            let removed = clean::stale()?;
            removed
                .iter()
                .for_each(|name| print(&format!("removed {}", name.as_str())));
        }
        ["down"] => down(lab).await?,
        ["enter", place] => {
            let name = choose(lab)?;
            let shell = std::env::var("SHELL").unwrap_or_else(|_| "/bin/sh".to_owned());
            let mut command = netns::command(&name.resource_name(place), shell);
            command.env("JACO_SOCKET", name.dir().join(place).join("s"));
            return Err(command.exec()).context("enter");
        }
        ["jaco", node, words @ ..] => {
            let dir = choose(lab)?.dir().join(node);
            let mut command = Command::new(program("jaco")?);
            command
                .args(words)
                .env("JACO_SOCKET", dir.join("s"))
                .env("JACO_CONFIG", dir.join("jacod.yaml"));
            return Err(command.exec()).context("jaco");
        }
        ["logs", node] => {
            let path = choose(lab)?.dir().join(node).join("jacod.log");
            print(&std::fs::read_to_string(path)?);
        }
        verb => {
            let text = control::request(&choose(lab)?, verb).await?;
            if !text.is_empty() {
                print(&text);
            }
        }
    }
    Ok(())
}

fn usage() -> String {
    "\
jaco-lab [--lab NAME] COMMAND

  up [N] [--no-engines] [--disk MIB] [--clocks] [--seed S]
                             build N machines (3) and leave them running
  down                       remove the lab
  list                       all labs of this machine
  clean                      remove the remains of labs whose owner is gone
  enter A|hub                a shell on a machine, or on the network between them
  jaco A WORDS...            run jaco on the socket of a machine
  logs A                     print the log of its daemons"
        .to_owned()
}

/// Selects the named lab, or the only one.
fn choose(name: Option<&str>) -> Result<Name> {
    if let Some(text) = name {
        return Name::parse(text).with_context(|| format!("{text:?} is no name of a lab"));
    }
    // Labs of tests have no control socket, or are short-lived; consider only those that can be
    // controlled.
    let mut labs = clean::list();
    labs.retain(|name| name.is_owned() && control::socket(name).exists());
    let mut labs = labs.into_iter();
    match (labs.next(), labs.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => bail!("no lab is up: jaco-lab up"),
        (Some(_), Some(_)) => bail!("several labs are up: name one with --lab (jaco-lab list)"),
    }
}

async fn build(options: &[&str]) -> Result<Lab> {
    let mut builder = Lab::builder().engines(true).quiet();
    let mut options = options.iter();
    while let Some(option) = options.next() {
        let mut value = || {
            options
                .next()
                .with_context(|| format!("{option} needs a value"))
        };
        builder = match *option {
            "--no-engines" => builder.engines(false),
            "--clocks" => builder.clocks(true),
            "--disk" => builder.disk(value()?.parse::<u64>().context("--disk")? << 20),
            "--seed" => builder.seed(value()?.parse().context("--seed")?),
            number => builder.nodes(number.parse().context("a number of nodes")?),
        };
    }
    builder.start().await
}

/// Starts an owner in a session of its own and waits until its lab is up. Any failure, also a
/// signal, ends the owner and removes its lab.
async fn up(options: &[&str]) -> Result<()> {
    let log = tempfile::Builder::new()
        .prefix("jaco-lab-")
        .suffix(".log")
        .tempfile_in("/tmp")?;
    let mut ending = ExitSignals::listen()?; // before anything is created
    let mut owner = Command::new("setsid")
        .arg(std::env::current_exe()?)
        .arg("serve")
        .args(options)
        .stdin(Stdio::null())
        .stdout(log.reopen()?)
        .stderr(log.reopen()?)
        .spawn()?;
    let standing = async {
        let name = wait_up(&mut owner, log.path()).await?;
        control::request(&name, &["status"]).await
    };
    let standing = tokio::select! {
        standing = standing => standing,
        () = ending.next() => Err(anyhow!("interrupted before the lab was up")),
    };
    match standing {
        Ok(status) => print(&status),
        Err(error) => {
            end(owner).await.with_context(|| format!("{error:#}"))?;
            return Err(error);
        }
    }
    let this = std::env::current_exe()?;
    let this = this.display();
    print(&format!(
        "Try:  {this} join-all | status | cut n1 n2,n3 | heal | crash n2 | enter n1 | down"
    ));
    Ok(())
}

/// Waits until the lab of an owner that logs to `log` accepts commands.
async fn wait_up(owner: &mut Child, log: &Path) -> Result<Name> {
    loop {
        if let Some(status) = owner.try_wait()? {
            bail!("{status}: {}", std::fs::read_to_string(log)?.trim());
        }
        let ready = until("the lab", Duration::from_millis(500), || async {
            let mut labs = labs_of(owner.id()).into_iter();
            // The file exists from bind on, and connections are refused until listen.
            labs.find(|name| UnixStream::connect(control::socket(name)).is_ok())
                .ok_or("it is being built")
        });
        if let Ok(name) = ready.await {
            return Ok(name);
        }
    }
}

/// Ends an owner and removes its lab, even a partly built one.
async fn end(mut owner: Child) -> Result<()> {
    let pid = owner.id();
    if owner.try_wait()?.is_none() {
        kill_process(Pid::from_child(&owner), Signal::TERM)?;
        let owner = Mutex::new(&mut owner);
        let ended = until("the end of the owner", WAIT_TIMEOUT, || async {
            let ended = owner.lock().map_err(|error| error.to_string())?.try_wait();
            ended
                .map_err(|error| error.to_string())?
                .ok_or_else(|| "it still runs".to_owned())
        });
        // An owner that hangs cannot clean up.
        let _ = ended.await;
    }
    let _ = owner.kill(); // usually it has exited
    owner.wait()?;
    labs_of(pid).iter().try_for_each(clean::remove)
}

fn labs_of(owner: u32) -> Vec<Name> {
    let mut labs: Vec<Name> = clean::list().into_iter().collect();
    labs.retain(|name| name.owner() == Some(owner));
    labs
}

async fn down(lab: Option<&str>) -> Result<()> {
    let name = choose(lab)?;
    match tokio::time::timeout(BUILD_TIME, control::request(&name, &["down"])).await {
        Ok(Ok(text)) => print(&text),
        // The owner is gone or stuck: remove its lab by name.
        Ok(Err(_)) | Err(_) => clean::remove(&name)?,
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "what a command line is for")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "what a command line is for")]
fn print_error(text: &str) {
    eprintln!("jaco-lab: {text}");
}
