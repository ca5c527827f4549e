//! A node, its operators and its guests, and everything they were told.

use std::{
    fs,
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::net::UnixDatagram,
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use jaco_chaos::{
    Api, Daemon, Markers, Service, Settings, Workload, disk, engine::IMAGE, until, wait::PATIENCE,
};
use jaco_proto::{
    error::DecodedError,
    v1::{self, FailureMode, ReplicaState},
};
use jaco_raftnode::{State, Storage};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// How the daemon logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    Json,
    Journal,
}

pub(super) struct Scene {
    daemon: Daemon,
    markers: Markers,
    /// Where something was said, and what.
    told: Vec<(String, Vec<u8>)>,
    metrics: u16,
    deployment: String,
    journal: Arc<Mutex<Vec<u8>>>,
    _dir: TempDir,
}

impl Scene {
    pub(super) async fn start(form: Form) -> Result<Self> {
        let dir = tempfile::Builder::new().prefix("jaco-journal-").tempdir()?;
        let journal = Arc::<Mutex<Vec<u8>>>::default();
        let mut settings = Settings::default();
        let metrics = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        settings.config = format!("metrics_addr: :{metrics}\nlog_level: debug\n");
        if form != Form::Text {
            let invocation = ("INVOCATION_ID".to_owned(), "1".to_owned());
            settings.environment.push(invocation);
        }
        if form == Form::Journal {
            let path = dir.path().join("socket");
            listen(&path, journal.clone())?;
            // A mount namespace in which the journal's socket is ours.
            let script = "mkdir -p /run/systemd && mount -t tmpfs tmpfs /run/systemd && \
                          mkdir /run/systemd/journal && ln -s \"$0\" /run/systemd/journal/socket \
                          && exec \"$@\"";
            let launcher = ["unshare", "--mount", "/bin/sh", "-c", script];
            settings.launcher = launcher.map(str::to_owned).into();
            settings.launcher.push(path.display().to_string());
        }
        let mut daemon = Daemon::new(settings).await?;
        daemon.spawn()?;
        let api = daemon.api().clone();
        until("the API answers", PATIENCE, || api.status()).await?;
        Ok(Self {
            daemon,
            markers: Markers::default(),
            told: Vec::new(),
            metrics,
            deployment: Workload::new("secret", []).name,
            journal,
            _dir: dir,
        })
    }

    fn api(&self) -> Api {
        self.daemon.api().clone()
    }

    fn tell(&mut self, place: &str, text: impl Into<Vec<u8>>) {
        self.told.push((place.to_owned(), text.into()));
    }

    fn refused<T>(
        &mut self,
        place: &str,
        answer: Result<T, impl Into<DecodedError>>,
    ) -> Result<()> {
        let Err(error) = answer else {
            anyhow::bail!("{place}: was not refused");
        };
        let error: DecodedError = error.into();
        self.tell(place, format!("{error} {error:?}"));
        Ok(())
    }

    /// Runs `jaco -v`; `output` tells whether what it prints may hold no secret either.
    fn jaco(
        &mut self,
        line: &str,
        output: Output,
        edit: impl FnOnce(&mut Command),
    ) -> Result<bool> {
        let mut command = self.daemon.cli()?;
        command.arg("-v").args(line.split(' '));
        edit(&mut command);
        let ended = command.output()?;
        self.tell(&format!("stderr of jaco {line}"), ended.stderr);
        if output == Output::Checked {
            self.tell(&format!("stdout of jaco {line}"), ended.stdout);
        }
        Ok(ended.status.success())
    }

    pub(super) async fn founds_a_cluster(&mut self) -> Result<()> {
        let setup = fs::read_to_string(self.daemon.data_dir().join("bootstrap/setup-token"))?;
        self.markers.add("setup token", setup.trim().as_bytes());
        let fingerprint = fs::read_to_string(self.daemon.data_dir().join("bootstrap/fingerprint"));
        let wrong = self.markers.plant("wrongsetup");
        let server = self.daemon.address();
        if let Ok(fingerprint) = fingerprint {
            let line = format!(
                "--server {server} --ca-fingerprint {} cluster init --no-systemd-enable",
                fingerprint.trim()
            );
            let founded = self.jaco(&line, Output::Checked, |command| {
                command.env("JACO_TOKEN", &wrong);
            })?;
            ensure!(!founded, "a wrong setup token was good enough");
        }
        self.daemon.init().await?;
        let token = self.daemon.operator_token().to_owned();
        self.markers.add("operator token", token.as_bytes());
        let key = fs::read_to_string(self.daemon.data_dir().join("node/chaos.key"))?;
        self.add_key("node key", &key)
    }

