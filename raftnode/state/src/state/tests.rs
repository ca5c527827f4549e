use std::sync::Arc;

use jaco_proto::v1;
use prost::Message;

use super::*;

fn sample() -> State {
    let mut state = State::default();
    let node = v1::Node {
        hostname: "a".into(),
        ..Default::default()
    };
    state.nodes.insert("a".into(), Arc::new(node));
    let route = v1::Route {
        domain: "a.example".into(),
        deployment: "shop".into(),
        ..Default::default()
    };
    state
        .routes
        .insert(("a.example".into(), String::new()), Arc::new(route));
    state
}

#[test]
fn invalid_rows_are_named_in_the_error() {
    let node = v1::Node {
        hostname: "a".into(),
        ..Default::default()
    }
    .encode_to_vec();
    let nameless = v1::Node::default().encode_to_vec();
    let newer = [&*node, b"\xf8\x7c\x01"].concat();
    for (key, value, message) in [
        (
            b"".to_vec(),
            node.clone(),
            r#"row "" belongs to no known table"#,
        ),
        (
            b"\xffx".to_vec(),
            node.clone(),
            r#"row "\xffx" belongs to no known table"#,
        ),
        (
            b"\x02a".to_vec(),
            b"\xff".to_vec(),
            r#"row "\x02a" of nodes does not decode"#,
        ),
        (
            b"\x02b".to_vec(),
            node.clone(),
            r#"row "\x02b" of nodes holds the entity of "\x02a""#,
        ),
        (
            b"\x01x".to_vec(),
            vec![],
            r#"row "\x01x" of cluster holds the entity of "\x01""#,
        ),
        (
            b"\x02a".to_vec(),
            newer,
            r#"row "\x02a" of nodes holds something that this version does not know"#,
        ),
        (
            b"\x02".to_vec(),
            nameless,
            r#"nodes holds "\x02" twice, or it is not a key"#,
        ),
    ] {
        let error = load([(key, value)]).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let twice = load([(b"\x02a".to_vec(), node.clone()), (b"\x02a".to_vec(), node)]);
    assert!(matches!(twice, Err(LoadError::BadKey { .. })));
}

#[test]
fn rows_are_ascending_and_start_with_the_tag() {
    let keys: Vec<_> = sample().rows().map(|(key, _)| key).collect();
    assert_eq!(keys, [b"\x02a".to_vec(), b"\x09a.example\0".to_vec()]);
    for table in Table::ALL {
        assert_eq!(Table::from_tag(table.tag()), Some(*table));
    }
}

#[test]
fn digest_depends_on_rows_only() {
    let state = sample();
    let later = State {
        applied_index: 9,
        ..state.clone()
    };
    assert_eq!(state.digest(), later.digest());
    let mut other = state.clone();
    other.nodes.remove("a");
    assert_ne!(state.digest(), other.digest());
    other.nodes = state.nodes.clone();
    assert_eq!(state.digest(), other.digest());
}
