//! Single steps here; many members with lost messages and several leaders in [`random`].

mod random;

use super::*;

fn view(named: &str, others: &[&str], leading: Option<u64>) -> View {
    View {
        named: named.to_owned(),
        others: others.iter().map(|host| (*host).to_owned()).collect(),
        leading,
        same_version: true,
    }
}

fn core(held: &[&str]) -> Core {
    Core::new(held.iter().map(|id| (*id).to_owned()))
}

fn actions(core: &mut Core) -> Vec<Action> {
    std::iter::from_fn(|| core.poll_action()).collect()
}

fn store(host: &str, id: &str) -> Action {
    Action::Store {
        host: host.to_owned(),
        id: id.to_owned(),
    }
}

fn fetch(host: &str, id: &str) -> Action {
    Action::Fetch {
        host: host.to_owned(),
        id: id.to_owned(),
    }
}

fn propose(id: &str, replaces: &str) -> Action {
    Action::Propose {
        id: id.to_owned(),
        replaces: replaces.to_owned(),
    }
}

fn made(core: &mut Core, now: Instant, id: &str) {
    core.handle_made(now, Ok(id.to_owned()));
}

#[test]
fn single_member_makes_and_names_a_key() {
    let now = Instant::now();
    let mut core = core(&[]);
    core.handle_view(now, view("", &[], Some(1)));
    assert_eq!(actions(&mut core), [Action::Make]);
    made(&mut core, now, "k");
    assert_eq!(actions(&mut core), [propose("k", "")]);
    core.handle_proposed(now, "k", Ok(()));
    core.handle_view(now, view("k", &[], Some(1)));
    assert_eq!(actions(&mut core), []);
    assert_eq!((core.status(), core.poll_timeout()), (Status::Held, None));
}

#[test]
fn key_is_proposed_once_a_majority_has_it() {
    let now = Instant::now();
    let mut core = core(&[]);
    core.handle_view(now, view("", &["b", "c", "d"], Some(1)));
    made(&mut core, now, "k");
    let stores = [store("b", "k"), store("c", "k"), store("d", "k")];
    assert_eq!(actions(&mut core), [&[Action::Make], &stores[..]].concat());
    core.handle_stored(now, "b", "k", true);
    core.handle_stored(now, "c", "k", false);
    assert_eq!(actions(&mut core), [], "two of four are no majority");
    let later = now + RETRY;
    assert_eq!(core.poll_timeout(), Some(later));
    core.handle_timeout(later);
    assert_eq!(actions(&mut core), [store("c", "k")]);
    core.handle_stored(later, "c", "k", true);
    assert_eq!(actions(&mut core), [propose("k", "")]);
    core.handle_proposed(later, "k", Err("lost".to_owned()));
    core.handle_timeout(later + RETRY);
    assert_eq!(actions(&mut core), [propose("k", "")]);
}

#[test]
fn member_that_left_does_not_count() {
    let now = Instant::now();
    let mut core = core(&["k"]);
    core.handle_view(now, view("", &["b", "c", "d"], Some(1)));
    core.handle_stored(now, "b", "k", true);
    actions(&mut core);
    core.handle_view(now, view("", &["c", "d"], Some(1)));
    assert_eq!(actions(&mut core), []);
    core.handle_stored(now, "c", "k", true);
    assert_eq!(actions(&mut core), [propose("k", "")]);
}

#[test]
fn next_leader_introduces_a_key_it_has() {
    let now = Instant::now();
    let mut core = core(&["k"]);
    core.handle_view(now, view("", &["b", "c"], None));
    assert_eq!(actions(&mut core), []);
    core.handle_view(now, view("", &["b", "c"], Some(2)));
    assert_eq!(actions(&mut core), [store("b", "k"), store("c", "k")]);
    // An answer of the former leadership is as good: the disk has the key.
    core.handle_view(now, view("", &["b", "c"], Some(4)));
    assert_eq!(actions(&mut core), [store("b", "k"), store("c", "k")]);
    core.handle_stored(now, "b", "k", true);
    assert_eq!(actions(&mut core), [propose("k", "")]);
}

#[test]
fn no_key_is_made_among_different_versions() {
    let now = Instant::now();
    let mut core = core(&[]);
    let mixed = View {
        same_version: false,
        ..view("", &["b"], Some(1))
    };
    core.handle_view(now, mixed);
    assert_eq!((actions(&mut core), core.poll_timeout()), (vec![], None));
    core.handle_view(now, view("", &["b"], Some(1)));
    assert_eq!(actions(&mut core), [Action::Make]);
}

#[test]
fn failed_key_is_made_again_later() {
    let now = Instant::now();
    let mut core = core(&[]);
    core.handle_view(now, view("", &[], Some(1)));
    core.handle_made(now, Err("disk full".to_owned()));
    assert_eq!(actions(&mut core), [Action::Make]);
    assert_eq!(core.poll_timeout(), Some(now + RETRY));
    core.handle_timeout(now + RETRY);
    assert_eq!(actions(&mut core), [Action::Make]);
}

