//! A manifest that resolves never fails later: not in the hash, the plan, the names, the create
//! request or the route table.
//!
//! Manifests are generated key by key from valid and almost valid values.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use jaco_actors::ingress::table::{NodeFacts, route_table};
use jaco_policy::{
    network::names::NetworkId,
    scheduler::reconcile::{PassCache, reconcile},
};
use jaco_proto::{
    ErrorCode,
    manifest::{
        self, Resolved, SpecHasher,
        compose::{Project, service_keys},
        env_file,
    },
    v1::{self, NodeStatus, command::Payload},
    yaml,
};
use jaco_state::{State, fsm};
use proptest::{
    prelude::*,
    sample::{Index, subsequence},
    test_runner::{Config, TestRunner},
};

use crate::request::{Anything, project};

/// Values of a service key: valid ones first, then `|` and almost valid ones, each separated by
/// `;`.
fn values(key: &str) -> &'static str {
    match key {
        "attach" | "build" | "cpu_count" | "cpu_percent" | "credential_spec" | "develop"
        | "expose" | "external_links" | "isolation" | "models" | "name" | "pre_start"
        | "provider" | "pull_refresh_after" | "umask" | "use_api_socket" => "x;{a: [b]};[1];5|",
        "annotations" | "storage_opt" => "{a: b};{a: 1, b: };{}|x;{a: [1]}",
        "blkio_config" => {
            "{weight: 300};{device_read_bps: [{path: /a, rate: 1m}]};{}\
             |{weight: 1001};{weight_device: [{path: /a}]};[a]"
        }
        "container_name" => "a;a.b;''|a b;[a];1",
        "cpu_period" | "cpu_quota" | "cpu_rt_period" | "cpu_rt_runtime" => "5;'5';1ms;-1|x;[1]",
        "device_cgroup_rules" => "['c 1:3 mr'];[]|x;[1];[a, a]",
        "group_add" => "[audio, 5];[]|[~];x;[a, a]",
        "links" => "[s0];['s1:db'];[]|[s9];['s0:a b'];s0",
        "mac_address" => "'02:42:ac:11:65:43';''|x;[a]",
        "mem_swappiness" => "0;'100'|101;-1;x",
        "memswap_limit" => "2g;-1;0|-2;x",
        "oom_kill_disable" | "stdin_open" | "tty" => "true;'no';~|1;maybe",
        "oom_score_adj" => "-1000;'1000';0|1001;x",
        "platform" | "runtime" => "linux/amd64;a;''|1;[a]",
        "scale" => "2;'0'|-1;10001;x",
        "volumes_from" => "[s0];['s1:ro'];[]|[s9];['s0:x'];['container:a'];s0",
        "cap_add" | "cap_drop" => "[ALL];[A, B];[];~|ALL;[A, A];[1]",
        "cgroup" => "host;private;''|shared;1",
        "cgroup_parent" | "userns_mode" => "/p;host;''|1;[a]",
        "command" | "entrypoint" => {
            "[a, b];sh -c 'x y';'';[];$HOME;a\\ b|[1];{a: b};\"open 'quote\";[[a]]"
        }
        "cpu_shares" => "512;'512';0;-1|many;1.5",
        "cpus" => "0.5;'1.25';2;0;-1;.5|half;1e400;1.2.3",
        "cpuset" => "'0';0-3;'0,1'|0;[0]",
        "depends_on" => {
            "[s0];[s1];{s0: {condition: service_healthy}};[];\
             {s1: {condition: service_started, required: false}}\
             |[s9];{s0: };{s0: {condition: service_done}};s0"
        }
        "deploy" => {
            "{replicas: 3};{replicas: '0'};{resources: {limits: {cpus: '0.5', memory: 1g}}};\
             {resources: {reservations: {memory: 64M}}};{mode: global, labels: [a=b]};\
             {update_config: {parallelism: 2, delay: 1s, order: start-first}};{}\
             |{replicas: -1};{replicas: 10001};{resources: {limits: {cpu: 1}}};[]"
        }
        "devices" => "[/dev/a];['/dev/a:/dev/b:r'];[{source: /dev/a}];[]|['a:b:c:d'];[''];[~]",
        "dns" | "dns_search" => "1.1.1.1;[a, b];[];''|{a: b};[1]",
        "dns_opt" => "[ndots:2];[]|[a, a];x",
        "domainname" | "hostname" | "stop_signal" | "user" | "working_dir" => {
            "a;'1';/x;''|1;true;[a]"
        }
        "env_file" | "label_file" => "~|.env;[a]",
        "extends" => "~|s0;{service: s0}",
        "profiles" => "~|[a];[]",
        "environment" => "{A: 1, B: , C: x};[A=1, B];{};[];{A: 1.50}|[A=1, A=1];x;{A: [1]}",
        "extra_hosts" => "['a:1.1.1.1'];{a: '::1'};['b=[::1]'];{a: [1.1.1.1]}|[x];['a:'];{a: }",
        "gpus" => "all;[{}];[{count: 2}];[{device_ids: [a]}];[]|some;[{count: 1, device_ids: [a]}]",
        "healthcheck" => {
            "{test: x};{test: [CMD, x], interval: 5s, retries: 3};{disable: true};{};\
             {test: [NONE]};{interval: 0}|{test: {}};{retries: -1};{interval: 5}"
        }
        "configs" => {
            "[c0];[{source: c0, target: /t, mode: 0400, uid: '5'}];[]\
             |[c9];[{target: x}];[c0, c0];[{source: c0, mode: 010000}];c0"
        }
        "secrets" => {
            "[k0];[{source: k0, target: t}];[k0, k1];[]|[k9];[{source: k0, target: ../t}];k0"
        }
        "image" => "nginx;a/b:c;'';reg:5000/a@sha256:0|[a];5",
        "init" | "read_only" => "true;'yes';off;~|1;maybe",
        "ipc" | "pid" | "uts" => "host;service:s0;service:s1;''|service:s9;service:;1",
        "labels" | "sysctls" => "{a: b};[a=b, c];{a: 1, b: };{}|[a=1, a=1];x;[1]",
        "logging" => "{driver: none};{driver: json-file, options: {a: 1}};{}|x;{drivr: x}",
        "mem_limit" | "mem_reservation" | "shm_size" => "64M;'1.5gb';67108864;0|lots;-1;9e99",
        "network_mode" => "none;'';service:s0;service:s1;~|host;service:;service:s9;[none]",
        "networks" => {
            "[n0];[n1, n0];{n0: {priority: 5}, n1: };[default];[_default];{};\
             {n0: {aliases: [a, b], gw_priority: 1}}|[n9];n0;{n0: {aliases: ['a b']}}"
        }
        "pids_limit" => "50;'50';0;-1|1.5;x",
        "ports" => {
            "['9001:80'];['9002:80/udp', 81];[9003-9004:1-2];[{target: 80, published: 9005}];[];\
             ['127.0.0.1:9006:1'];[{target: 80, published: '9007-9009'}];[8000-8010:80]\
             |['80:80'];['1-2:1-3'];['9001:1', '9001:2'];[{target: 1, published: 0x50}];[0]"
        }
        "post_start" | "pre_stop" => {
            "[{command: a}];[{command: [a, b], user: u, environment: [A=b]}];[]\
             |[{user: u}];[a];[{command: a, shell: b}];[{command: a, privileged: true}];a"
        }
        "restart" => "always;'no';on-failure;on-failure:5;unless-stopped;~|never;on-failure:x;[a]",
        "privileged" => "false;'no'|true;'yes';1",
        "pull_policy" => "always;missing;build;never;daily;every_12h;''|hourly;1",
        "security_opt" => "[];['no-new-privileges:true']|[a];x",
        "stop_grace_period" => "10s;1m30s;500ms;0|10;soon;-1s",
        "tmpfs" => "/run;['/tmp:size=1m', /x];[]|{a: b}",
        "ulimits" => "{nofile: 5};{nofile: {soft: 1, hard: 2}};{}|{nofile: {soft: 1}};{nofile: x}",
        "volumes" => {
            "['v0:/d'];['/h:/c:ro'];[/anon];['~/x:/y'];[{type: tmpfs, target: /t}];[];\
             [{type: volume, source: v1, target: /d}];[{type: bind, source: /a, target: /b}];\
             [{type: volume, source: v1, target: /d, volume: {subpath: a}}];\
             [{type: tmpfs, target: /t, tmpfs: {size: 1m, mode: 0700}}]\
             |['./x:/y'];['a:b'];[{type: bnid, source: /a, target: /b}];['v0:/d', 'v0:/d']"
        }
        other => panic!("no values for {other}"),
    }
}

