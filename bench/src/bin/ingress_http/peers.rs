//! The upstream, the proxies and their configurations.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Child, Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Time for a server to begin to listen.
const START: Duration = Duration::from_secs(10);

/// A proxy with its ports.
pub(crate) struct Proxy {
    pub(crate) name: &'static str,
    pub(crate) http: u16,
    pub(crate) https: u16,
    _process: Process,
}

/// A server that is ended when this is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Not SIGKILL, which would leave the workers of nginx behind.
        if let Ok(pid) = i32::try_from(self.0.id())
            && let Some(pid) = Pid::from_raw(pid)
        {
            let _ = kill_process(pid, Signal::TERM); // it may have ended
        }
        let _ = self.0.wait();
    }
}

/// The upstream and all proxies, with their files.
pub(crate) struct Lab {
    proxies: Vec<Proxy>,
    _upstream: Process,
    _files: TempDir,
}

impl Lab {
    /// Starts every server with `threads` threads.
    pub(crate) fn start(threads: usize) -> Result<Self> {
        let files = tempfile::tempdir()?;
        let dir = files.path();
        certificate(dir)?;
        for (name, length) in [("1k", 1024), ("64k", 64 * 1024)] {
            fs::write(dir.join(name), vec![b'x'; length])?;
        }
        let port = free_port()?;
        let serve = format!(
            "listen 127.0.0.1:{port} backlog=4096; root {};",
            dir.display()
        );
        let upstream = nginx(dir, "upstream", threads, "", &serve, port)?;
        let proxies = vec![
            jaco(dir, threads, port)?,
            nginx_proxy(dir, threads, port)?,
            haproxy(dir, threads, port)?,
        ];
        Ok(Self {
            proxies,
            _upstream: upstream,
            _files: files,
        })
    }

    pub(crate) fn proxies(&self) -> &[Proxy] {
        &self.proxies
    }
}

/// Writes `cert.pem`, `key.pem` and both in `all.pem`.
fn certificate(dir: &Path) -> Result<()> {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:P-256", "-nodes", "-days", "1"])
        .args([
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
        ])
        .arg("-keyout")
        .arg(dir.join("key.pem"))
        .arg("-out")
        .arg(dir.join("cert.pem"))
        .stderr(Stdio::null())
        .status()
        .context("failed to run openssl")?;
    ensure!(made.success(), "openssl failed");
    let parts = ["cert.pem", "key.pem"].map(|name| fs::read_to_string(dir.join(name)));
    let [cert, key] = parts;
    fs::write(dir.join("all.pem"), cert? + &key?)?;
    Ok(())
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

/// Starts a server and waits until it accepts connections to `port`.
fn start(command: &mut Command, port: u16) -> Result<Process> {
    let named = format!("{command:?}");
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut process = Process(child.with_context(|| format!("failed to run {named}"))?);
    let deadline = Instant::now() + START;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        if let Some(status) = process.0.try_wait()? {
            bail!("{named} ended with {status}");
        }
        ensure!(Instant::now() < deadline, "{named} does not listen");
        sleep(Duration::from_millis(20));
    }
    Ok(process)
}

fn jaco(dir: &Path, threads: usize, upstream: u16) -> Result<Proxy> {
    let (http, https) = (free_port()?, free_port()?);
    let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
    let mut command = Command::new(super::this_program()?);
    command
        .args(["serve", "--threads", &threads.to_string()])
        .args(["--http", &local(http), "--https", &local(https)])
        .args(["--upstream", &local(upstream), "--cert"])
        .arg(dir.join("cert.pem"))
        .arg("--key")
        .arg(dir.join("key.pem"));
    Ok(Proxy {
        name: "jaco",
        http,
        https,
        _process: start(&mut command, https)?,
    })
}

fn nginx_proxy(dir: &Path, threads: usize, upstream: u16) -> Result<Proxy> {
    let (http, https) = (free_port()?, free_port()?);
    let global = format!(
        "upstream web {{ server 127.0.0.1:{upstream}; keepalive 64; keepalive_requests 1000000000; }}"
    );
    let files = dir.display();
    let server = format!(
        "listen 127.0.0.1:{http} reuseport backlog=4096;
         listen 127.0.0.1:{https} ssl http2 reuseport backlog=4096;
         ssl_certificate {files}/cert.pem; ssl_certificate_key {files}/key.pem;
         ssl_protocols TLSv1.2 TLSv1.3; ssl_session_cache off; ssl_session_tickets on;
         server_name localhost;
         location / {{
           proxy_pass http://web; proxy_http_version 1.1;
           proxy_set_header Connection \"\"; proxy_set_header Host $host;
           proxy_set_header X-Forwarded-For $remote_addr;
           proxy_set_header X-Forwarded-Proto $scheme;
           proxy_set_header X-Forwarded-Host $host;
           proxy_buffering off; proxy_request_buffering off;
         }}"
    );
    Ok(Proxy {
        name: "nginx",
        http,
        https,
        _process: nginx(dir, "proxy", threads, &global, &server, https)?,
    })
}

fn nginx(
    dir: &Path,
    name: &str,
    threads: usize,
    global: &str,
    server: &str,
    port: u16,
) -> Result<Process> {
    let files = dir.display();
    let config = format!(
        "user root; worker_processes {threads}; worker_rlimit_nofile 65536; daemon off;
         pid {files}/{name}.pid; error_log {files}/{name}.log;
         events {{ worker_connections 8192; }}
         http {{
           access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000;
           client_body_temp_path {files}/{name}-body; proxy_temp_path {files}/{name}-proxy;
           fastcgi_temp_path {files}/{name}-fastcgi; uwsgi_temp_path {files}/{name}-uwsgi;
           scgi_temp_path {files}/{name}-scgi;
           {global}
           server {{ {server} }}
         }}"
    );
    let path = dir.join(format!("{name}.conf"));
    fs::write(&path, config)?;
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&path);
    start(&mut command, port)
}

fn haproxy(dir: &Path, threads: usize, upstream: u16) -> Result<Proxy> {
    let (http, https) = (free_port()?, free_port()?);
    let files = dir.display();
    let config = format!(
        "global
    nbthread {threads}
    maxconn 8000
    ssl-default-bind-options ssl-min-ver TLSv1.2
defaults
    mode http
    timeout connect 3s
    timeout client 300s
    timeout server 300s
    http-reuse always
frontend all
    bind 127.0.0.1:{http}
    bind 127.0.0.1:{https} ssl crt {files}/all.pem alpn h2,http/1.1
    option forwardfor
    http-request set-header X-Forwarded-Proto %[ssl_fc,iif(https,http)]
    http-request set-header X-Forwarded-Host %[req.hdr(host)]
    default_backend web
backend web
    server one 127.0.0.1:{upstream} pool-max-conn 1000
"
    );
    let path = dir.join("haproxy.cfg");
    fs::write(&path, config)?;
    let mut command = Command::new("haproxy");
    command.arg("-db").arg("-f").arg(&path);
    Ok(Proxy {
        name: "haproxy",
        http,
        https,
        _process: start(&mut command, https)?,
    })
}
