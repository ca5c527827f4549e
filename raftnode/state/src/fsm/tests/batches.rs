use super::{super::UnknownVariant, *};

fn revoke(identity: &str) -> Payload {
    Payload::TokenRevoke(v1::TokenRevoke {
        identity: identity.into(),
    })
}

fn consume() -> Payload {
    Payload::JoinTokenConsume(v1::JoinTokenConsume {
        hashed_secret: b"h".to_vec(),
    })
}

fn nested(depth: usize) -> v1::Command {
    (1..depth).fold(batch("tester", at(START), vec![]), |inner, _| {
        batch("tester", at(START), vec![inner])
    })
}

#[test]
fn batch_children_keep_identity_time_and_order() {
    let mut test = TestState::new();
    let children = vec![
        command("first", at(1), revoke("x")),
        v1::Command::default(),
        batch(
            "ignored",
            at(2),
            vec![command("second", at(3), revoke("y"))],
        ),
        v1::Command {
            ts: None,
            ..command("third", at(0), revoke("z"))
        },
    ];
    let applied = test.run(&batch("outer", at(9), children));
    assert_eq!(applied.result, Ok(()));
    let who: Vec<_> = audits(&applied)
        .into_iter()
        .map(|(_, who, _)| who)
        .collect();
    assert_eq!(who, ["first", "second", "third"]);
    let when: Vec<_> = applied.state.audit.values().map(|e| e.ts).collect();
    assert_eq!(when, [Some(at(1)), Some(at(3)), Some(at(0))]);
}

#[test]
fn later_child_sees_changes_of_earlier_one() {
    let mut test = TestState::new();
    let issue = Payload::JoinTokenIssue(v1::JoinTokenIssue {
        hashed_secret: b"h".to_vec(),
        expires_at: Some(at(START + 1)),
    });
    let children = vec![test.command(issue), test.command(consume())];
    let applied = test.run(&batch("tester", at(START), children));
    assert_eq!(applied.result, Ok(()));
    assert_eq!(
        kinds(&applied),
        ["added join_tokens", "updated join_tokens"]
    );
}

#[test]
fn one_rejected_child_rejects_the_batch() {
    let mut test = TestState::new();
    let children = vec![
        test.command(revoke("x")),
        batch("tester", at(START), vec![test.command(consume())]),
        test.command(revoke("y")),
    ];
    let applied = test.run(&batch("tester", at(START), children));
    assert_eq!(
        applied.result.unwrap_err().code,
        ErrorCode::JoinTokenInvalid
    );
    assert!(test.state.audit.is_empty());
}

#[test]
fn batches_nest_four_deep() {
    let mut test = TestState::new();
    assert_eq!(test.run(&nested(4)).result, Ok(()));
    let error = test.run(&nested(5)).result.unwrap_err();
    assert_eq!(error.code, ErrorCode::ValidationFailed);
}

#[test]
fn unknown_variant_stops_the_node() {
    let unknown = v1::Command {
        payload: None,
        ..command("tester", at(START), revoke("x"))
    };
    let state = State::default();
    let stop = |command: &v1::Command| apply(&state, 7, command).unwrap_err();
    assert_eq!(stop(&unknown), UnknownVariant { index: 7 });
    let within = batch("tester", at(START), vec![unknown.clone()]);
    assert_eq!(stop(&within), UnknownVariant { index: 7 });
    assert!(super::super::check(&unknown).is_err());
    assert!(super::super::check(&within).is_err());
    assert_eq!(super::super::check(&nested(2)), Ok(()));
}

#[test]
fn bytes_with_unknown_fields_do_not_decode() {
    let known = command("tester", at(START), revoke("x"));
    let mut bytes = known.encode_to_vec();
    assert_eq!(decode(&bytes), Ok(known));
    bytes.extend_from_slice(&[0xaa, 0x3f, 0x00]); // field 1013, empty
    assert_eq!(decode(&bytes), Err(super::super::DecodeError::UnknownField));
    assert!(matches!(
        decode(&[0xff, 0xff]),
        Err(super::super::DecodeError::Malformed(_))
    ));
}

#[test]
fn missing_timestamp_reads_as_the_epoch() {
    let mut test = TestState::new();
    let applied = test.run(&v1::Command {
        ts: None,
        ..test.command(revoke("x"))
    });
    assert_eq!(applied.state.audit[&(1, 0)].ts, Some(at(0)));
}