/// Picks one of `values`: an almost valid one if `slip` is 0, once in thirty.
fn pick(values: &str, index: Index, slip: u8) -> String {
    let (right, wrong) = values.split_once('|').unwrap();
    let pool = if slip == 0 && !wrong.is_empty() {
        wrong
    } else {
        right
    };
    let pool: Vec<&str> = pool.split(';').map(str::trim).collect();
    pool[index.index(pool.len())].to_owned()
}

fn mapping(keys: &'static [(&'static str, &'static str)], most: usize) -> BoxedStrategy<String> {
    let picks = prop::collection::vec((any::<Index>(), 0..30_u8), keys.len());
    let some = subsequence(keys, 0..=most.min(keys.len()));
    (some, picks)
        .prop_map(|(keys, picks)| {
            let entries = keys.into_iter().zip(picks);
            let entries = entries.map(|((key, values), (index, slip))| {
                format!("{key}: {}", pick(values, index, slip))
            });
            entries.collect::<Vec<_>>().join(", ")
        })
        .boxed()
}

fn service() -> BoxedStrategy<String> {
    let keys: Vec<_> = service_keys().map(|key| (key, values(key))).collect();
    let keys: &'static [(&str, &str)] = Box::leak(keys.into_boxed_slice());
    mapping(keys, 6)
}

