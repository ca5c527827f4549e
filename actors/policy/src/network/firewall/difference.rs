//! Comparison of the expected ruleset with the kernel's.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Display,
};

use super::ruleset::{Base, Chain, Elements, Rule, Ruleset, Set};

/// Longest summary in bytes, so that it fits into a report to the leader.
const SUMMARY_BYTES: usize = 4 << 10;

/// Differences of a ruleset from the expected one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Difference(BTreeSet<String>);

impl Difference {
    /// Compares `found` with `expected`; a table that is absent lacks everything.
    ///
    /// The order of rules matters, that of sets and chains does not.
    #[must_use]
    pub fn between(expected: &Ruleset, found: Option<&Ruleset>) -> Self {
        let mut this = Self::default();
        if found == Some(expected) {
            return this;
        }
        let none = Ruleset::default();
        let flags = found.map_or(expected.flags, |found| found.flags);
        let found = found.unwrap_or(&none);
        if flags != expected.flags {
            let flags = format!("table:jaco.flags={flags} (want {})", expected.flags);
            this.note("extra", flags);
        }
        this.compare_sets(&expected.sets, &found.sets);
        this.compare_chains(&expected.chains, &found.chains);
        this
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sorted list for the audit log, such as `extra:set:x,missing:rule:forward[2]`. A long one
    /// ends with the number of differences it leaves out.
    #[must_use]
    pub fn summary(&self) -> String {
        let mut text = String::new();
        for (index, item) in self.0.iter().enumerate() {
            if text.len() + item.len() > SUMMARY_BYTES {
                let rest = self.0.len() - index;
                return format!("{text},+{rest} more");
            }
            if index > 0 {
                text.push(',');
            }
            text.push_str(item);
        }
        text
    }

    fn note(&mut self, side: &str, item: String) {
        self.0.insert(format!("{side}:{item}"));
    }

    fn compare_sets(&mut self, expected: &[Set], found: &[Set]) {
        let by_name = |sets| -> BTreeMap<_, &Set> { index(sets, |set: &Set| &set.name) };
        let (expected, found) = (by_name(expected), by_name(found));
        for (name, found) in &found {
            let Some(expected) = expected.get(name) else {
                self.note("extra", format!("set:{name}"));
                continue;
            };
            match (&expected.elements, &found.elements) {
                (expected, found) if expected == found => {}
                (Elements::Spans(expected), Elements::Spans(found)) => {
                    self.compare_elements(name, expected, found);
                }
                (Elements::Selections(expected), Elements::Selections(found)) => {
                    self.compare_elements(name, expected, found);
                }
                (Elements::Attachments(expected), Elements::Attachments(found)) => {
                    self.compare_elements(name, expected, found);
                }
                (expected, found) => {
                    let (found, want) = (kind(found), kind(expected));
                    self.note("missing", format!("set:{name}.type={found} (want {want})"));
                }
            }
        }
        for name in expected.keys().filter(|name| !found.contains_key(**name)) {
            self.note("missing", format!("set:{name}"));
        }
    }

    fn compare_elements<T: Ord + Display>(&mut self, set: &str, expected: &[T], found: &[T]) {
        let (expected, found): (BTreeSet<_>, BTreeSet<_>) =
            (expected.iter().collect(), found.iter().collect());
        for element in expected.difference(&found) {
            self.note("missing", format!("element:{set}/{element}"));
        }
        for element in found.difference(&expected) {
            self.note("extra", format!("element:{set}/{element}"));
        }
    }

    fn compare_chains(&mut self, expected: &[Chain], found: &[Chain]) {
        let by_name =
            |chains| -> BTreeMap<_, &Chain> { index(chains, |chain: &Chain| &chain.name) };
        let (expected, found) = (by_name(expected), by_name(found));
        for name in found.keys().filter(|name| !expected.contains_key(**name)) {
            self.note("extra", format!("chain:{name}"));
        }
        for (name, expected) in &expected {
            let rules = match found.get(name) {
                Some(found) => {
                    self.compare_bases(name, expected.base.as_ref(), found.base.as_ref());
                    &*found.rules
                }
                None => {
                    self.note("missing", format!("chain:{name}"));
                    &[]
                }
            };
            self.compare_rules(name, &expected.rules, rules);
        }
    }

    fn compare_bases(&mut self, chain: &str, expected: Option<&Base>, found: Option<&Base>) {
        let fields = |base: Option<&Base>| match base {
            Some(base) => [
                ("type", base.kind.clone()),
                ("hook", base.hook.clone()),
                ("priority", base.priority.to_string()),
                ("policy", base.policy.clone()),
            ],
            None => ["type", "hook", "priority", "policy"].map(|field| (field, "none".to_owned())),
        };
        for ((field, want), (_, value)) in fields(expected).into_iter().zip(fields(found)) {
            if value != want {
                self.note(
                    "missing",
                    format!("chain:{chain}.{field}={value} (want {want})"),
                );
            }
        }
    }

    /// Compares the rules between the common beginning and the common end.
    fn compare_rules(&mut self, chain: &str, expected: &[Rule], found: &[Rule]) {
        let pairs = expected.iter().zip(found);
        let start = pairs
            .take_while(|(expected, found)| expected == found)
            .count();
        let (left, right) = (&expected[start..], &found[start..]);
        let pairs = left.iter().rev().zip(right.iter().rev());
        let end = pairs
            .take_while(|(expected, found)| expected == found)
            .count();
        for index in start..expected.len() - end {
            self.note("missing", format!("rule:{chain}[{index}]"));
        }
        for index in start..found.len() - end {
            self.note("extra", format!("rule:{chain}[{index}]"));
        }
    }
}

/// Type of a set's elements, for the summary.
fn kind(elements: &Elements) -> &'static str {
    match elements {
        Elements::Spans(_) => "ipv4_addr intervals",
        Elements::Selections(_) => "ipv4_addr intervals : verdict",
        Elements::Attachments(_) => "ipv4_addr . ifname",
        Elements::Foreign => "other",
    }
}

