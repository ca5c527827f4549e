use proptest::prelude::*;

use super::*;

const SECOND: i64 = 1_000_000_000;

#[test]
fn durations_are_parsed() {
    for (text, nanos) in [
        ("0", 0),
        ("-0", 0),
        ("+0", 0),
        ("0s", 0),
        ("5s", 5 * SECOND),
        ("+5s", 5 * SECOND),
        ("-5s", -5 * SECOND),
        ("500ms", SECOND / 2),
        ("1m30s", 90 * SECOND),
        ("1h", 3600 * SECOND),
        ("1h1s1h", 7201 * SECOND),
        ("1.5h", 5400 * SECOND),
        (".5s", SECOND / 2),
        ("1.s", SECOND),
        ("10us", 10_000),
        ("10\u{b5}s", 10_000),
        ("10\u{3bc}s", 10_000),
        ("0.3333333333333333333h", 1_199_999_999_999),
        ("9223372036854775807ns", i64::MAX),
        ("-9223372036854775808ns", i64::MIN),
        ("9007199254740993ns", 9_007_199_254_740_993),
    ] {
        assert_eq!(parse(text), Ok(nanos), "{text}");
    }
}

#[test]
fn invalid_text_is_rejected() {
    for text in [
        "",
        "-",
        "+",
        "5",
        "-5",
        "s",
        ".s",
        ".",
        "5 s",
        " 5s",
        "5s ",
        "5S",
        "5d",
        "1..5s",
        "--5s",
        "5s-3s",
        "5sx",
        "3000000h",
        "9223372036854775808ns",
        "-9223372036854775809ns",
        "5\u{b5}",
        "99999999999999999999s",
        "é",
    ] {
        assert_eq!(parse(text), Err(Invalid(text.to_owned())));
    }
}

#[test]
fn durations_are_formatted_with_largest_units() {
    for (nanos, text) in [
        (0, "0s"),
        (1, "1ns"),
        (1_100, "1.1\u{b5}s"),
        (2_200_000, "2.2ms"),
        (3_300_000_000, "3.3s"),
        (SECOND, "1s"),
        (300 * SECOND, "5m0s"),
        (245 * SECOND, "4m5s"),
        (245 * SECOND + 1_000_000, "4m5.001s"),
        (18_367 * SECOND + 1_000_000, "5h6m7.001s"),
        (3600 * SECOND, "1h0m0s"),
        (-90 * SECOND, "-1m30s"),
        (i64::MAX, "2562047h47m16.854775807s"),
        (i64::MIN, "-2562047h47m16.854775808s"),
    ] {
        assert_eq!(format(nanos), text);
    }
}

proptest! {
    #[test]
    fn formatted_durations_round_trip(nanos in any::<i64>(), small in -2_000_000_000_000..2_000_000_000_000_i64) {
        prop_assert_eq!(parse(&format(nanos)), Ok(nanos));
        prop_assert_eq!(parse(&format(small)), Ok(small));
    }

    #[test]
    fn arbitrary_text_does_not_panic(text in "[-+0-9.nuµmsh ]{0,12}|.*") {
        let _ = parse(&text);
    }
}
