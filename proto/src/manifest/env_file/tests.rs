use std::io;

use proptest::prelude::*;

use super::*;

fn read(text: &str) -> Result<Variables, Error> {
    parse(text.as_bytes(), |name| {
        (name == "OUT").then(|| "outer".to_owned())
    })
}

#[track_caller]
fn assert_reads(text: &str, pairs: &[(&str, &str)]) {
    let expected: BTreeMap<String, String> = pairs
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    assert_eq!(read(text).unwrap().values, expected, "{text}");
}

#[test]
fn lines_set_keys() {
    for (text, pairs) in [
        ("", &[][..]),
        ("\n  \n# c\n  # c\nA=1", &[("A", "1")]),
        ("\u{feff}A=1\r\nB=2\r\n", &[("A", "1"), ("B", "2")]),
        (
            "export A=1\nexport\tB=2\nexport=3",
            &[("A", "1"), ("B", "2"), ("export", "3")],
        ),
        ("A.b-c[0]_d: x", &[("A.b-c[0]_d", "x")]),
        ("A = x ", &[("A", "x")]),
        ("  A=x", &[("A", "x")]),
        ("A=", &[("A", "")]),
        ("A=\nB=1", &[("A", ""), ("B", "1")]),
        ("A=1\nA=2", &[("A", "2")]),
        ("A=1\nA\nBARE\nB=2 # c", &[("A", "1"), ("B", "2")]),
        ("A=a b  # c", &[("A", "a b")]),
        ("A=a#b", &[("A", "a#b")]),
        ("A= # c", &[("A", "")]),
        ("A=x=y:z", &[("A", "x=y:z")]),
        ("A=it's \"fine\"", &[("A", "it's \"fine\"")]),
    ] {
        assert_reads(text, pairs);
    }
}