fn index<'a, T>(items: &'a [T], name: impl Fn(&'a T) -> &'a String) -> BTreeMap<&'a str, &'a T> {
    items
        .iter()
        .map(|item| (name(item).as_str(), item))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{
        firewall::ruleset::{Attachment, POOL_SET, Span},
        testing::state,
    };

    fn expected() -> Ruleset {
        Ruleset::of_state(&state(&[
            ("web", "a", "n1", "10.244.1.0/24"),
            ("web", "a", "n2", "10.244.2.0/24"),
            ("web", "b", "n1", "10.244.3.0/24"),
        ]))
    }

    fn summary(change: impl FnOnce(&mut Ruleset)) -> String {
        let mut found = expected();
        change(&mut found);
        Difference::between(&expected(), Some(&found)).summary()
    }

    #[test]
    fn equal_rulesets_do_not_differ() {
        assert!(Difference::between(&expected(), Some(&expected())).is_empty());
        let reordered = summary(|found| {
            found.sets.reverse();
            found.chains.reverse();
        });
        assert_eq!(reordered, "");
    }

    #[test]
    fn every_change_of_the_table_is_named() {
        let foreign = |name: &str| Chain {
            name: name.to_owned(),
            base: None,
            rules: vec![Rule::Foreign],
        };
        let span = Span::from("10.0.0.0/8".parse::<jaco_engine::cidr::Cidr>().unwrap());
        let attachment = Attachment {
            address: [10, 244, 1, 2].into(),
            interface: "br0".to_owned(),
        };
        type Change<'a> = &'a dyn Fn(&mut Ruleset);
        let table: &[(Change<'_>, &str)] = &[
            (&|t| t.flags = 1, "extra:table:jaco.flags=1 (want 0)"),
            (&|t| drop(t.sets.remove(0)), "missing:set:dep_net_web_a"),
            (
                &|t| t.sets[0].name.push('x'),
                "extra:set:dep_net_web_ax,missing:set:dep_net_web_a",
            ),
            (
                &|t| t.sets[0].elements = Elements::Foreign,
                "missing:set:dep_net_web_a.type=other (want ipv4_addr intervals)",
            ),
            (
                &|t| {
                    t.sets[3]
                        .spans_mut()
                        .unwrap()
                        .retain(|span| span.first != 0x0af4_0200)
                },
                "missing:element:jaco_pool/10.244.2.0/24",
            ),
            (
                &|t| t.sets[1].spans_mut().unwrap().insert(0, span),
                "extra:element:dep_net_web_b/10.0.0.0/8",
            ),
            (
                &|t| t.sets[5].elements = Elements::Attachments(vec![attachment.clone()]),
                "extra:element:jaco_attachments/10.244.1.2@br0",
            ),
            (
                &|t| {
                    if let Elements::Selections(selections) = &mut t.sets[2].elements {
                        selections.remove(0);
                    }
                },
                "missing:element:jaco_networks/10.244.1.0/24:dep_net_web_a",
            ),
            (&|t| t.chains.push(foreign("x")), "extra:chain:x"),
            (
                &|t| drop(t.chains[3].rules.pop()),
                "missing:rule:prerouting[1]",
            ),
            (&|t| drop(t.chains.remove(1)), "missing:chain:input"),
            (
                &|t| t.chains[0].base.as_mut().unwrap().policy = "drop".to_owned(),
                "missing:chain:forward.policy=drop (want accept)",
            ),
            (
                &|t| t.chains[0].base.as_mut().unwrap().priority = 10,
                "missing:chain:forward.priority=10 (want 0)",
            ),
            (
                &|t| drop(t.chains[0].rules.pop()),
                "missing:rule:forward[3]",
            ),
            (
                &|t| t.chains[0].rules.insert(0, Rule::Foreign),
                "extra:rule:forward[0]",
            ),
            (
                &|t| t.chains[0].rules.swap(2, 3),
                "extra:rule:forward[2],extra:rule:forward[3],\
                 missing:rule:forward[2],missing:rule:forward[3]",
            ),
            (
                &|t| t.chains[2].rules.push(Rule::Foreign),
                "extra:rule:output[1]",
            ),
        ];
        for (change, text) in table {
            assert_eq!(summary(change), *text);
        }
    }

    #[test]
    fn absent_table_lacks_everything() {
        let difference = Difference::between(&expected(), None);
        let text = difference.summary();
        for part in ["missing:chain:forward", "missing:rule:forward[0]", POOL_SET] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("extra"), "{text}");
    }

    #[test]
    fn long_summary_is_cut() {
        let rows: Vec<_> = (0..1000).map(|n| format!("d{n}")).collect();
        let rows: Vec<_> = rows
            .iter()
            .map(|d| (&**d, "n", "n1", "10.244.1.0/24"))
            .collect();
        let text = Difference::between(&Ruleset::of_state(&state(&rows)), None).summary();
        assert!(text.len() <= SUMMARY_BYTES + 32);
        assert!(text.ends_with(" more"), "{text}");
    }
}
