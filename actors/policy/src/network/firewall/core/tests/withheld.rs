//! Blocks that are withheld from their new network.

use super::*;

#[test]
fn deleted_deployment_stays_apart_until_its_containers_ended() {
    let mut bench = Bench::enforced();
    let (web, api) = (
        ("web", "a", "n1", "10.244.1.0/24"),
        ("api", "b", "n1", "10.244.2.0/24"),
    );
    bench.rows(&[web, api]);
    bench.advance(QUIET);
    bench.rows(&[api]);
    bench.advance(SECOND * 299);
    let kernel = bench.kernel.as_ref().unwrap();
    let (of_web, of_api) = ([10, 244, 1, 2].into(), [10, 244, 2, 2].into());
    assert_eq!(kernel.scope_sets().count(), 1, "its scope is gone");
    assert_eq!(kernel.verdict(of_web, of_api, false), Verdict::Drop);
    assert_eq!(bench.pool(), [web.3, api.3]);
    bench.advance(TICK * 2);
    assert_eq!(bench.pool(), [web.3, api.3], "the engine was not asked");
    bench.survey_empty();
    bench.advance(SECOND);
    assert_eq!(bench.pool(), [api.3]);
    assert_eq!(bench.reported(), Vec::<String>::new());
    // A block that is allocated again is part of its new scope alone.
    bench.rows(&[]);
    bench.rows(&[("web", "c", "n2", api.3)]);
    bench.advance(QUIET);
    bench.survey_empty();
    bench.advance(SECOND);
    assert_eq!(bench.kernel, Some(Ruleset::of_state(&bench.state)));
}

#[test]
fn blocks_of_an_earlier_process_stay_apart() {
    let mut bench = Bench::new();
    bench.rows(&[("api", "b", "n1", "10.244.2.0/24")]);
    let before = state(&[
        ("api", "b", "n1", "10.244.2.0/24"),
        ("web", "a", "n1", "10.244.1.0/24"),
    ]);
    bench.kernel = Some(Ruleset::of_state(&before));
    bench.leader(true);
    assert_eq!(bench.pool(), ["10.244.1.0/24", "10.244.2.0/24"]);
    assert_eq!(bench.kernel.as_ref().unwrap().scope_sets().count(), 1);
    bench.survey_empty();
    bench.advance(SECOND * 299);
    assert_eq!(bench.pool().len(), 2, "quarantine");
    bench.advance(TICK * 2);
    assert_eq!(bench.pool(), ["10.244.2.0/24"]);
}

#[test]
fn block_of_former_containers_joins_no_network() {
    let mut bench = Bench::enforced();
    let (id, block) = (NetworkId::new("web", "b"), "10.244.1.0/24".parse().unwrap());
    let local = |network: &str, begun| {
        Arc::new(LocalNetworks {
            begun,
            blocks: vec![(Some(NetworkId::new("web", network)), block)],
            bridges: Default::default(),
        })
    };
    bench.rows(&[
        ("web", "b", "n1", "10.244.1.0/24"),
        ("web", "b", "n2", "10.244.2.0/24"),
    ]);
    bench.advance(SECOND);
    let includes = |bench: &Bench| bench.status.enforced.as_ref().unwrap().includes(&id, block);
    let (old, new) = ([10, 244, 1, 2].into(), [10, 244, 2, 2].into());
    let fate = |bench: &Bench| bench.kernel.as_ref().unwrap().verdict(old, new, false);
    assert_eq!((includes(&bench), fate(&bench)), (false, Verdict::Drop));
    bench.core.handle_local(bench.now, local("a", bench.now));
    bench.advance(SECOND);
    assert_eq!((includes(&bench), fate(&bench)), (false, Verdict::Drop));
    bench.core.handle_local(bench.now, local("b", bench.now));
    bench.advance(SECOND);
    assert_eq!((includes(&bench), fate(&bench)), (true, Verdict::Accept));
    assert_eq!(bench.reported(), Vec::<String>::new());
}

#[test]
fn restarted_firewall_withholds_a_lost_block() {
    let mut bench = Bench::enforced();
    let table = bench.kernel.clone();
    let rows = [("web", "b", "n1", "10.244.1.0/24")];
    // A new instance of the process, and a new process.
    for status in [bench.status.clone(), Status::default()] {
        bench.kernel = table.clone();
        bench.state.subnets = state(&rows).subnets;
        bench.core = Core::new(bench.now, "n1", Arc::new(bench.state.clone()), status);
        bench.leader(true);
        bench.advance(SECOND);
        let enforced = bench.status.enforced.clone().unwrap();
        assert_eq!(enforced.scopes, []);
        assert_eq!(bench.pool(), ["10.244.1.0/24"]);
    }
}
