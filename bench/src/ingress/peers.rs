//! The upstream, the proxies and their configurations.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Resource, getrlimit};
use tempfile::TempDir;

use super::{Process, Protocol, process::free_port};

/// Connections that each worker of nginx, and haproxy, may have: 50,000 of idle clients, however
/// unevenly the kernel spreads them, and those to the upstream.
const CONNECTIONS: u64 = 65_536;
/// Descriptors that are no connections.
const OTHER_FILES: u64 = 1024;
/// Time for which a peer keeps an idle connection, in seconds: longer than a run.
const IDLE: u32 = 3600;

/// Connections and descriptors of a peer: haproxy does not start with fewer than two descriptors for
/// each connection, and no process may have more than the system allows.
fn limits() -> (u64, u64) {
    let allowed = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let files = (2 * CONNECTIONS + OTHER_FILES).min(allowed);
    (files.saturating_sub(OTHER_FILES) / 2, files)
}

/// A proxy with its ports.
#[derive(Debug)]
pub struct Proxy {
    /// Name in the figures.
    pub name: &'static str,
    /// Port of plain HTTP/1.1.
    pub http: u16,
    /// Port of TLS, of UDP too where HTTP/3 is served.
    pub https: u16,
    /// Whether HTTP/3 is served.
    pub http3: bool,
    /// The server.
    pub process: Process,
}

impl Proxy {
    /// Where clients of `protocol` connect.
    #[must_use]
    pub fn addr(&self, protocol: Protocol) -> SocketAddr {
        let port = match protocol {
            Protocol::Plain => self.http,
            Protocol::Tls | Protocol::Http2 | Protocol::Http3 => self.https,
        };
        (Ipv4Addr::LOCALHOST, port).into()
    }

    /// Whether it serves `protocol`.
    #[must_use]
    pub fn serves(&self, protocol: Protocol) -> bool {
        self.http3 || protocol != Protocol::Http3
    }
}

/// The upstream and the files of the servers.
#[derive(Debug)]
pub struct Lab {
    threads: usize,
    upstream: u16,
    _server: Process,
    files: TempDir,
}

impl Lab {
    /// Starts the upstream; it and every proxy get `threads` threads.
    ///
    /// # Errors
    /// If nginx or openssl is missing or fails.
    pub fn start(threads: usize) -> Result<Self> {
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
        let server = nginx(dir, "upstream", threads, "", &serve, port)?;
        Ok(Self {
            threads,
            upstream: port,
            _server: server,
            files,
        })
    }

    /// Starts our proxy and its peers; tells which peers are missing.
    ///
    /// # Errors
    /// If our proxy does not start.
    #[expect(
        clippy::print_stdout,
        reason = "what is left out belongs to the figures"
    )]
    pub fn proxies(&self) -> Result<Vec<Proxy>> {
        let (dir, threads, upstream) = (self.files.path(), self.threads, self.upstream);
        let mut proxies = vec![self.jaco("jaco", &[])?];
        let peers: [Start; 3] = [nginx_proxy, haproxy, caddy];
        for start in peers {
            match start(dir, threads, upstream) {
                Ok(proxy) => proxies.push(proxy),
                Err(error) => println!("left out: {error:#}"),
            }
        }
        Ok(proxies)
    }

    /// Starts our proxy, which this program serves, with further arguments.
    ///
    /// # Errors
    /// If it does not listen.
    pub fn jaco(&self, name: &'static str, arguments: &[&str]) -> Result<Proxy> {
        let (http, https) = (free_port()?, free_port()?);
        let local = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["serve", "--http3", "--threads", &self.threads.to_string()])
            .args(["--http", &local(http), "--https", &local(https)])
            .args(["--upstream", &local(self.upstream), "--cert"])
            .arg(self.files.path().join("cert.pem"))
            .arg("--key")
            .arg(self.files.path().join("key.pem"))
            .args(arguments)
            .stdout(Stdio::piped());
        Ok(Proxy {
            name,
            http,
            https,
            http3: true,
            process: Process::start(&mut command, https)?,
        })
    }
}

/// Starts a peer with its files in a directory, with a number of threads, before an upstream.
type Start = fn(&Path, usize, u16) -> Result<Proxy>;

/// Writes `cert.pem`, `key.pem` and both in `all.pem`.
fn certificate(dir: &Path) -> Result<()> {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt"])
        .args(["ec_paramgen_curve:P-256", "-nodes", "-days", "1"])
        .args(["-subj", "/CN=localhost"])
        .args(["-addext", "subjectAltName=DNS:localhost"])
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
        http3: false,
        process: nginx(dir, "proxy", threads, &global, &server, https)?,
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
    let (connections, most_files) = limits();
    let files = dir.display();
    let config = format!(
        "user root; worker_processes {threads}; worker_rlimit_nofile {most_files}; daemon off;
         pid {files}/{name}.pid; error_log {files}/{name}.log;
         events {{ worker_connections {connections}; }}
         http {{
           access_log off; sendfile on; tcp_nopush on; keepalive_requests 1000000000; keepalive_timeout {IDLE};
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
    Process::start(command.stdout(Stdio::null()), port)
}

fn haproxy(dir: &Path, threads: usize, upstream: u16) -> Result<Proxy> {
    let (http, https) = (free_port()?, free_port()?);
    let (connections, _) = limits();
    let files = dir.display();
    let config = format!(
        "global
    nbthread {threads}
    maxconn {connections}
    ssl-default-bind-options ssl-min-ver TLSv1.2
defaults
    mode http
    timeout connect 3s
    timeout client {IDLE}s
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
        http3: false,
        process: Process::start(command.stdout(Stdio::null()), https)?,
    })
}

fn caddy(dir: &Path, threads: usize, upstream: u16) -> Result<Proxy> {
    let (http, https) = (free_port()?, free_port()?);
    let files = dir.display();
    let config = format!(
        "{{
    admin off
    auto_https off
    default_bind 127.0.0.1
    log {{
        output discard
    }}
    servers {{
        protocols h1 h2 h3
    }}
}}
(web) {{
    reverse_proxy 127.0.0.1:{upstream} {{
        flush_interval -1
        transport http {{
            compression off
            keepalive_idle_conns 1000
            keepalive_idle_conns_per_host 1000
        }}
    }}
}}
http://localhost:{http} {{
    import web
}}
https://localhost:{https} {{
    tls {files}/cert.pem {files}/key.pem
    import web
}}
"
    );
    let path = dir.join("Caddyfile");
    fs::write(&path, config)?;
    let mut command = Command::new("caddy");
    command.args(["run", "--adapter", "caddyfile", "--config"]);
    command.arg(&path).stdout(Stdio::null());
    command.env("GOMAXPROCS", threads.to_string());
    for variable in ["HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"] {
        command.env(variable, dir);
    }
    Ok(Proxy {
        name: "caddy",
        http,
        https,
        http3: true,
        process: Process::start(&mut command, https)?,
    })
}