    /// The lines of a PEM file, but for its markers.
    fn add_key(&mut self, name: &str, pem: &str) -> Result<()> {
        let body: Vec<&str> = pem.lines().filter(|line| !line.starts_with("--")).collect();
        ensure!(!body.is_empty(), "{name}: no key");
        for line in body {
            self.markers.add(name, line.as_bytes());
        }
        Ok(())
    }

    pub(super) async fn uses_tokens(&mut self) -> Result<()> {
        let issue = v1::TokenIssueRequest {
            identity: "ci".to_owned(),
            allows_privileged: false,
        };
        let issued = self.api().tokens().issue(issue).await?;
        let token = issued.into_inner().token;
        self.markers.add("issued token", token.as_bytes());
        let wrong = self.markers.plant("wrongtoken");
        ensure!(self.remote(&token)?, "a good token was refused");
        ensure!(!self.remote(&wrong)?, "a wrong token was accepted");
        ensure!(
            !self.remote(&format!("{wrong}\u{e9}"))?,
            "an odd token was accepted"
        );
        let revoke = v1::TokenRevokeRequest {
            identity: "ci".to_owned(),
        };
        self.api().tokens().revoke(revoke).await?;
        ensure!(!self.remote(&token)?, "a revoked token was accepted");
        let odd = v1::TokenIssueRequest {
            identity: "local".to_owned(),
            ..Default::default()
        };
        let answer = self.api().tokens().issue(odd).await;
        self.refused("an identity that is taken", answer)
    }

    /// Asks over TLS, with a token.
    fn remote(&mut self, token: &str) -> Result<bool> {
        let ca = self.daemon.data_dir().join("node/ca.crt");
        let line = format!(
            "--server {} --ca-cert {} status",
            self.daemon.address(),
            ca.display()
        );
        self.jaco(&line, Output::Checked, |command| {
            command.env("JACO_TOKEN", token);
        })
    }

    pub(super) fn deploys(&mut self) -> Result<()> {
        let (environment, from_file) = (self.markers.plant("env"), self.markers.plant("envfile"));
        let (comment, label) = (self.markers.plant("comment"), self.markers.plant("label"));
        let output = self.markers.plant("output");
        let compose = format!(
            "# {comment}\nservices:\n  web:\n    image: {IMAGE}\n    pull_policy: never\n    \
             stop_signal: SIGKILL\n    labels: {{note: {label}}}\n    \
             command: [sh, -c, 'echo $$OUTPUT; exec /bin/busybox httpd -f -p 8080 -h /']\n    \
             environment:\n      OUTPUT: {output}\n      PASSWORD: {environment}\n      \
             TOKEN: \"${{TOKEN}}\"\n    env_file: [more.env]\n"
        );
        let jaco = format!(
            "# {comment}\ndeployment: {}\nacme: \"off\"\nenvironment: vars.env\n\
             services: [{{name: web}}]\n\
             routes: [{{domain: a.example, service: web, port: 8080, tls: \"off\"}}]\n",
            self.deployment
        );
        let dir = self.file("compose.yml", &compose)?;
        self.file("jaco.yaml", &jaco)?;
        self.file("vars.env", &format!("TOKEN={from_file}\n"))?;
        self.file("more.env", &format!("EXTRA={from_file}\n"))?;
        let apply = format!("apply {}", dir.with_file_name("jaco.yaml").display());
        for line in [
            apply.replace("apply", "validate --jaco"),
            format!("{apply} --dry-run"),
            apply,
        ] {
            let applied = self.jaco(&line, Output::Checked, |_| {})?;
            ensure!(applied || line.starts_with("validate"), "{:?}", self.last());
        }
        // These may print what they hold, on stdout.
        let shown = format!("get deployment {}", self.deployment);
        ensure!(
            self.jaco(&shown, Output::Allowed, |_| {})?,
            "{:?}",
            self.last()
        );
        let logs = format!("logs {}/web", self.deployment);
        ensure!(
            self.jaco(&logs, Output::Allowed, |_| {})?,
            "{:?}",
            self.last()
        );
        Ok(())
    }

    fn last(&self) -> Option<(String, String)> {
        let tell = |(place, text): &(String, Vec<u8>)| {
            (place.clone(), String::from_utf8_lossy(text).into_owned())
        };
        let stderr = |(place, _): &&(String, Vec<u8>)| place.starts_with("stderr");
        self.told.iter().rev().find(stderr).map(tell)
    }

