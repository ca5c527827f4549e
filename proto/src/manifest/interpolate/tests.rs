use proptest::prelude::*;

use super::*;

fn variables() -> BTreeMap<String, String> {
    let pairs = [
        ("V", "value"),
        ("N", "3"),
        ("EMPTY", ""),
        ("ODD", "a: [b]\n# c \"d\""),
    ];
    pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).into()
}

fn run(text: &str) -> Result<Interpolated, Error> {
    interpolate(text.as_bytes(), "c.yml", &variables())
}

fn tree(text: &[u8]) -> Node {
    yaml::parse(text).unwrap().root.unwrap()
}

#[test]
fn files_without_changes_are_verbatim() {
    for text in ["a: 1  # x\n", "a: $5 # $V\n", "# $V\n", "a: '$' \n", ""] {
        assert_eq!(run(text).unwrap().bytes, text.as_bytes());
    }
}

#[test]
fn expanded_scalars_are_strings_others_keep_types() {
    let bytes = run("a: ${N}\nb: 3\nc: '4'\n$V: [x, $ODD]\nd: $$HOME\n")
        .unwrap()
        .bytes;
    let root = tree(&bytes);
    let map = root.as_map().unwrap();
    let resolve = |key: &str| map.get(key).unwrap().as_scalar().unwrap().resolve();
    assert_eq!(resolve("a"), yaml::Resolved::Str("3"));
    assert_eq!(resolve("b"), yaml::Resolved::Int(3));
    assert_eq!(resolve("c"), yaml::Resolved::Str("4"));
    assert_eq!(resolve("d"), yaml::Resolved::Str("$HOME"));
    let items = map.get("value").unwrap().as_seq().unwrap();
    assert_eq!(items[1].text(), Some("a: [b]\n# c \"d\""));
}

#[test]
fn output_is_deterministic_and_readable() {
    let text = "services:\n  web:\n    image: nginx:$V\n    ports: [\"8080:80\"]\n    init: true\n";
    let expected = "services:\n  web:\n    image: \"nginx:value\"\n    ports:\n      - \"8080:80\"\n    init: true\n";
    assert_eq!(run(text).unwrap().bytes, expected.as_bytes());
}

#[test]
fn unset_variables_are_reported_once() {
    let unset = run("a: $X $Y\nb: ${X}\nc: ${Z:-z}\n").unwrap().unset;
    assert_eq!(Vec::from_iter(unset), ["X", "Y"]);
}

#[test]
fn errors_have_the_position_of_the_scalar() {
    let text = "services:\n  web:\n    image: x\n    user: ${DB:?need db}\n";
    assert_eq!(
        run(text).unwrap_err().to_string(),
        "interpolate c.yml: interpolate ${DB} at line 4 col 11: required variable DB is missing a value: need db"
    );
    assert_eq!(
        run("a: b ${1}").unwrap_err().to_string(),
        "interpolate c.yml: interpolate ${1} at line 1 col 4: Invalid template: \"${1}\""
    );
    assert!(matches!(
        run("value: 1\n$V: 2"),
        Err(Error::DuplicateKey { .. })
    ));
    assert!(matches!(
        run("a: $V\n---\nb: 1"),
        Err(Error::SecondDocument { .. })
    ));
    assert!(matches!(run("a: [$V"), Err(Error::Yaml { .. })));
}

proptest! {
    #[test]
    fn arbitrary_text_does_not_panic(text in "(\\$V|\\$\\{X:-|\\}|a|: |- |\n|'|\"|\\[|\\]|#| |&a |\\*a){0,30}") {
        if let Ok(done) = run(&text)
            && !done.bytes.is_empty()
        {
            prop_assert!(yaml::parse(&done.bytes).is_ok() || done.bytes == text.as_bytes());
        }
    }
}

#[test]
fn expansion_of_a_small_file_is_bounded() {
    let long = BTreeMap::from([("V".to_owned(), "x".repeat(1 << 20))]);
    let text = "[$V, $V, $V, $V, $V, $V, $V, $V, $V]";
    let error = interpolate(text.as_bytes(), "c.yml", &long).unwrap_err();
    assert_eq!(
        error.to_string(),
        "interpolate c.yml: interpolate text at line 1 col 34: \
         the text is longer than 8388608 bytes after expansion"
    );
}
