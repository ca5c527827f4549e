//! The resolver of libc as a client, in a network namespace with a resolver file of its own.

use jaco_net::netns::Namespace;
use tokio::process::Command;

use super::{
    external::{addressed, coded, upstream},
    *,
};

/// Looks a name up with libc; returns its addresses.
async fn lookup(resolv_conf: &str, name: &str) -> Vec<String> {
    let script = "mount --bind \"$0\" /etc/resolv.conf && exec getent ahosts \"$1\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, resolv_conf, name]);
    let output = timeout(PATIENCE, command.output()).await.unwrap().unwrap();
    let known = [Some(0), Some(2)].contains(&output.status.code());
    assert!(known, "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let first = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
    let mut found: Vec<_> = text.lines().map(first).collect();
    found.dedup();
    found
}

async fn names_resolve() {
    let link = Command::new("ip")
        .args(["link", "set", "lo", "up"])
        .status();
    assert!(link.await.unwrap().success());
    let (server, _) = upstream(|query, _| match query.queries[0].query_type() {
        RecordType::A => Some(addressed(query, 60)),
        _ => Some(coded(query, ResponseCode::NoError)),
    })
    .await;
    let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
    let dead = HostPort {
        host: "127.0.0.1".to_owned(),
        port: silent.local_addr().unwrap().port(),
    };
    let config = DnsConfig {
        forwarders: vec![dead, server],
        ..DnsConfig::default()
    };
    let world = world_at(53, config, shop()).await;
    world.ensure("front", FRONT);
    world.resolves(FRONT, "web", &["10.1.0.2"]).await;
    let file = tempfile::NamedTempFile::new().unwrap();
    let address = world.at(FRONT).ip();
    std::fs::write(file.path(), format!("nameserver {address}\n")).unwrap();
    let path = file.path().to_str().unwrap();
    for (name, expected) in [
        ("web", Some("10.1.0.2")),
        ("WEB.shop", Some("10.1.0.2")),
        ("web.jaco.internal", Some("10.1.0.2")),
        ("nothing", None),
        ("nothing.jaco.internal", None),
        ("www.example.com", Some("192.0.2.1")),
    ] {
        let found = lookup(path, name).await;
        assert_eq!(found.first().map(String::as_str), expected, "{name}");
        assert!(found.len() <= 1, "{name}: {found:?}");
    }
}

#[test]
fn libc_resolves_names_of_the_network() {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let namespace = Namespace::create().unwrap();
    let done = namespace.within(|| runtime().unwrap().block_on(names_resolve()));
    done.unwrap();
}