    fn file(&self, name: &str, content: &str) -> Result<PathBuf> {
        let path = self.daemon.scratch(name);
        fs::write(&path, content)?;
        Ok(path)
    }

    pub(super) async fn sends_requests(&mut self) -> Result<()> {
        let [query, cookie, bearer, basic, body] =
            ["query", "cookie", "bearer", "basic", "body"].map(|name| self.markers.plant(name));
        let port = self.daemon.http_port();
        until("the ingress listens", PATIENCE, || async {
            TcpStream::connect(("127.0.0.1", port)).map(drop)
        })
        .await?;
        let headers = |host: &str| {
            format!(
                "host: {host}\r\ncookie: session={cookie}\r\nauthorization: Bearer {bearer}\r\n\
                 proxy-authorization: Basic {basic}\r\nconnection: close\r\n"
            )
        };
        let post = format!(
            "POST /f?q={query} HTTP/1.1\r\n{}content-length: {}\r\n\r\n{body}",
            headers("a.example"),
            body.len()
        );
        for request in [
            format!(
                "GET /?token={query} HTTP/1.1\r\n{}\r\n",
                headers("a.example")
            ),
            format!(
                "GET /?token={query} HTTP/1.1\r\n{}\r\n",
                headers("nobody.example")
            ),
            format!(
                "GET /?token={query} HTTP/9.9\r\n{}\r\n",
                headers("a.example")
            ),
            format!(
                "GET /?token={query} HTTP/1.1\r\n{}broken {cookie}\r\n\r\n",
                headers("a.example")
            ),
            format!(
                "GET ws://a.example/?q={query} HTTP/1.1\r\n{}upgrade: websocket\r\n\r\n",
                headers("a.example")
            ),
            post,
            format!(
                "POST /?{query} HTTP/1.1\r\n{}content-length: 9999\r\n\r\n{body}",
                headers("a.example")
            ),
        ] {
            let mut stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.write_all(request.as_bytes())?;
            let half = request.contains("9999");
            if !half {
                // What comes back is the container's, or says which status.
                let _ = stream.read_to_end(&mut Vec::new());
            }
        }
        Ok(())
    }

    pub(super) async fn applies_what_is_wrong(&mut self) -> Result<()> {
        let environment = self.markers.plant("badenv");
        let web = "services:\n  web:\n    image: x\n    environment:\n";
        for compose in [
            format!("{web}      A: [{environment}]\n"),
            format!("{web}      A: {{b: {environment}}}\n"),
            format!("{web}      A: \"{environment}\n"),
            format!("{web}      A: {environment}\n      A: {environment}\n"),
            format!("{web}      - {{A: {environment}}}\n"),
            format!("{web}      - ={environment}\n"),
            format!("{web}      A: *{environment}x\n"),
            format!("{web}      A: !!binary {environment}\n    nosuch: 1\n"),
            format!("{web}      A: {environment}\n    mem_limit: lots\n"),
            format!("{web}      A: {environment}\n   bad: indent\n"),
            format!("{web}      A: {environment}\n    env_file: x\n"),
            format!("{web} {environment}: &{environment}\n\t"),
        ] {
            let request = v1::ApplyRequest {
                jaco_yaml: b"deployment: bad\nservices: [{name: web}]\n".to_vec(),
                compose_yaml: compose.clone().into_bytes(),
                dry_run: false,
            };
            let answer = self.api().deploy().apply(request).await;
            if answer.is_ok() {
                let delete = v1::DeleteRequest {
                    deployment: "bad".to_owned(),
                };
                self.api().deploy().delete(delete).await?;
                continue;
            }
            self.refused(
                &format!("answer to {}", compose.replace(&environment, "X")),
                answer,
            )?;
        }
        // The client resolves variables before anybody checks what comes out.
        let value = self.markers.plant("resolved");
        self.file(
            "bad.env",
            &format!("VALUE={value}\n=\nno separator {value}\n'{value}\n"),
        )?;
        self.file("vars.env", &format!("VALUE={value}\n"))?;
        let jaco = self.file(
            "bad.yaml",
            "deployment: bad\nenvironment: vars.env\nservices: [{name: web}]\n",
        )?;
        for compose in [
            format!("{web}      - {{A: \"${{VALUE}}\"}}\n"),
            format!("{web}      A: ${{VALUE}}\n    mem_limit: lots\n"),
            format!("{web}      A: ${{VALUE:?}}\n    nosuch: 1\n"),
            format!("{web}      A: 1\n    env_file: [bad.env]\n"),
        ] {
            let path = self.file("bad-compose.yml", &compose)?;
            let line = format!("apply {} --compose {}", jaco.display(), path.display());
            let applied = self.jaco(&line, Output::Checked, |_| {})?;
            ensure!(!applied, "{compose} was applied");
        }
        Ok(())
    }

