//! `jaco-lab`: several machines on one, to play with.

use std::{
    os::unix::process::CommandExt as _,
    process::{Command, ExitCode, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};
use jaco_chaos::{
    Lab,
    daemon::program,
    lab::{
        Name, clean,
        control::{self, HELP},
        netns,
    },
    until,
};

/// Longest wait for a lab of many nodes.
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
            complain(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

async fn run(lab: Option<&str>, words: &[&str]) -> Result<()> {
    match words {
        [] | ["help" | "--help" | "-h"] => print(&format!("{}\n{HELP}", usage())),
        ["up", options @ ..] => up(options).await?,
        ["serve", options @ ..] => control::serve(build(options).await?).await?,
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
            let mut command = netns::command(&name.place(place), shell);
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
            let said = control::ask(&choose(lab)?, verb).await?;
            if !said.is_empty() {
                print(&said);
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
  clean                      remove what is left of labs whose owner is gone
  enter A|hub                a shell on a machine, or between them
  jaco A WORDS...            run jaco on the socket of a machine
  logs A                     what its daemons logged"
        .to_owned()
}

/// The lab that is meant: the named one, or the only one.
fn choose(name: Option<&str>) -> Result<Name> {
    if let Some(text) = name {
        return Name::parse(text).with_context(|| format!("{text:?} is no name of a lab"));
    }
    // Labs of tests come and go; only those that can be asked are meant.
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

/// Starts an owner in a session of its own and waits until its lab stands.
async fn up(options: &[&str]) -> Result<()> {
    let log = tempfile::Builder::new()
        .prefix("jaco-lab-")
        .suffix(".log")
        .tempfile_in("/tmp")?;
    let mut owner = Command::new("setsid")
        .arg(std::env::current_exe()?)
        .arg("serve")
        .args(options)
        .stdin(Stdio::null())
        .stdout(log.reopen()?)
        .stderr(log.reopen()?)
        .spawn()?;
    let name = loop {
        if let Some(status) = owner.try_wait()? {
            bail!("{status}: {}", std::fs::read_to_string(log.path())?.trim());
        }
        let ready = until("the lab", Duration::from_millis(500), || async {
            let mut labs = clean::list().into_iter();
            let mine = labs.find(|name| name.owner() == Some(owner.id()));
            mine.filter(|name| control::socket(name).exists())
                .ok_or("it is being built")
        });
        if let Ok(name) = ready.await {
            break name;
        }
    };
    print(&control::ask(&name, &["status"]).await?);
    let this = std::env::current_exe()?;
    let this = this.display();
    print(&format!(
        "Try:  {this} join-all | status | cut n1 n2,n3 | heal | crash n2 | enter n1 | down"
    ));
    Ok(())
}

async fn down(lab: Option<&str>) -> Result<()> {
    let name = choose(lab)?;
    match tokio::time::timeout(BUILD_TIME, control::ask(&name, &["down"])).await {
        Ok(Ok(said)) => print(&said),
        // Its owner is gone or stuck: what it made can be found without it.
        Ok(Err(_)) | Err(_) => clean::remove(&name)?,
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "what a command line is for")]
fn print(text: &str) {
    println!("{text}");
}

#[expect(clippy::print_stderr, reason = "what a command line is for")]
fn complain(text: &str) {
    eprintln!("jaco-lab: {text}");
}