#[test]
fn member_without_the_key_asks_each_other() {
    let now = Instant::now();
    let mut core = core(&["wrong"]);
    core.handle_view(now, view("k", &["b", "c"], None));
    assert_eq!(
        (actions(&mut core), core.status()),
        (vec![fetch("b", "k")], Status::Asking)
    );
    core.handle_fetched(now, "b", "k", false);
    assert_eq!(actions(&mut core), [fetch("c", "k")]);
    core.handle_fetched(now, "c", "k", false);
    assert_eq!(
        (actions(&mut core), core.status()),
        (vec![], Status::Missing)
    );
    let later = core.poll_timeout().unwrap();
    core.handle_timeout(later);
    assert_eq!(actions(&mut core), [fetch("b", "k")]);
    core.handle_fetched(later, "b", "k", true);
    assert_eq!((core.status(), core.poll_timeout()), (Status::Held, None));
    assert_eq!(core.held(), ["wrong", "k"]);
}

#[test]
fn lost_key_is_never_replaced() {
    let now = Instant::now();
    let mut core = core(&[]);
    core.handle_view(now, view("k", &[], Some(1)));
    assert_eq!(
        (actions(&mut core), core.status()),
        (vec![], Status::Missing)
    );
    core.handle_timeout(core.poll_timeout().unwrap());
    assert_eq!(
        (actions(&mut core), core.status()),
        (vec![], Status::Missing)
    );
    core.handle_written(now, "k");
    assert_eq!(core.status(), Status::Held);
}

#[test]
fn rotation_replaces_and_forgets_the_key() {
    let now = Instant::now();
    let mut core = core(&["k"]);
    core.handle_view(now, view("k", &["b", "c"], Some(1)));
    assert_eq!(core.handle_rotate(now), Ok(()));
    assert_eq!(core.handle_rotate(now), Err(NotRotated::Busy));
    assert_eq!(actions(&mut core), [Action::Make]);
    made(&mut core, now, "n");
    assert_eq!(actions(&mut core), [store("b", "n"), store("c", "n")]);
    core.handle_stored(now, "c", "n", true);
    assert_eq!(actions(&mut core), [propose("n", "k")]);
    core.handle_view(now, view("n", &["b", "c"], Some(1)));
    let ends = [
        Action::Rotated(Ok("n".to_owned())),
        Action::Keep(vec!["n".to_owned()]),
    ];
    assert_eq!(actions(&mut core), ends);
    core.handle_kept(now, None);
    core.handle_timeout(now + RETRY);
    assert_eq!(actions(&mut core), ends[1..]);
    core.handle_kept(now, Some(vec!["n".to_owned()]));
    assert_eq!(
        (core.held(), core.poll_timeout()),
        (&["n".to_owned()][..], None)
    );
}

#[test]
fn rotation_ends_with_the_reason_of_its_failure() {
    let begin = |named: &str, leading| {
        let now = Instant::now();
        let mut core = core(&["k"]);
        core.handle_view(now, view(named, &["b", "c"], leading));
        (now, core)
    };
    let (now, mut core) = begin("k", None);
    assert_eq!(core.handle_rotate(now), Err(NotRotated::NotLeading));

    let ended = |core: &mut Core| match actions(core).pop() {
        Some(Action::Rotated(Err(why))) => why,
        other => panic!("{other:?}"),
    };
    let (now, mut core) = begin("k", Some(1));
    core.handle_rotate(now).unwrap();
    made(&mut core, now, "n");
    core.handle_timeout(now + ROTATION_TIMEOUT);
    assert_eq!(ended(&mut core), NotRotated::NoMajority);

    let (now, mut core) = begin("k", Some(1));
    core.handle_rotate(now).unwrap();
    core.handle_view(now, view("k", &["b", "c"], None));
    assert_eq!(ended(&mut core), NotRotated::NotLeading);

    let (now, mut core) = begin("k", Some(1));
    core.handle_rotate(now).unwrap();
    core.handle_view(now, view("m", &["b", "c"], Some(1)));
    let replaced = Action::Rotated(Err(NotRotated::Replaced));
    assert_eq!(
        actions(&mut core),
        [Action::Make, replaced, fetch("b", "m")]
    );

    let (now, mut core) = begin("k", Some(1));
    core.handle_rotate(now).unwrap();
    core.handle_made(now, Err("disk full".to_owned()));
    assert_eq!(ended(&mut core), NotRotated::Failed("disk full".to_owned()));
}

#[test]
fn disk_keeps_few_keys_and_the_named_one() {
    let now = Instant::now();
    let mut core = core(&[]);
    core.handle_view(now, view("named", &["b"], None));
    core.handle_fetched(now, "b", "named", true);
    for n in 0..20 {
        core.handle_written(now, &format!("k{n}"));
        assert_eq!(core.held()[0], "named");
        assert_eq!(*core.held().last().unwrap(), format!("k{n}"));
        assert!(core.held().len() <= MAX_HELD);
    }
}
