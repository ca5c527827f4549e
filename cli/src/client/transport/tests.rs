use std::time::SystemTime;

use jaco_net::pki::ClusterCa;

use super::{contexts::Contexts, *};

const PRINT: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

/// A machine with sockets, files and an optional file of contexts.
#[derive(Default)]
struct Fake {
    sockets: Vec<&'static str>,
    files: Vec<(&'static str, String)>,
    contexts: Option<&'static str>,
}

impl Machine for Fake {
    fn exists(&self, path: &Path) -> bool {
        self.sockets.iter().any(|socket| Path::new(socket) == path)
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        if path == Path::new("/denied") {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let found = self
            .files
            .iter()
            .find(|(known, _)| Path::new(known) == path);
        found
            .map(|(_, pem)| pem.clone())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn contexts(&self) -> Result<Option<Contexts>, Failure> {
        self.contexts
            .map(|text| Contexts::parse(text.as_bytes()))
            .transpose()
    }
}

const CONTEXTS: &str = "current_context: prod
contexts:
  - {name: dev, server_addrs: [dev:1], token: dev-token}
  - {name: prod, server_addrs: [p1:1, p2:2], token: prod-token, ca_cert_path: /prod}
";

fn ca() -> String {
    ClusterCa::generate(SystemTime::UNIX_EPOCH)
        .unwrap()
        .cert_pem()
        .to_owned()
}

fn machine() -> Fake {
    Fake {
        sockets: vec![],
        files: vec![
            (DEFAULT_CA, ca()),
            ("/prod", ca()),
            ("/bad", "hello".to_owned()),
            ("/token", " sesame\n".to_owned()),
            ("/blank", " \n".to_owned()),
        ],
        contexts: Some(CONTEXTS),
    }
}

fn source(pairs: &[(&str, &str)]) -> Source {
    Source::from_env(|name| {
        let found = pairs
            .iter()
            .find(|(key, _)| format!("JACO_{}", key.to_uppercase()) == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

fn shown(target: &Target) -> String {
    match target {
        Target::Socket(path) => format!("socket {}", path.display()),
        Target::Remote {
            addresses, token, ..
        } => {
            let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
            let token = token.as_ref().map_or("-", SecretString::expose);
            format!("{} {token}", addresses.join(","))
        }
    }
}

#[test]
fn first_matching_rule_wins() {
    let socket = Fake {
        sockets: vec![DEFAULT_SOCKET, "/s"],
        ..machine()
    };
    let bare = machine();
    for (flags, env, machine, expected) in [
        (
            &[("server", "h:1"), ("socket", "/s"), ("token", "t")][..],
            &[][..],
            &socket,
            "h:1 t",
        ),
        (
            &[("socket", "/no")],
            &[("context", "dev")],
            &socket,
            "socket /no",
        ),
        (
            &[("context", "dev")],
            &[("server", "e:1")],
            &socket,
            "e:1 dev-token",
        ),
        (&[("context", "dev")], &[], &socket, "dev:1 dev-token"),
        (
            &[],
            &[("context", "dev"), ("token", "e")],
            &socket,
            "dev:1 e",
        ),
        (
            &[("token", "f")],
            &[("context", "dev"), ("token", "e")],
            &socket,
            "dev:1 f",
        ),
        (
            &[("token", "t")],
            &[("server", "e:1, f:2")],
            &socket,
            "e:1,f:2 t",
        ),
        (&[], &[("socket", "/s")], &socket, "socket /s"),
        (&[], &[], &socket, "socket /var/run/jaco/jaco.sock"),
        (&[], &[("socket", "/gone")], &bare, "p1:1,p2:2 prod-token"),
        (&[], &[], &bare, "p1:1,p2:2 prod-token"),
        (
            &[],
            &[("server", ""), ("context", "")],
            &bare,
            "p1:1,p2:2 prod-token",
        ),
    ] {
        let target = choose(&source(flags), &source(env), machine, TokenRule::Required).unwrap();
        assert_eq!(shown(&target), expected, "{flags:?} {env:?}");
    }
}

#[test]
fn missing_settings_have_their_own_codes() {
    let none = Fake {
        contexts: None,
        ..machine()
    };
    let other = Fake {
        files: vec![("/bad", "hello".to_owned())],
        ..Fake::default()
    };
    for (flags, machine, code, word) in [
        (
            &[][..],
            &none,
            "no_transport",
            "local socket /var/run/jaco/jaco.sock is not available",
        ),
        (&[], &none, "no_transport", "--server and --token"),
        (
            &[("server", "h:1")],
            &none,
            "token_required",
            "--token or JACO_TOKEN",
        ),
        (
            &[("server", "h:1"), ("token", "t")],
            &other,
            "ca_required",
            "ca cert not found at /var/",
        ),
        (
            &[("server", "h:1"), ("token", "t"), ("ca_cert", "/x")],
            &none,
            "ca_required",
            "--ca-cert or set JACO_CA_CERT",
        ),
        (
            &[("server", "h:1"), ("token", "t"), ("ca_cert", "/bad")],
            &none,
            "ca_invalid",
            "did not parse",
        ),
        (
            &[("server", "h:1"), ("token", "t"), ("ca_cert", "/denied")],
            &none,
            "file_error",
            "/denied",
        ),
        (
            &[("server", "h:1"), ("token", "t"), ("ca_fingerprint", "ab")],
            &none,
            "usage_error",
            "sha256",
        ),
        (
            &[("server", "h"), ("token", "t")],
            &none,
            "usage_error",
            "host:port",
        ),
        (
            &[("server", " , "), ("token", "t")],
            &none,
            "usage_error",
            "empty",
        ),
        (&[("context", "x")], &none, "context_invalid", "\"x\""),
    ] {
        let result = choose(
            &source(flags),
            &Source::default(),
            machine,
            TokenRule::Required,
        );
        let failure = result.err().unwrap();
        assert_eq!(failure.code, code, "{flags:?}");
        assert!(failure.message.contains(word), "{}", failure.message);
    }
}

#[test]
fn certificate_fingerprint_or_both_are_pinned() {
    let machine = machine();
    let trust = |ca_cert: Option<&str>, fingerprint: &str| {
        let flags = Source {
            server: Some("h:1".to_owned()),
            ca_cert: ca_cert.map(str::to_owned),
            ca_fingerprint: Some(fingerprint.to_owned()),
            ..Source::default()
        };
        match choose(&flags, &Source::default(), &machine, TokenRule::Optional) {
            Ok(Target::Remote { trust, .. }) => Ok(trust),
            Ok(Target::Socket(_)) => panic!("the server flag takes precedence"),
            Err(failure) => Err(failure.code),
        }
    };
    let print: Fingerprint = PRINT.parse().unwrap();
    let prod = machine.files[1].1.clone();
    assert_eq!(trust(Some("/prod"), ""), Ok(Trust::Ca(prod.clone())));
    assert_eq!(
        trust(Some("/prod"), PRINT),
        Ok(Trust::CaAndFingerprint(prod, print))
    );
    assert_eq!(trust(Some("/gone"), PRINT), Ok(Trust::Fingerprint(print)));
    assert_eq!(
        trust(Some("/denied"), &PRINT.to_uppercase()),
        Ok(Trust::Fingerprint(print))
    );
    assert_eq!(trust(Some(""), PRINT), Ok(Trust::Fingerprint(print)));
    assert_eq!(trust(Some(""), ""), Err("ca_required".to_owned()));
}

#[test]
fn token_is_read_from_a_file() {
    let env = source(&[("token", "e")]);
    let choose = |path: &str| {
        let flags = Source {
            token_file: Some(path.into()),
            ..source(&[("server", "h:1")])
        };
        choose(&flags, &env, &machine(), TokenRule::Required)
    };
    assert_eq!(shown(&choose("/token").unwrap()), "h:1 sesame");
    for (path, word) in [
        ("/blank", "is empty"),
        ("/gone", "cannot be read"),
        ("/denied", "permission denied"),
    ] {
        let failure = choose(path).unwrap_err();
        assert_eq!(failure.code, "file_error");
        assert!(failure.message.contains(word), "{}", failure.message);
        assert_eq!(failure.details["path"], path);
    }
}

#[test]
fn optional_rule_needs_no_token() {
    let flags = source(&[("server", "h:1")]);
    let target = choose(&flags, &Source::default(), &machine(), TokenRule::Optional).unwrap();
    assert_eq!(shown(&target), "h:1 -");
}

#[test]
fn addresses_are_host_and_port() {
    for (text, host, port) in [
        ("h:7000", "h", 7000),
        ("10.0.0.1:1", "10.0.0.1", 1),
        ("[::1]:2", "::1", 2),
    ] {
        let address = address(text).unwrap();
        assert_eq!((address.host.as_str(), address.port), (host, port));
        assert_eq!(address.to_string(), text);
    }
    for text in [
        "",
        "h",
        ":1",
        "h:",
        "h:0",
        "h:65536",
        "::1:2",
        "[::1]",
        "https://h:1",
        "u@h:1",
    ] {
        assert!(address(text).is_err(), "{text}");
    }
}