    pub(super) async fn pulls_in_vain(&mut self) -> Result<()> {
        let password = self.markers.plant("registry");
        let add = v1::RegistryCredentialAddRequest {
            registry: "127.0.0.1:9".to_owned(),
            username: "robot".to_owned(),
            secret: password.into_bytes(),
        };
        self.api().registry().add(add).await?;
        let short = self.markers.plant("emptyregistry");
        let add = v1::RegistryCredentialAddRequest {
            registry: String::new(),
            username: "robot".to_owned(),
            secret: short.into_bytes(),
        };
        let answer = self.api().registry().add(add).await;
        self.refused("a credential without a registry", answer)?;

        let environment = self.markers.plant("vain");
        let mut vain = Workload::new("vain", [Service::new("web"), Service::new("job")]);
        for service in &mut vain.services {
            let variable = ("SECRET".to_owned(), environment.clone());
            service.environment.extend([variable]);
        }
        vain.services[1].command = vec!["/no/such/program".to_owned()];
        let mut request = vain.request();
        let text = String::from_utf8(request.compose_yaml)?;
        // The first service's image is to come from the registry that is not there.
        let text = text.replacen("\"pull_policy\":\"never\"", "\"pull_policy\":\"always\"", 2);
        request.compose_yaml = text.replace(IMAGE, "127.0.0.1:9/x/y:1").into_bytes();
        self.api().deploy().apply(request).await?;
        let name = vain.name.clone();
        self.api()
            .replica(
                &name,
                &vain.replica("web", 0),
                "cannot be pulled",
                |replica| replica.code == "image_pull_failed",
            )
            .await?;
        let mut broken = Workload::new("broken", [vain.services.remove(1)]);
        broken.services[0].healthcheck = false;
        self.api().apply(&broken).await?;
        self.api()
            .replica(
                &broken.name,
                &broken.replica("job", 0),
                "cannot be started",
                |replica| !replica.code.is_empty(),
            )
            .await?;
        for name in [name, broken.name] {
            let replicas = self.api().replicas(&name).await?;
            self.tell("replicas that failed", format!("{replicas:?}"));
            self.api().delete(&name).await?;
        }
        Ok(())
    }

    pub(super) async fn hurts_actors(&mut self) -> Result<()> {
        let replica = format!("node/runtime/replica:{}-web-0", self.deployment);
        for path in [
            &replica,
            "node/runtime/publisher",
            "node/scheduler/reconcile",
            "node/ingress/proxy",
            "node/raft/raft",
            "node/telemetry",
            "node/lifecycle",
        ] {
            for mode in [FailureMode::Panic, FailureMode::Kill] {
                let up = self
                    .api()
                    .actor(path, "runs", |actor| actor.state == "running")
                    .await?;
                self.api().kill_actor(path, mode).await?;
                self.api()
                    .actor(path, "is restarted", |actor| {
                        actor.state == "running" && actor.restarts > up.restarts
                    })
                    .await?;
            }
        }
        Ok(())
    }

    pub(super) async fn looks_around(&mut self) -> Result<()> {
        for line in [
            "audit",
            "status",
            "actors",
            "get replicas",
            "cluster status",
        ] {
            let line = format!("-o json {line}");
            ensure!(
                self.jaco(&line, Output::Checked, |_| {})?,
                "{:?}",
                self.last()
            );
        }
        let metrics = self.metrics;
        let text = until("metrics", PATIENCE, || async { scrape(metrics) }).await?;
        for family in [
            "jaco_ingress_requests_total{domain=\"_unknown\"",
            "jaco_ingress_requests_total{domain=\"a.example\",service=\"web\"",
            "jaco_apply_duration_seconds_bucket{",
            "jaco_runtime_container_starts_total{",
            "jaco_replica_state{",
            "jaco_actor_restarts_total{",
            "jaco_token_revocation_propagation_seconds_count{node=\"chaos\"} 1",
        ] {
            ensure!(text.contains(family), "{family} is not in:\n{text}");
        }
        self.tell("metrics", text);
        for pid in family(self.daemon.pid()?)? {
            for file in ["cmdline", "environ"] {
                let content = fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                self.tell(&format!("/proc/{pid}/{file}"), content);
            }
        }
        Ok(())
    }

