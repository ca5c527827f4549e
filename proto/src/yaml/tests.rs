use proptest::prelude::*;

use super::*;

fn root(text: &str) -> Node {
    parse(text.as_bytes()).unwrap().root.unwrap()
}

fn refusal(text: &str) -> Error {
    parse(text.as_bytes()).unwrap_err()
}

/// Formats the tree without positions and styles, for comparison.
fn shape(node: &Node) -> String {
    match &node.value {
        Value::Scalar(s) => format!("{:?}", s.resolve()),
        Value::Seq(items) => format!(
            "[{}]",
            items.iter().map(shape).collect::<Vec<_>>().join(",")
        ),
        Value::Map(map) => format!(
            "{{{}}}",
            map.iter()
                .map(|(k, v)| format!("{:?}:{}", k.text, shape(v)))
                .collect::<Vec<_>>()
                .join(",")
        ),
    }
}

fn place(line: u32, col: u32) -> Position {
    Position { line, col, file: 0 }
}

#[test]
fn nodes_have_line_and_column() {
    let root = root("a: 1\nb:\n  - x\n  -   y\n\"c\":\n  d: |\n    text\n");
    let map = root.as_map().unwrap();
    assert_eq!(map.entry("b").unwrap().0.at, place(2, 1));
    assert_eq!(map.get("a").unwrap().at, place(1, 4));
    let items = map.get("b").unwrap().as_seq().unwrap();
    assert_eq!(items[1].at, place(4, 7));
    let inner = map.get("c").unwrap().as_map().unwrap();
    assert_eq!(inner.entry("d").unwrap().0.at, place(6, 3));
    assert_eq!(inner.get("d").unwrap().text(), Some("text\n"));
}

#[test]
fn scalars_resolve_by_style_and_text() {
    for (text, expected) in [
        ("a: 80", "Int(80)"),
        ("a: '80'", "Str(\"80\")"),
        ("a: !!str 80", "Str(\"80\")"),
        ("a: 0x50", "Int(80)"),
        ("a: 0120", "Int(80)"),
        ("a: 0b101", "Int(5)"),
        ("a: -7", "Int(-7)"),
        ("a: 0", "Int(0)"),
        ("a: 1.5", "Float(1.5)"),
        ("a: 1e3", "Float(1000.0)"),
        ("a: .5", "Float(0.5)"),
        ("a: true", "Bool(true)"),
        ("a: FALSE", "Bool(false)"),
        ("a: yes", "Str(\"yes\")"),
        ("a: ~", "Null"),
        ("a:", "Null"),
        ("a: ''", "Str(\"\")"),
        ("a: 22:22", "Str(\"22:22\")"),
        ("a: 1.2.3", "Str(\"1.2.3\")"),
        ("a: 0xzz", "Str(\"0xzz\")"),
        ("a: infinity", "Str(\"infinity\")"),
        ("a: é", "Str(\"é\")"),
    ] {
        let root = root(text);
        let value = root.as_map().unwrap().get("a").unwrap();
        assert_eq!(shape(value), expected, "{text}");
    }
}

