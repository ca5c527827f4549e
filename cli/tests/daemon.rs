//! Tests of the built daemon under a service manager: descriptors, variables, signals, exit status.
//!
//! No container engine is needed: the control plane runs without one.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on should panic")]

use std::{
    cell::Cell,
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use jaco_actors::testing::unique_loopback_address;
use rustix::process::{Pid, Signal, kill_process};

const TIMEOUT: Duration = Duration::from_secs(60);

/// A directory with a configuration on free ports, and the number of daemons that were started in it.
struct Workdir(tempfile::TempDir, Cell<u32>);

impl Workdir {
    fn new(extra: &str) -> Self {
        let workdir = Self(tempfile::tempdir().unwrap(), Cell::new(0));
        let dir = workdir.0.path().display();
        let host = unique_loopback_address();
        // Daemons of other tests share the network namespace, which has room for one mesh.
        let isolation = if extra.contains("isolation") {
            ""
        } else {
            "isolation: off\n"
        };
        let config = format!(
            "data_dir: {dir}/data\nunix_socket: {dir}/s\ndocker_socket: unix://{dir}/no-engine\n\
             listen_addr: {host}:7000\ncluster_addr: {host}:7001\nhostname: one\n{extra}{isolation}"
        );
        fs::write(workdir.path("jacod.yaml"), config).unwrap();
        workdir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// `jacod` in an empty environment, with a log of its own.
    fn jacod(&self) -> Command {
        self.logged(Command::new(env!("CARGO_BIN_EXE_jacod")))
    }

    /// As `jacod`, but started by a shell, which knows the process id before `exec`; its standard
    /// input and output become the descriptors 3 and 4.
    fn activated(&self, pid: &str, descriptors: [OwnedFd; 2]) -> Command {
        let mut shell = Command::new("/bin/sh");
        let script = format!(
            "LISTEN_PID={pid} LISTEN_FDS=2 LISTEN_FDNAMES=a:b exec \"$0\" \"$@\" 3<&0 4<&1 </dev/null >&2"
        );
        shell.args(["-c", &script]).arg(env!("CARGO_BIN_EXE_jacod"));
        let mut command = self.logged(shell);
        let [three, four] = descriptors;
        command.stdin(three).stdout(four);
        command
    }

    fn logged(&self, mut command: Command) -> Command {
        self.1.set(self.1.get() + 1);
        let log = fs::File::create(self.log_path(self.1.get())).unwrap();
        command
            .arg("--config")
            .arg(self.path("jacod.yaml"))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        command
    }

    fn log_path(&self, daemon: u32) -> PathBuf {
        self.path(&format!("log.{daemon}"))
    }

    /// The log of the daemon that was started last.
    fn log(&self) -> String {
        fs::read_to_string(self.log_path(self.1.get())).unwrap()
    }

    /// The logs of all daemons, in the order of their starts.
    fn all_logs(&self) -> String {
        let logs = (1..=self.1.get()).map(|daemon| {
            let log = fs::read_to_string(self.log_path(daemon)).unwrap();
            format!("-- daemon {daemon}\n{log}")
        });
        logs.collect()
    }

    /// Waits until the output of `cluster status` contains `what`.
    #[track_caller]
    fn answers(&self, what: &str) {
        let end = Instant::now() + TIMEOUT;
        loop {
            let status = jaco(&self.path("s"), "cluster status");
            if text(&status.stdout).contains(what) {
                return;
            }
            assert!(Instant::now() < end, "{status:?}\n{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[track_caller]
    fn logs(&self, what: &str) {
        let end = Instant::now() + TIMEOUT;
        while !self.log().contains(what) {
            assert!(
                Instant::now() < end,
                "{what:?} is not in the log:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A process that is killed with the test.
struct Daemon(Child);

impl Daemon {
    fn spawn(mut command: Command) -> Self {
        Self(command.spawn().unwrap())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for its end and returns the exit status; `None` after a signal.
    fn ended(&mut self) -> Option<i32> {
        let end = Instant::now() + TIMEOUT;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.code();
            }
            assert!(Instant::now() < end, "the daemon still runs");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill(); // it may have ended
        let _ = self.0.wait();
    }
}

fn jaco(socket: &Path, line: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_jaco"))
        .args(line.split(' '))
        .env_clear()
        .env("JACO_SOCKET", socket)
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

#[test]
fn inherited_socket_is_served_and_kept() {
    let workdir = Workdir::new("");
    let activated = workdir.path("activated");
    let listener = UnixListener::bind(&activated).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions();
    let before = mode(&activated);
    // The socket is the second descriptor; the first is of another kind.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = other.local_addr().unwrap().port();
    // A client that connects before the daemon starts is served, too.
    let early = UnixStream::connect(&activated).unwrap();
    let descriptors = [other.into(), listener.into()];
    let mut daemon = Daemon::spawn(workdir.activated("$$", descriptors));

    workdir.logs("inherited=true");
    let status = jaco(&activated, "cluster status");
    assert!(text(&status.stdout).contains("uninitialized"), "{status:?}");
    // An HTTP/2 server sends its settings first.
    early.set_read_timeout(Some(TIMEOUT)).unwrap();
    (&early)
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0")
        .unwrap();
    assert_eq!((&early).read(&mut [0; 9]).unwrap(), 9);
    drop(early);
    assert!(
        !workdir.path("s").exists(),
        "the daemon made its own socket"
    );
    assert!(
        std::net::TcpStream::connect(("127.0.0.1", port)).is_err(),
        "the other descriptor is still open"
    );

    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", workdir.log());
    assert!(activated.exists(), "the inherited socket was removed");
    assert_eq!(mode(&activated), before);
}

#[test]
fn descriptors_for_another_process_are_ignored() {
    let workdir = Workdir::new("");
    let listener = UnixListener::bind(workdir.path("activated")).unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut daemon = Daemon::spawn(workdir.activated("1", [listener.into(), other.into()]));
    workdir.logs("inherited=false");
    assert!(jaco(&workdir.path("s"), "cluster status").status.success());
    daemon.signal(Signal::INT);
    assert_eq!(daemon.ended(), Some(0), "{}", workdir.log());
    assert!(
        !workdir.path("s").exists(),
        "its own socket was not removed"
    );
}

#[test]
fn missing_announced_descriptor_is_fatal() {
    let workdir = Workdir::new("");
    let mut shell = Command::new("/bin/sh");
    let script = "LISTEN_PID=$$ LISTEN_FDS=90 exec \"$0\" \"$@\"";
    shell.args(["-c", script]).arg(env!("CARGO_BIN_EXE_jacod"));
    let mut daemon = Daemon::spawn(workdir.logged(shell));
    assert_eq!(daemon.ended(), Some(1));
    assert!(
        workdir.log().contains("was announced, but is not open"),
        "{}",
        workdir.log()
    );
}

#[test]
fn systemd_is_notified_of_ready_and_stopping() {
    let workdir = Workdir::new("");
    let socket = UnixDatagram::bind(workdir.path("notify")).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut command = workdir.jacod();
    command.env("NOTIFY_SOCKET", workdir.path("notify"));
    let mut daemon = Daemon::spawn(command);
    let notification = || {
        let mut buffer = [0; 64];
        let length = socket.recv(&mut buffer).unwrap();
        text(&buffer[..length]).to_owned()
    };
    assert_eq!(notification(), "READY=1");
    // After READY the daemon answers calls.
    assert!(jaco(&workdir.path("s"), "cluster status").status.success());
    daemon.signal(Signal::TERM);
    assert_eq!(notification(), "STOPPING=1");
    assert_eq!(daemon.ended(), Some(0));
}

/// A deployment with a route. No engine runs its service, so the ingress answers 503.
const MANIFEST: &str = "deployment: shop\nacme: \"off\"\nservices: [{name: web}]\n\
    routes: [{domain: a.example, service: web, port: 80, tls: \"off\"}]\n";
const COMPOSE: &str = "services:\n  web:\n    image: web:1\n";

/// Status of a request to the ingress on a connection of its own.
fn request(port: u16) -> std::io::Result<String> {
    let mut client = TcpStream::connect(("127.0.0.1", port))?;
    client.set_read_timeout(Some(TIMEOUT))?;
    client.write_all(b"GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    client.read_to_string(&mut answer)?;
    Ok(answer.split(' ').nth(1).unwrap_or_default().to_owned())
}

/// Ends the load when the test ends, also by a failure.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A daemon with a route, whose ingress answers on `port`.
struct Serving {
    workdir: Workdir,
    daemon: Daemon,
    port: u16,
}

impl Serving {
    /// Starts it on ports that no other test uses: each has a range of a hundred.
    fn start(range: u16) -> Self {
        // Below the ports that the system gives to clients: one that connects before the daemon
        // listens could get the port itself, and connect to itself.
        let free = |port: &u16| {
            [*port, port + 1]
                .into_iter()
                .all(|port| TcpListener::bind(("::", port)).is_ok())
        };
        let range = 20_000 + range * 100;
        let port = (range..range + 100).step_by(2).find(free).unwrap();
        let settings = format!("http_port: {port}\nhttps_port: {}\n", port + 1);
        let workdir = Workdir::new(&settings);
        let daemon = Daemon::spawn(workdir.jacod());
        workdir.logs("API is listening");
        let init = jaco(&workdir.path("s"), "cluster init --no-systemd-enable");
        assert!(init.status.success(), "{init:?}");
        fs::write(workdir.path("jaco.yaml"), MANIFEST).unwrap();
        fs::write(workdir.path("docker-compose.yml"), COMPOSE).unwrap();
        let apply = Command::new(env!("CARGO_BIN_EXE_jaco"))
            .args(["apply", "jaco.yaml", "--detach"])
            .current_dir(workdir.0.path())
            .env_clear()
            .env("JACO_SOCKET", workdir.path("s"))
            .output()
            .unwrap();
        assert!(apply.status.success(), "{apply:?}");
        let end = Instant::now() + TIMEOUT;
        while request(port).ok().as_deref() != Some("503") {
            assert!(Instant::now() < end, "{}", workdir.log());
            thread::sleep(Duration::from_millis(20));
        }
        Self {
            workdir,
            daemon,
            port,
        }
    }

    /// Spawns a daemon that replaces the running one.
    fn successor(&self) -> Daemon {
        let mut command = self.workdir.jacod();
        command.arg("--replace");
        Daemon::spawn(command)
    }

    /// A client that has sent only a part of its preface: the daemon waits for it when it stops,
    /// until this is dropped or 10 s have passed.
    fn slow_client(&self) -> UnixStream {
        let mut slow = UnixStream::connect(self.workdir.path("s")).unwrap();
        slow.write_all(b"PRI * HT").unwrap();
        self.workdir.answers("one"); // accepted after the slow one
        slow
    }

    /// Runs `steps` while clients send requests, each of which must be answered.
    fn under_load(&mut self, steps: impl FnOnce(&mut Self)) {
        let (port, stop) = (self.port, AtomicBool::new(false));
        let load = || {
            let mut answers = 0;
            while !stop.load(Ordering::Relaxed) {
                let answer = request(port);
                assert!(matches!(answer.as_deref(), Ok("503")), "{answer:?}");
                answers += 1;
                thread::sleep(Duration::from_millis(2));
            }
            answers
        };
        let answers = thread::scope(|scope| {
            let clients: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
            let stops = Stop(&stop);
            steps(self);
            drop(stops);
            let answers = clients.into_iter().map(|client| {
                let answers = client.join();
                answers.unwrap_or_else(|_| panic!("{}", self.workdir.all_logs()))
            });
            answers.sum::<u32>()
        });
        assert!(answers > 0);
    }

    /// Stops the daemon: the port is closed.
    fn stop(mut self) {
        self.daemon.signal(Signal::TERM);
        assert_eq!(self.daemon.ended(), Some(0), "{}", self.workdir.log());
        let refused = request(self.port).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

#[test]
fn replaced_daemon_loses_no_request() {
    let mut serving = Serving::start(0);
    serving.under_load(|serving| {
        for _ in 0..5 {
            let next = serving.successor();
            let mut previous = std::mem::replace(&mut serving.daemon, next);
            assert_eq!(previous.ended(), Some(0), "{}", serving.workdir.log());
            serving.workdir.answers("one");
        }
    });
    serving.stop();
}

#[test]
fn successor_of_a_killed_successor_loses_no_request() {
    let mut serving = Serving::start(1);
    serving.under_load(|serving| {
        let slow = serving.slow_client();
        let mut killed = serving.successor();
        serving.workdir.logs("listening sockets taken over");
        // Its predecessor still stops, so it has the sockets and no node.
        killed.signal(Signal::KILL);
        assert_eq!(killed.ended(), None);
        let next = serving.successor();
        serving.workdir.logs("listening sockets taken over");
        drop(slow);
        let mut first = std::mem::replace(&mut serving.daemon, next);
        assert_eq!(first.ended(), Some(0));
        serving.workdir.answers("one");
    });
    serving.stop();
}

#[test]
fn killed_predecessor_loses_no_later_request() {
    let mut serving = Serving::start(3);
    let slow = serving.slow_client();
    let next = serving.successor();
    serving.workdir.logs("listening sockets taken over");
    // It still served; the requests that it had are lost with it. Those from here on wait in the
    // queues of the sockets, which only the successor has.
    let mut killed = std::mem::replace(&mut serving.daemon, next);
    killed.signal(Signal::KILL);
    assert_eq!(killed.ended(), None);
    serving.under_load(|serving| serving.workdir.answers("one"));
    drop(slow);
    serving.stop();
}

#[test]
fn daemon_that_still_replaces_is_replaced() {
    let mut serving = Serving::start(2);
    serving.under_load(|serving| {
        let slow = serving.slow_client();
        let mut second = serving.successor();
        serving.workdir.logs("listening sockets taken over");
        let mut third = serving.successor();
        serving.workdir.logs("listening sockets taken over");
        drop(slow);
        assert_eq!(serving.daemon.ended(), Some(0));
        // Whichever gets the data directory first is replaced by the other.
        let end = Instant::now() + TIMEOUT;
        let (status, last) = loop {
            if let Some(status) = second.0.try_wait().unwrap() {
                break (status, third);
            }
            if let Some(status) = third.0.try_wait().unwrap() {
                break (status, second);
            }
            assert!(Instant::now() < end, "{}", serving.workdir.log());
            thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(status.code(), Some(0));
        serving.daemon = last;
        serving.workdir.answers("one");
    });
    serving.stop();
}

#[test]
fn second_signal_exits_immediately() {
    let workdir = Workdir::new("");
    let mut daemon = Daemon::spawn(workdir.jacod());
    workdir.logs("API is listening");
    let init = jaco(&workdir.path("s"), "cluster init --no-systemd-enable");
    assert!(init.status.success(), "{init:?}");
    // The daemon waits for a client that has sent only a part of its preface.
    let mut slow = UnixStream::connect(workdir.path("s")).unwrap();
    slow.write_all(b"PRI * HT").unwrap();
    let other = jaco(&workdir.path("s"), "cluster status"); // accepted after the slow one
    assert!(other.status.success(), "{other:?}");
    daemon.signal(Signal::TERM);
    workdir.logs("stopping");
    let asked = Instant::now();
    daemon.signal(Signal::INT);
    assert_eq!(daemon.ended(), Some(130), "{}", workdir.log());
    assert!(asked.elapsed() < TIMEOUT);
    // The next run finds the whole state.
    let mut daemon = Daemon::spawn(workdir.jacod());
    workdir.answers("one");
    drop(slow);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0), "{}", workdir.log());
}

#[test]
fn invalid_configuration_is_logged_and_exits_with_one() {
    for (extra, expected) in [
        (
            "wg_port: 70000\n",
            "jacod.yaml: wg_port 70000 is out of range",
        ),
        (
            "wg_backend: module\n",
            "wg_backend \"module\" must be auto, kernel or userspace",
        ),
        (
            "ipam_pool: 10.0.0.0/4\n",
            "ipam_pool \"10.0.0.0/4\" must be between /8 and /20 (got /4)",
        ),
        ("nosuch: 1\n", "unknown key \"nosuch\" on line 7"),
        (
            "acme_root_ca: /no/such/file\n",
            "acme_root_ca /no/such/file",
        ),
        (
            "acme_root_ca: /etc/hostname\n",
            "acme_root_ca /etc/hostname: an extra root is not a valid certificate",
        ),
        (
            "metrics_addr: nowhere.invalid:1\n",
            "metrics_addr \"nowhere.invalid:1\" does not resolve",
        ),
    ] {
        let workdir = Workdir::new(extra);
        let mut daemon = Daemon::spawn(workdir.jacod());
        assert_eq!(daemon.ended(), Some(1), "{extra}");
        let log = workdir.log();
        let fatal = log.lines().last().unwrap_or_default();
        assert!(fatal.contains("ERROR [jacod]"), "{log}");
        assert!(fatal.contains(expected), "{log}");
    }
}

#[test]
fn ineffective_and_unsafe_settings_are_warned_of() {
    let workdir = Workdir::new("isolation: off\n");
    let mut command = workdir.jacod();
    command.env("JACO_INGRESS_EXEC", "true");
    let mut daemon = Daemon::spawn(command);
    workdir.logs("API is listening");
    let log = workdir.log();
    for warning in ["JACO_INGRESS_EXEC has no meaning here", "isolation is off"] {
        let line = log.lines().find(|line| line.contains(warning));
        assert!(line.is_some_and(|line| line.contains("WARN")), "{log}");
    }
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.ended(), Some(0));
}

#[test]
fn log_level_flag_precedes_variable_and_file() {
    for (flag, variable, file, debug) in [
        (Some("debug"), Some("error"), "error", true),
        (None, Some("DEBUG"), "error", true),
        (Some("loud"), Some("info,fsm=debug"), "error", false),
        (None, None, "debug", true),
        (None, None, "info", false),
    ] {
        let workdir = Workdir::new(&format!("log_level: {file}\n"));
        let mut command = workdir.jacod();
        command.args(flag.iter().flat_map(|level| ["--log-level", level]));
        command.envs(variable.map(|level| ("JACO_LOG", level)));
        let mut daemon = Daemon::spawn(command);
        let until = Instant::now() + TIMEOUT;
        while !workdir.path("s").exists() {
            assert!(Instant::now() < until, "{}", workdir.log());
            thread::sleep(Duration::from_millis(20));
        }
        jaco(&workdir.path("s"), "cluster status");
        daemon.signal(Signal::TERM);
        assert_eq!(daemon.ended(), Some(0));
        assert_eq!(workdir.log().contains("DEBUG"), debug, "{}", workdir.log());
    }
}