    /// Ends as badly as a process can, and comes back.
    pub(super) async fn crashes_and_returns(&mut self) -> Result<()> {
        let pid = self.daemon.pid()?;
        let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let core = limits
            .lines()
            .find(|line| line.starts_with("Max core file size"));
        let core: Vec<&str> = core.unwrap_or_default().split_whitespace().collect();
        ensure!(
            core[4..6] == ["0", "0"],
            "a core file may be written: {core:?}"
        );
        let home = fs::read_link(format!("/proc/{pid}/cwd"))?;
        let pid = Pid::from_raw(i32::try_from(pid)?).context("a process id")?;
        kill_process(pid, Signal::ABORT)?;
        self.daemon.ended().await?;
        for entry in fs::read_dir(home)? {
            let name = entry?.file_name();
            ensure!(
                !name.to_string_lossy().starts_with("core"),
                "{name:?} was written"
            );
        }
        self.daemon.start().await?;
        let id = format!("{}-web-0", self.deployment);
        let deployment = self.deployment.clone();
        self.api()
            .replica(&deployment, &id, "runs again", |r| {
                r.state() == ReplicaState::Running
            })
            .await?;
        Ok(())
    }

    /// Stops it; returns all it has logged.
    pub(super) async fn ends(&mut self) -> Result<String> {
        let deployment = self.deployment.clone();
        self.api().delete(&deployment).await?;
        let status = self.daemon.stop().await?;
        ensure!(status.success(), "{status}");
        // What only the state holds.
        let copy = self.daemon.scratch("copy");
        disk::copy(&self.daemon.data_dir().join("raft"), &copy)?;
        let state: State = Storage::open(&copy)?.load_state()?;
        let cluster = state.cluster.as_ref().context("no cluster")?;
        let key = String::from_utf8(cluster.ca_key.clone())?;
        self.add_key("CA key", &key)?;
        let journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let journal = String::from_utf8_lossy(&journal).into_owned();
        Ok(if journal.is_empty() {
            self.daemon.log()
        } else {
            let stderr = self.daemon.log();
            ensure!(stderr.is_empty(), "beside the journal: {stderr}");
            journal
        })
    }

    /// Fails if anything that was told or logged holds a secret.
    pub(super) fn check(&self, log: &str) -> Result<()> {
        let mut found = self.markers.found_in("the log", log.as_bytes());
        for (place, text) in &self.told {
            found.extend(self.markers.found_in(place, text));
        }
        ensure!(
            found.is_empty(),
            "{} leaks:\n{}",
            found.len(),
            found.join("\n")
        );
        Ok(())
    }
}

/// Whether the standard output of a command is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    Checked,
    /// It exists to print what somebody stored.
    Allowed,
}

/// Collects entries, each ended by an empty line.
fn listen(path: &std::path::Path, into: Arc<Mutex<Vec<u8>>>) -> Result<()> {
    let socket = UnixDatagram::bind(path)?;
    thread::spawn(move || {
        let mut buffer = vec![0; 1 << 20];
        while let Ok(length) = socket.recv(&mut buffer) {
            let mut entries = into.lock().unwrap_or_else(PoisonError::into_inner);
            entries.extend(&buffer[..length]);
            entries.push(b'\n');
        }
    });
    Ok(())
}

fn scrape(port: u16) -> Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    ensure!(text.starts_with("HTTP/1.1 200"), "{text}");
    Ok(text)
}

/// A process and all that descend from it.
fn family(pid: u32) -> Result<Vec<u32>> {
    let listed = Command::new("ps")
        .args(["-e", "-o", "pid=,ppid="])
        .stdin(Stdio::null())
        .output()?;
    let listed = String::from_utf8(listed.stdout)?;
    let pairs: Vec<(u32, u32)> = listed
        .lines()
        .filter_map(|line| {
            let mut ids = line.split_whitespace().map(str::parse);
            Some((ids.next()?.ok()?, ids.next()?.ok()?))
        })
        .collect();
    let mut found = vec![pid];
    let mut next = 0;
    while next < found.len() {
        let parent = found[next];
        found.extend(
            pairs
                .iter()
                .filter(|(_, of)| *of == parent)
                .map(|(pid, _)| pid),
        );
        next += 1;
    }
    Ok(found)
}