#[test]
fn aliases_and_merges_are_expanded() {
    let text = "
base: &base {image: a, env: {X: 1}}
more: &more {image: b, user: u}
one: {<<: *base, user: me}
two: {<<: [*base, *more], image: mine}
list: [*base]
quoted: {\"<<\": 1}
";
    let root = root(text);
    let map = root.as_map().unwrap();
    assert_eq!(
        shape(map.get("one").unwrap()),
        r#"{"user":Str("me"),"image":Str("a"),"env":{"X":Int(1)}}"#
    );
    assert_eq!(
        shape(map.get("two").unwrap()),
        r#"{"image":Str("mine"),"env":{"X":Int(1)},"user":Str("u")}"#
    );
    assert_eq!(
        shape(map.get("list").unwrap()),
        r#"[{"image":Str("a"),"env":{"X":Int(1)}}]"#
    );
    assert_eq!(shape(map.get("quoted").unwrap()), r#"{"<<":Int(1)}"#);
}

#[test]
fn every_error_has_kind_and_position() {
    let cases: &[(&str, &str, Position)] = &[
        (
            "a: 1\na: 2",
            "key \"a\" is already set on line 1",
            place(2, 1),
        ),
        ("a: 1\n'a': 2", "already set", place(2, 1)),
        ("{80: 1, '80': 2}", "already set", place(1, 9)),
        ("x: &x [*x]", "inside the node it names", place(1, 8)),
        ("<<: 1", "<< takes a mapping", place(1, 5)),
        ("<<: [1]", "<< takes a mapping", place(1, 6)),
        ("? [a]\n: b", "only scalars", place(1, 3)),
        ("a: !reset b", "unsupported tag !reset", place(1, 4)),
        ("a: !!set {b}", "unsupported tag", place(1, 4)),
        ("a: [", "", place(2, 1)),
        ("a: *nope", "", place(1, 4)),
        ("a: b\n  c: d", "", place(2, 4)),
    ];
    for (text, words, at) in cases {
        let error = refusal(text);
        assert!(error.to_string().contains(words), "{text}: {error}");
        assert_eq!(error.at.line, at.line, "{text}: {error}");
        if !words.is_empty() {
            assert_eq!(error.at, *at, "{text}: {error}");
        }
    }
}

#[test]
fn invalid_utf8_is_rejected_with_its_offset() {
    let error = parse(b"a: 1\nb: \xff").unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotUtf8 { offset: 8 });
    assert_eq!(error.at, place(2, 4));
    assert!(error.to_string().contains("byte 8"));
}

#[test]
fn control_characters_are_rejected_with_their_position() {
    for (text, character, at) in [
        ("a: 1\nb: x\0", '\0', place(2, 5)),
        ("\u{feff}a: \u{1b}[0m", '\u{1b}', place(1, 4)),
        ("a: \"\u{7f}\"", '\u{7f}', place(1, 5)),
        ("# \u{9f}", '\u{9f}', place(1, 3)),
    ] {
        let error = parse(text.as_bytes()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::ControlCharacter(character));
        assert_eq!(error.at, at, "{text:?}");
    }
    assert_eq!(
        shape(&root("a:\t\"\\0\u{85}\"\r\n")),
        r#"{"a":Str("\0\u{85}")}"#
    );
}

#[test]
fn byte_order_mark_is_skipped() {
    assert_eq!(shape(&root("\u{feff}a: 1")), r#"{"a":Int(1)}"#);
}

#[test]
fn second_document_is_reported_but_not_read() {
    let document = parse(b"a: 1\n---\n[broken").unwrap();
    assert_eq!(document.next.unwrap().line, 2);
    assert!(parse(b"a: 1\n...\n").unwrap().next.is_none());
    assert!(parse(b"---\na: 1\n").unwrap().next.is_none());
    assert!(parse(b"").unwrap().root.is_none());
    assert!(parse(b"# only a comment\n").unwrap().root.is_none());
}

#[test]
fn oversized_input_is_rejected_unread() {
    let text = vec![b'\xff'; 10 << 20];
    let error = parse(&text).unwrap_err();
    assert_eq!(error.kind, ErrorKind::InputTooLarge { limit: 4 << 20 });
}

#[test]
fn nesting_stops_at_the_depth_limit() {
    let levels = Limits::default().depth;
    let flow = |n: usize| format!("{}{}", "[".repeat(n), "]".repeat(n));
    assert!(parse(flow(levels).as_bytes()).is_ok());
    for text in [
        flow(levels + 1),
        flow(100_000),
        "[".repeat(150_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "? ".repeat(100_000),
        (0..2_000)
            .map(|n| format!("{}a:\n", " ".repeat(n)))
            .collect(),
    ] {
        let error = refusal(&text);
        assert!(
            matches!(
                error.kind,
                ErrorKind::TooDeep { .. } | ErrorKind::ComplexKey
            ),
            "{:.20}: {error}",
            text
        );
    }
}

#[test]
fn aliases_count_against_the_depth_limit() {
    let mut text = String::from("a0: &a0 [x]\n");
    for n in 1..100 {
        text += &format!("a{n}: &a{n} [*a{}]\n", n - 1);
    }
    assert!(matches!(refusal(&text).kind, ErrorKind::TooDeep { .. }));
}

#[test]
fn alias_bombs_exceed_the_limits() {
    let mut text = String::from("a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n");
    for n in 1..12 {
        let aliases = vec![format!("*a{}", n - 1); 10].join(", ");
        text += &format!("a{n}: &a{n} [{aliases}]\n");
    }
    assert!(matches!(
        refusal(&text).kind,
        ErrorKind::TooManyNodes { .. }
    ));

    let long = "y".repeat(100_000);
    let text = format!("a: &a {long}\nb: [{}]", vec!["*a"; 1_000].join(", "));
    assert!(matches!(refusal(&text).kind, ErrorKind::TooMuchText { .. }));
}

#[test]
fn merges_of_merges_exceed_the_limits() {
    let mut text = String::from("a0: &a0 {k: {k: {k: {k: v}}}}\n");
    for n in 1..20 {
        let last = n - 1;
        text += &format!(
            "a{n}: &a{n} {{x{n}: *a{last}, y{n}: *a{last}, z{n}: *a{last}, <<: *a{last}}}\n"
        );
    }
    assert!(matches!(
        refusal(&text).kind,
        ErrorKind::TooManyNodes { .. }
    ));
}

#[test]
fn huge_flow_collections_are_rejected_before_tokenizing() {
    for unit in ["a,", "\"\"", "{}", "*a ", "!a ", "? "] {
        let text = format!("[{}", unit.repeat(1 << 20));
        let error = refusal(&text);
        assert!(
            matches!(error.kind, ErrorKind::TooManyNodes { .. }),
            "{unit}: {error}"
        );
        assert_eq!(error.at.line, 1);
    }
}

#[test]
fn pathological_input_is_parsed_in_bounded_time() {
    for text in [
        "#".repeat(3 << 20),
        "a\n".repeat(1 << 20),
        " ".repeat(3 << 20),
        "\n".repeat(3 << 20),
        format!("a: \"{}", "\\n".repeat(1 << 20)),
        format!("a: |\n{}", "  x\n".repeat(1 << 19)),
        format!("a: '{}", "\n".repeat(3 << 20)),
        "---\n".repeat(1 << 19),
        "%TAG ! x\n".repeat(1 << 17),
        "&a ".repeat(1 << 18),
        ", ".repeat(1 << 18),
        "a: b: ".repeat(1 << 16),
        format!("[{}", "a,".repeat(1 << 20)),
        format!("{{{}", "a?".repeat(1 << 20)),
    ] {
        let _ = parse(text.as_bytes());
    }
}

#[test]
fn emitted_text_round_trips() {
    let text = "
a: {b: [], c: {}, d: [[1, [2, {x: y}]], {p: q, r: [s]}], e: ~, f: '', g: }
\"k: #\": \"8080\"
n: 1.50
t: yes
u: 'true'
m: |
  two
  lines
w: \"tab\\t bell\\a nel\\N ls\\L quote\\\" back\\\\ é\"
x: -.inf
y: '- z'
z: '<<'
'<<': {not: merged}
";
    let before = root(text);
    let after = root(&to_string(&before));
    assert_eq!(shape(&before), shape(&after));
}

#[test]
fn keys_of_any_length_are_emitted_as_keys() {
    for key in ["k".repeat(5000), "\u{8}".repeat(400), "é \"".repeat(400)] {
        let leaf = |text: &str| Node::new(Value::Scalar(Scalar::string(text)), Position::START);
        let map = |value: Node| {
            let key = Key {
                text: key.clone(),
                at: Position::START,
            };
            Node::new(Value::Map(Map::new(vec![(key, value)])), Position::START)
        };
        let items = vec![map(leaf("a")), map(map(leaf("b")))];
        let list = Node::new(Value::Seq(items), Position::START);
        let before = map(list);
        let after = root(&to_string(&before));
        assert_eq!(shape(&after), shape(&before));
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
    }

    #[test]
    fn arbitrary_yaml_is_rejected_or_round_trips(
        text in "([ab0:#&*!|>'\"%@,?\\[\\]{}~<\\-\\.\\\\\t\r\n ]|<<: |\\*a|&a |- |\n  |\n---\n|: |é){0,60}"
    ) {
        if let Ok(Document { root: Some(before), .. }) = parse(text.as_bytes()) {
            let emitted = to_string(&before);
            let after = parse(emitted.as_bytes()).unwrap().root.unwrap();
            prop_assert_eq!(shape(&before), shape(&after), "{}", emitted);
        }
    }
}