fn compose() -> impl Strategy<Value = String> {
    let top: &[(&str, &str)] = &[
        (
            "networks",
            "{n0: , n1: , default: };{n0: {}, n1: {driver: x}, default: }|{n0: 5}",
        ),
        (
            "volumes",
            "{v0: , v1: {name: x}};{v0: {external: true}};{v0: {driver: a, driver_opts: {b: c}}};{}|{v0: {external: 1, driver: x}}",
        ),
        ("name", "x;5|"),
        ("x-a", "1;{b: [c]}|"),
    ];
    let services = prop::collection::vec(service(), 1..4);
    (services, any::<bool>(), mapping(&top[1..], 3)).prop_map(move |(services, merged, rest)| {
        let mut text = String::new();
        if merged {
            text += "x-base: &base {labels: {l: m}, restart: always}\n";
        }
        text += "services:\n";
        for (index, keys) in services.iter().enumerate() {
            let merge = if merged && index == 0 {
                "<<: *base, "
            } else {
                ""
            };
            text += &format!("  s{index}: {{{merge}{keys}}}\n");
        }
        text += "networks: {n0: , n1: , default: }\nconfigs: {c0: {content: x}}\n";
        text += "secrets: {k0: {file: /k}, k1: {external: true}}\n";
        text + &top_level(&rest)
    })
}

/// Converts the entries of a flow mapping to lines of a block mapping.
fn top_level(entries: &str) -> String {
    let mut depth = 0;
    let mut text = String::new();
    for c in entries.chars() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth -= 1,
            ',' if depth == 0 => {
                text.push('\n');
                continue;
            }
            ' ' if text.ends_with('\n') => continue,
            _ => {}
        }
        text.push(c);
    }
    text
}