#[test]
fn quoted_values_keep_special_characters() {
    for (text, value) in [
        ("A='a $OUT \"b\" # c'", "a $OUT \"b\" # c"),
        ("A='it\\'s \\n' # c", "it's \\n"),
        ("A='two\nlines'", "two\nlines"),
        ("A=\"two\nlines $OUT\"", "two\nlines outer"),
        (
            r#"A="\a\b\f\n\r\t\v\\\"""#,
            "\u{7}\u{8}\u{c}\n\r\t\u{b}\\\"",
        ),
        (r#"A="\$OUT \0101 \044OUT \q""#, "$OUT A $OUT \\q"),
        (r#"A="\0044OUT""#, "$OUT"),
        ("A: \"x\"  ", "x"),
        ("A=\"\"", ""),
    ] {
        assert_reads(text, &[("A", value)]);
    }
    assert_reads("A='x\ny'\nB=2", &[("A", "x\ny"), ("B", "2")]);
}

#[test]
fn values_expand_with_earlier_keys() {
    assert_reads(
        "A=1\nB=$A-${OUT}-${C:-d}\nC=$$A\nD='$A'",
        &[("A", "1"), ("B", "1-outer-d"), ("C", "$A"), ("D", "$A")],
    );
    let unset = read("A=$B$C\nB=1").unwrap().unset;
    assert_eq!(Vec::from_iter(unset), ["B", "C"]);
}

#[test]
fn errors_name_the_line() {
    for (text, line, words) in [
        ("A=1\nB C=2", 2, "unexpected character ' '"),
        ("A!=1", 1, "unexpected character '!'"),
        ("\n\n=1", 3, "a key is missing"),
        ("A='x\n\n", 1, "the quote ' is never closed"),
        ("A=1\nB=\"x", 2, "the quote \" is never closed"),
        ("A='x' y", 1, "after the closing quote"),
        ("A='x\ny'\nB=${", 3, "Invalid template"),
        (
            "A=${X:?say it}",
            1,
            "required variable X is missing a value: say it",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert_eq!(error.line, line, "{text}: {error}");
        assert!(error.to_string().contains(words), "{text}: {error}");
    }
    let error = parse(b"A=1\nB=\xff", |_| None).unwrap_err();
    assert_eq!((error.line, error.kind), (2, ErrorKind::NotUtf8));
}

#[test]
fn doubling_values_hit_the_length_limit() {
    let doubling = (0..64).map(|n| format!("V{}=$V{n}$V{n}\n", n + 1));
    let text: String = std::iter::once("V0=x\n".to_owned())
        .chain(doubling)
        .collect();
    let error = read(&text).unwrap_err();
    assert_eq!(error.line, 24);
    let ErrorKind::Template(ExpandError::TooLong { .. }) = error.kind else {
        panic!("{error}");
    };
}

/// Folds with a directory that contains `a.env`, `b.env` and `bad.env`.
fn folded(compose: &str) -> Result<Folded, FoldError> {
    let mut directory = |path: &str| match path {
        "a.env" => Ok(b"A=a\nB=a\nURL=$USER@$A".to_vec()),
        "b.env" => Ok(b"B=b\nFROM_A=${A}\n".to_vec()),
        "bad.env" => Ok(b"\nx y".to_vec()),
        "dir" => Err(io::Error::from(io::ErrorKind::IsADirectory)),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    };
    fold(compose.as_bytes(), Some(&mut directory))
}

#[test]
fn explicit_values_win_and_later_files_override_earlier() {
    let text = "services:\n  web:\n    env_file: [a.env, {path: b.env}, {path: no.env, required: false}]\n    environment: {USER: me, NUL: , A: 8080}\n  db: {image: pg, environment: {z: 1, a: 2}}\n";
    let expected = "services:\n  web:\n    environment:\n      A: \"8080\"\n      B: \"b\"\n      FROM_A: \"8080\"\n      NUL: null\n      URL: \"me@8080\"\n      USER: \"me\"\n  db:\n    image: pg\n    environment:\n      z: 1\n      a: 2\n";
    let done = folded(text).unwrap();
    assert_eq!(String::from_utf8(done.bytes).unwrap(), expected);
}

#[test]
fn files_without_env_file_are_unchanged() {
    for text in ["services: {a: {image: x}} # c\n", "", "[]", "services: 3"] {
        assert_eq!(folded(text).unwrap().bytes, text.as_bytes());
    }
}

#[test]
fn list_environments_and_single_paths_are_merged() {
    let done = folded("services: {w: {env_file: b.env, environment: [A=1, BARE]}}").unwrap();
    let text = String::from_utf8(done.bytes).unwrap();
    assert!(
        text.contains("A: \"1\"\n") && text.contains("BARE: null\n"),
        "{text}"
    );
    assert!(text.contains("FROM_A: \"1\"\n"), "{text}");
    let project = crate::manifest::compose::Project::parse(text.as_bytes()).unwrap();
    assert_eq!(project.services["w"].environment["B"].as_deref(), Some("b"));
}

#[test]
fn fold_errors_name_service_and_file() {
    for (entry, words) in [
        (
            "no.env",
            "resolve env_file: service \"w\": no.env not found",
        ),
        ("dir", "read dir"),
        ("bad.env", "bad.env"),
        ("{path: a.env, format: json}", "format"),
        ("{required: true}", "needs a path"),
        ("{path: a.env, required: maybe}", "boolean"),
        ("{path: a.env, other: 1}", "unknown key"),
        ("[[a.env]]", "needs a path"),
    ] {
        let error = folded(&format!("services: {{w: {{env_file: {entry}}}}}")).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("resolve env_file") && message.contains(words),
            "{message}"
        );
        assert!(message.contains("\"w\""), "{message}");
    }
    let error = fold(b"services: {w: {env_file: a.env}}", None).unwrap_err();
    assert!(error.to_string().contains("\"w\"") && error.to_string().contains("--compose"));
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "([AB=: '\"\\\\#$\\{\\}\n\r\t0n]|export |\\$\\{A:-|é){0,40}") {
        let _ = read(&text);
    }

    #[test]
    fn single_quoted_values_round_trip(value in "[^'\\\\\r]{0,40}") {
        let values = read(&format!("A='{value}'")).unwrap().values;
        prop_assert_eq!(&values["A"], &value);
    }
}
