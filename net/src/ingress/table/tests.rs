//! Matching rules one by one, then against a naive model.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

fn rule(domain: &str, path: &str) -> Rule {
    Rule {
        domain: domain.to_owned(),
        path: path.to_owned(),
        ..Rule::default()
    }
}

fn matched<'a>(table: &'a RouteTable, host: &str, path: &str) -> Option<&'a str> {
    match table.lookup(host, path)? {
        Match::Redirect => Some("redirect"),
        Match::Forward(route) => Some(route.path()),
    }
}

#[test]
fn declared_paths_match() {
    let table = [
        ("/api", "/api", true),
        ("/api", "/api/", true),
        ("/api", "/api/x", true),
        ("/api", "/apix", false),
        ("/api", "/API/x", true),
        ("/api", "/%61pi", true),
        ("/api", "/x/../api", true),
        ("/api", "/api/../x", false),
        ("/api", "/ap", false),
        ("/api/", "/api", true),
        ("/api/", "/api/x", true),
        ("/api/", "/apix", false),
        ("/api*", "/apix", true),
        ("/api*", "/api", true),
        ("/api/*", "/api", false),
        ("/api/*", "/api/", true),
        ("/api/*", "/api/x", true),
        ("/api/*", "/apix", false),
        ("/", "/anything", true),
        ("", "/anything", true),
        ("/*", "/anything", true),
    ];
    for (configured, path, expected) in table {
        let routes = RouteTable::new([rule("a.example", configured)]);
        let hit = matched(&routes, "a.example", path).is_some();
        assert_eq!(hit, expected, "{configured:?} on {path}");
    }
}

#[test]
fn longest_path_wins_and_catch_all_is_last() {
    let routes = RouteTable::new(
        ["", "/", "/api", "/api/", "/api*", "/api/v1"].map(|path| rule("A.example", path)),
    );
    let order: Vec<_> = routes.routes("a.example").iter().map(Route::path).collect();
    assert_eq!(order, ["/api/v1", "/api*", "/api/", "/api", "/", ""]);
    assert_eq!(matched(&routes, "a.EXAMPLE", "/api/v1/x"), Some("/api/v1"));
    assert_eq!(matched(&routes, "a.example", "/apix"), Some("/api*"));
    assert_eq!(matched(&routes, "a.example", "/x"), Some("/"));
}

#[test]
fn hosts_match_exactly() {
    let routes = RouteTable::new([rule("a.example", "")]);
    for host in ["b.example", "x.a.example", "example", "", "a.example."] {
        assert_eq!(matched(&routes, host, "/"), None, "{host}");
    }
}

#[test]
fn redirecting_rule_applies_to_its_whole_domain() {
    let secure = Rule {
        redirect_to_https: true,
        ..rule("a.example", "/secure")
    };
    let routes = RouteTable::new([rule("a.example", ""), secure, rule("b.example", "")]);
    assert_eq!(matched(&routes, "a.example", "/"), Some("redirect"));
    assert_eq!(matched(&routes, "b.example", "/secure"), Some(""));
}

#[test]
fn only_stripping_routes_change_the_path() {
    let stripped = |path: &str, strip_path: bool, request: &str| {
        let table = RouteTable::new([Rule {
            strip_path,
            ..rule("a", path)
        }]);
        table.routes("a")[0].stripped(request)
    };
    assert_eq!(stripped("/api", true, "/api/foo").as_deref(), Some("/foo"));
    assert_eq!(stripped("/api/", true, "/api").as_deref(), Some("/"));
    assert_eq!(stripped("/api*", true, "/apix").as_deref(), Some("/x"));
    assert_eq!(stripped("/api/*", true, "/api/x").as_deref(), Some("/x"));
    assert_eq!(stripped("/api", false, "/api/foo"), None);
    assert_eq!(stripped("", true, "/api/foo"), None);
    assert_eq!(stripped("/", true, "/api/foo"), None);
}

/// A naive implementation of the matching rules.
fn model(rules: &[Rule], host: &str, path: &str) -> Option<String> {
    let path = path.to_lowercase();
    let hit = |configured: &str| {
        let configured = configured.to_lowercase();
        match configured.strip_suffix('*') {
            Some(start) => path.starts_with(start),
            None => {
                let base = configured.trim_end_matches('/');
                path == base || path.starts_with(&format!("{base}/"))
            }
        }
    };
    let mut best: Option<&str> = None;
    for rule in rules
        .iter()
        .filter(|rule| rule.domain == host.to_lowercase() && hit(&rule.path))
    {
        best = Some(match best {
            Some(held)
                if held.len() > rule.path.len()
                    || (held.len() == rule.path.len() && *held <= *rule.path) =>
            {
                held
            }
            Some(_) | None => &rule.path,
        });
    }
    best.map(str::to_owned)
}

fn any_path() -> impl Strategy<Value = String> {
    vec(select(vec!["a", "B", "ab", "A", "x"]), 0..4)
        .prop_map(|parts| format!("/{}", parts.join("/")))
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let path = prop_oneof![
        Just(String::new()),
        (any_path(), select(vec!["", "*", "/", "/*"]))
            .prop_map(|(path, tail)| { if path == "/" { path } else { path + tail } }),
    ];
    (select(vec!["one", "two"]), path).prop_map(|(domain, path)| rule(domain, &path))
}

proptest! {
    #[test]
    fn lookup_agrees_with_the_model(
        rules in vec(any_rule(), 0..8),
        host in select(vec!["one", "TWO", "three"]),
        path in any_path(),
        slash in any::<bool>(),
    ) {
        let path = if slash && path != "/" { path + "/" } else { path };
        let table = RouteTable::new(rules.clone());
        let found = matched(&table, host, &path).map(str::to_owned);
        prop_assert_eq!(found, model(&rules, host, &path));
    }

    #[test]
    fn matching_and_stripping_accept_any_path(path in "[/%.a-zA-Z0-9é]{0,24}") {
        let stripping = Rule { strip_path: true, ..rule("one", "/a") };
        let table = RouteTable::new([stripping, rule("one", "/%*")]);
        if let Some(Match::Forward(route)) = table.lookup("one", &path)
            && let Some(rest) = route.stripped(&path)
        {
            prop_assert!(rest.starts_with('/'));
        }
    }

    #[test]
    fn order_of_rules_does_not_matter(mut rules in vec(any_rule(), 0..8)) {
        let table = RouteTable::new(rules.clone());
        rules.reverse();
        prop_assert_eq!(table, RouteTable::new(rules));
    }
}