fn jaco() -> impl Strategy<Value = String> {
    let route: &[(&str, &str)] = &[
        ("tls", "auto;~|off;AUTO"),
        ("path", "/;/api;/api/;'';/a*|[a]"),
        ("strip_path", "yes;false;~|1"),
        ("upstream", "h2c;http1;~|h2;H2C"),
        ("x-a", "1|"),
    ];
    let service: &[(&str, &str)] = &[
        ("replicas", "0;2;3;~|-1;'2';10001"),
        ("placement", "spread;pack;''|global;hosts;Spread"),
        ("hosts", "[h0, h1, h2, h3];[h0];[]|h0"),
        ("networks", "[n1, default];[_default];[]|[n9]"),
    ];
    let top: &[(&str, &str)] = &[
        ("environment", ".env;~|[a]"),
        ("acme", "on;OFF|maybe"),
        ("acme_email", "a@b.c;''|nope"),
        ("x-a", "1|"),
    ];
    let name = prop::sample::select(&["d", "shop", "my_app", "a.b-c", "2024"][..]);
    let domain = prop::sample::select(&["a.io", "b.io", "c.io", "*.d.io", "A.io"][..]);
    let target = prop::sample::select(&["s0", "s0", "s1", "s9"][..]);
    let routes = prop::collection::vec(
        (domain, target.clone(), 1..90_000_u32, mapping(route, 3)),
        0..3,
    );
    let services = prop::collection::vec((target, mapping(service, 3)), 0..2);
    (name, mapping(top, 2), routes, services).prop_map(|(name, top, routes, services)| {
        let comma = |text: &str| {
            if text.is_empty() {
                String::new()
            } else {
                format!(", {text}")
            }
        };
        let routes = routes.iter().map(|(domain, service, port, rest)| {
            let rest = comma(rest);
            format!("{{domain: \"{domain}\", service: {service}, port: {port}{rest}}}")
        });
        let services = services
            .iter()
            .map(|(service, rest)| format!("{{name: {service}{}}}", comma(rest)));
        let top = top_level(&top);
        format!(
            "deployment: {name}\n{top}\nroutes: [{}]\nservices: [{}]\n",
            routes.collect::<Vec<_>>().join(", "),
            services.collect::<Vec<_>>().join(", "),
        )
    })
}

#[test]
fn resolved_manifest_never_fails_later() {
    let config = Config {
        failure_persistence: None,
        ..Config::with_cases(1500)
    };
    let mut runner = TestRunner::new(config);
    let (accepted, tried) = (Cell::new(0), Cell::new(0));
    runner
        .run(&(jaco(), compose()), |(jaco, compose)| {
            tried.set(tried.get() + 1);
            // An open variable must never make the validation fail where the apply does not.
            let checked = manifest::validate(Some(jaco.as_bytes()), Some(compose.as_bytes()));
            match manifest::resolve(jaco.as_bytes(), compose.as_bytes(), &Anything) {
                Ok(resolved) => {
                    accepted.set(accepted.get() + 1);
                    prop_assert!(checked.is_ok(), "{checked:?}");
                    later_stages(&jaco, &compose, &resolved)?;
                }
                Err(error) => {
                    prop_assert_ne!(error.code, ErrorCode::Internal, "{}", error);
                    prop_assert!(!error.message.is_empty());
                    prop_assert!(
                        error.details.contains_key("line"),
                        "{error}: {:?}",
                        error.details
                    );
                    prop_assert!(
                        error.details.contains_key("file"),
                        "{error}: {:?}",
                        error.details
                    );
                }
            }
            Ok(())
        })
        .unwrap();
    let share = f64::from(accepted.get()) / f64::from(tried.get());
    assert!(
        share > 0.1 && share < 0.9,
        "{share} of the manifests resolve"
    );
}

fn later_stages(jaco: &str, compose: &str, resolved: &Resolved) -> Result<(), TestCaseError> {
    let document = Project::parse(compose.as_bytes()).unwrap();
    let hasher = SpecHasher::new(compose.as_bytes()).unwrap();
    let names: Vec<&str> = resolved
        .services
        .iter()
        .map(|spec| spec.name.as_str())
        .collect();
    prop_assert!(
        names
            .iter()
            .copied()
            .eq(document.services.keys().map(String::as_str))
    );

    for spec in &resolved.services {
        let service = &document.services[&spec.name];
        prop_assert_eq!(spec.networks.is_empty(), service.network_mode.is_some());
        prop_assert!(
            hasher
                .hash(&spec.name, &spec.networks, &spec.files)
                .is_some()
        );
        for network in &spec.networks {
            let id = NetworkId::new(&resolved.deployment, network);
            prop_assert_eq!(id.network(), network.as_str());
            prop_assert!(id.bridge_name().len() <= 15 && id.fallback_bridge_name().len() <= 15);
        }
        let start = project(
            &resolved.deployment,
            &document,
            &spec.name,
            service,
            Some(spec),
        );
        let body = serde_json::to_value(&start.body).unwrap();
        prop_assert!(body["HostConfig"]["NetworkMode"].is_string());
        prop_assert_eq!(start.connects.len(), spec.networks.len().saturating_sub(1));
    }

    // The file has the same meaning after the client has rewritten it.
    let root = yaml::parse(compose.as_bytes()).unwrap().root.unwrap();
    let again = yaml::to_string(&root);
    let after = manifest::resolve(jaco.as_bytes(), again.as_bytes(), &Anything).unwrap();
    prop_assert_eq!(&after, resolved);
    let same = SpecHasher::new(again.as_bytes()).unwrap();
    for spec in &resolved.services {
        let hash = |hasher: &SpecHasher| hasher.hash(&spec.name, &spec.networks, &spec.files);
        prop_assert_eq!(hash(&hasher), hash(&same));
    }
    let folded = env_file::fold(compose.as_bytes(), None).unwrap();
    manifest::resolve(jaco.as_bytes(), &folded.bytes, &Anything).unwrap();
    let variables = BTreeMap::new();
    let interpolated = manifest::interpolate(compose.as_bytes(), "c", &variables).unwrap();
    manifest::validate(None, Some(&interpolated.bytes)).unwrap();

    scheduled(jaco, compose, resolved)
}

/// Commits the revision, has the scheduler plan it, and reads the route table.
fn scheduled(jaco: &str, compose: &str, resolved: &Resolved) -> Result<(), TestCaseError> {
    let mut state = State::default();
    for host in ["h0", "h1", "h2", "h3"] {
        let node = v1::Node {
            hostname: host.to_owned(),
            status: NodeStatus::Ready.into(),
            ..Default::default()
        };
        state.nodes.insert(host.to_owned(), Arc::new(node));
    }
    let apply = v1::DeploymentApply {
        deployment: resolved.deployment.clone(),
        revision: 1,
        jaco_yaml: jaco.as_bytes().to_vec(),
        compose_yaml: compose.as_bytes().to_vec(),
        services: resolved.services.clone(),
        routes: resolved.routes.clone(),
        tcp_routes: resolved.tcp_routes.clone(),
        acme_email: resolved.acme_email.clone(),
        networks: resolved.networks.clone(),
        // The contents of all files, which have no ids yet.
        contents: vec![v1::FileContent {
            deployment: resolved.deployment.clone(),
            ..Default::default()
        }],
    };
    let now = prost_types::Timestamp::default();
    let command = jaco_state::command("local", now, Payload::DeploymentApply(apply));
    fsm::check(&command).unwrap();
    let applied = fsm::apply(&state, 1, &command).unwrap();
    prop_assert!(applied.result.is_ok(), "{:?}", applied.result);
    let mut cache = PassCache::default();
    let mut state = applied.state;
    if let Some(batch) = reconcile(&state, &mut cache, Instant::now(), now).batch {
        fsm::check(&batch).unwrap();
        let applied = fsm::apply(&state, 2, &batch).unwrap();
        prop_assert!(applied.result.is_ok(), "{:?}", applied.result);
        state = applied.state;
    }
    let again = reconcile(&state, &mut cache, Instant::now(), now).batch;
    prop_assert!(again.is_none(), "planned twice: {again:?}");
    let wanted: BTreeSet<&str> = resolved
        .services
        .iter()
        .map(|spec| spec.name.as_str())
        .collect();
    for row in state.replicas_desired.values() {
        prop_assert!(wanted.contains(row.service.as_str()));
    }

    let facts = NodeFacts {
        hostname: "h0".to_owned(),
        https: false,
        mesh: false,
        unreached: Default::default(),
    };
    let table = route_table(&state, &facts, &BTreeSet::new(), None);
    for route in &resolved.routes {
        // Host names are case-insensitive on the wire.
        let found = table.routes(&route.domain.to_ascii_lowercase());
        prop_assert!(
            found.iter().any(|rule| rule.path() == route.path),
            "{route:?}"
        );
    }
    Ok(())
}
