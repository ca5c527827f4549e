use std::{collections::BTreeMap, time::Duration};

use super::*;

/// Parses a service from block YAML.
#[track_caller]
fn service(keys: &str) -> Service {
    service_of(keys, "")
}

#[track_caller]
fn service_of(keys: &str, file: &str) -> Service {
    let keys: String = keys.lines().map(|line| format!("    {line}\n")).collect();
    let text = format!("services:\n  db: {{image: pg}}\n  web:\n{keys}{file}");
    let mut project = Project::parse(text.as_bytes()).unwrap();
    project.services.remove("web").unwrap()
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let pairs = pairs.iter();
    pairs
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect()
}

#[test]
fn commands_are_lists_or_shell_words() {
    let web = service("command: sh -c 'echo \"a b\"'\nentrypoint: [a, \"b c\"]");
    assert_eq!(web.command, Some(strings(&["sh", "-c", "echo \"a b\""])));
    assert_eq!(web.entrypoint, Some(strings(&["a", "b c"])));
    let web = service("command: []\nentrypoint: ''");
    assert_eq!((web.command, web.entrypoint), (None, None));
}

#[test]
fn environment_and_labels_take_both_forms() {
    let expected = BTreeMap::from([
        ("A".to_owned(), Some("1".to_owned())),
        ("B".to_owned(), None),
        ("C".to_owned(), Some("x=y".to_owned())),
        ("D".to_owned(), Some("true".to_owned())),
        ("E".to_owned(), Some(String::new())),
    ]);
    let from_map = service("environment: {A: 1, B: , C: x=y, D: true, E: ''}");
    let from_list = service("environment: [A=1, B, C=x=y, D=true, E=]");
    assert_eq!(*from_map.environment, expected);
    assert_eq!(*from_list.environment, expected);
    assert_eq!(
        service("labels: {a: 1, b: }").labels,
        map(&[("a", "1"), ("b", "")])
    );
    assert_eq!(
        service("labels: [a=1, b]").labels,
        map(&[("a", "1"), ("b", "")])
    );
}

#[test]
fn scalar_settings_are_read_unchanged() {
    let web = service(
        "image: nginx\nworking_dir: /w\nuser: '1000'\nhostname: h\ndomainname: d\nstop_signal: SIGINT\n\
         stop_grace_period: 1m30s\nread_only: true\ncap_add: [A]\ncap_drop: [ALL]\nsysctls: [a.b=1]\n\
         dns: 1.1.1.1\ndns_search: [x]\ndns_opt: [y]\ninit: 'yes'\nshm_size: 64M\nipc: host\npid: host\n\
         uts: host\nuserns_mode: host\ncgroup_parent: /c\ncgroup: private\nrestart: always\nbuild: {context: .}\n\
         name: any\npull_policy: never",
    );
    assert_eq!(web.image.as_deref(), Some("nginx"));
    assert_eq!(web.working_dir.as_deref(), Some("/w"));
    assert_eq!(web.user.as_deref(), Some("1000"));
    assert_eq!(web.hostname.as_deref(), Some("h"));
    assert_eq!(web.domainname.as_deref(), Some("d"));
    assert_eq!(web.stop_signal.as_deref(), Some("SIGINT"));
    assert_eq!(web.stop_grace_period, Some(Duration::from_secs(90)));
    assert!(web.read_only);
    assert_eq!(web.cap_add, ["A"]);
    assert_eq!(web.cap_drop, ["ALL"]);
    assert_eq!(web.sysctls, map(&[("a.b", "1")]));
    assert_eq!(web.dns, ["1.1.1.1"]);
    assert_eq!(web.dns_search, ["x"]);
    assert_eq!(web.dns_opt, ["y"]);
    assert_eq!(web.init, Some(true));
    assert_eq!(web.shm_size, Some(64 << 20));
    assert_eq!(web.ipc, Some(Namespace::Engine("host".into())));
    assert_eq!(web.pid, Some(Namespace::Engine("host".into())));
    assert_eq!(web.uts, Some(Namespace::Engine("host".into())));
    assert_eq!(web.userns_mode.as_deref(), Some("host"));
    assert_eq!(web.cgroup_parent.as_deref(), Some("/c"));
    assert_eq!(web.cgroup.as_deref(), Some("private"));
    assert_eq!(web.pull_policy, PullPolicy::Never);
}

#[test]
fn null_counts_as_absent() {
    let keys: String = service_keys()
        .filter(|key| *key != "env_file")
        .map(|key| format!("{key}:\n"))
        .collect();
    assert_eq!(service(&keys), service("image: "));
}

#[test]
fn health_checks_have_the_engine_form() {
    let web = service(
        "healthcheck:\n  test: curl -f x\n  interval: 10s\n  timeout: 500ms\n  retries: '3'\n  start_period: 1m\n  start_interval: 1s",
    );
    let expected = Healthcheck {
        test: strings(&["CMD-SHELL", "curl -f x"]),
        interval: Some(Duration::from_secs(10)),
        timeout: Some(Duration::from_millis(500)),
        retries: Some(3),
        start_period: Some(Duration::from_secs(60)),
    };
    assert_eq!(web.healthcheck, Some(expected));
    let list = service("healthcheck: {test: [CMD, a]}")
        .healthcheck
        .unwrap();
    assert_eq!(list.test, ["CMD", "a"]);
    assert_eq!(
        service("healthcheck: {test: a, disable: true}").healthcheck,
        None
    );
    assert_eq!(service("healthcheck: {test: [NONE]}").healthcheck, None);
}

#[test]
fn mounts_take_short_and_long_form() {
    let web = service(
        "volumes:\n  - data:/d/../e/:ro,nocopy\n  - /h:/b:rslave,z\n  - ~/x:/c\n  - /anon\n  \
         - {type: volume, source: data, target: /f, read_only: true, volume: {nocopy: true}}\n  \
         - {type: volume, target: /g}\n  \
         - {type: bind, source: /h, target: /i, bind: {create_host_path: false, propagation: shared}}\n  \
         - {type: tmpfs, target: /t}\n  - {type: npipe, source: p, target: /n}",
    );
    let mount = |source, target: &str| Mount::new(source, target);
    let bind = |path: &str, create| MountSource::Bind {
        path: path.to_owned(),
        create,
    };
    let data = || MountSource::Volume("data".to_owned());
    let expected = [
        Mount {
            read_only: true,
            no_copy: true,
            ..mount(data(), "/e")
        },
        Mount {
            propagation: Some("rslave".to_owned()),
            selinux: Some("z".to_owned()),
            ..mount(bind("/h", true), "/b")
        },
        mount(bind("~/x", true), "/c"),
        mount(MountSource::Anonymous, "/anon"),
        Mount {
            read_only: true,
            no_copy: true,
            ..mount(data(), "/f")
        },
        mount(MountSource::Anonymous, "/g"),
        Mount {
            propagation: Some("shared".to_owned()),
            selinux: None,
            ..mount(bind("/h", false), "/i")
        },
        mount(MountSource::Tmpfs, "/t"),
        mount(
            MountSource::Other {
                kind: "npipe".to_owned(),
                source: "p".to_owned(),
            },
            "/n",
        ),
    ];
    assert_eq!(web.volumes, expected);
    let web = service("tmpfs: ['/a:size=1,mode=2:3', /b]");
    assert_eq!(web.tmpfs, map(&[("/a", "size=1,mode=2:3"), ("/b", "")]));
}

#[test]
fn mounts_keep_options_of_their_type() {
    let web = service(
        "volumes:\n  - {type: volume, source: data, target: /a, volume: {subpath: x/y, labels: [a=b]}}\n  \
         - {type: tmpfs, target: /t, tmpfs: {size: 64m, mode: 0700}}\n  \
         - {type: tmpfs, target: /u, tmpfs: {mode: '1777'}}\n  \
         - {type: image, source: assets, target: /i, image: {subpath: css}}\n  \
         - {type: bind, source: /h, target: /b, bind: {recursive: readonly}}",
    );
    let [volume, tmpfs, text, image, bind] = &web.volumes[..] else {
        panic!("{:?}", web.volumes);
    };
    assert_eq!(volume.subpath.as_deref(), Some("x/y"));
    assert_eq!(volume.labels, map(&[("a", "b")]));
    assert_eq!((tmpfs.size, tmpfs.mode), (Some(64 << 20), Some(0o700)));
    assert_eq!((text.size, text.mode), (None, Some(0o1777)));
    assert_eq!(image.subpath.as_deref(), Some("css"));
    assert_eq!(bind.recursive, Recursive::ReadOnly);
    for (mount, words) in [
        (
            "{type: tmpfs, target: /t, tmpfs: {mode: '8'}}",
            "such as 0644",
        ),
        (
            "{type: tmpfs, target: /t, tmpfs: {mode: 010000}}",
            "such as 0644",
        ),
        (
            "{type: bind, source: /a, target: /b, bind: {recursive: no}}",
            "enabled or",
        ),
        (
            "{type: volume, source: a, target: /b, volume: {path: x}}",
            "not a known key",
        ),
    ] {
        let text = format!("services: {{web: {{volumes: [{mount}]}}}}");
        let error = Project::parse(text.as_bytes()).unwrap_err();
        assert!(error.message.contains(words), "{mount}: {}", error.message);
    }
}

#[test]
fn times_of_the_scheduler_take_both_forms() {
    let web = service(
        "cpu_period: 100000\ncpu_quota: '-1'\ncpu_rt_period: 400ms\ncpu_rt_runtime: '95000'",
    );
    let resources = web.resources;
    assert_eq!(resources.cpu_period, Some(100_000));
    assert_eq!(resources.cpu_quota, Some(-1));
    assert_eq!(resources.cpu_rt_period, Some(400_000));
    assert_eq!(resources.cpu_rt_runtime, Some(95_000));
}

#[test]
fn networks_keep_aliases_and_gateway_priority() {
    let text = "networks: {front: , back: }\nservices:\n  web:\n    networks:\n      \
                front: {aliases: [www, api.v1], gw_priority: 5}\n      back:";
    let web = &Project::parse(text.as_bytes()).unwrap().services["web"];
    assert_eq!(web.networks, ["back", "front"]);
    let expected = NetworkSettings {
        aliases: strings(&["www", "api.v1"]),
        gateway_priority: Some(5),
    };
    assert_eq!(
        web.network_settings,
        [("front".to_owned(), expected)].into()
    );
    let text = text.replace("api.v1", "'a b'");
    let error = Project::parse(text.as_bytes()).unwrap_err();
    assert_eq!(error.details["field"], "networks.front.aliases");
}

#[test]
fn one_container_name_has_one_service() {
    let text = "services: {a: {container_name: db}, b: {container_name: DB}}";
    let error = Project::parse(text.as_bytes()).unwrap_err();
    assert_eq!(error.details["service"], "b");
    assert!(error.message.contains("same container_name"));
}

#[test]
fn linked_services_become_dependencies() {
    let text = "services: {db: {}, files: {}, web: {links: ['db:data', files], volumes_from: ['files:ro']}}";
    let web = &Project::parse(text.as_bytes()).unwrap().services["web"];
    assert_eq!(web.links[0].alias, "data");
    assert_eq!(web.links[1].alias, "files");
    assert!(web.volumes_from[0].read_only);
    let names: Vec<&str> = web.depends_on.keys().map(String::as_str).collect();
    assert_eq!(names, ["db", "files"]);
    assert!(
        web.depends_on
            .values()
            .all(|dependency| dependency.required)
    );
    let cycle = "services: {db: {links: [web]}, web: {links: [db]}}";
    let error = Project::parse(cycle.as_bytes()).unwrap_err();
    assert_eq!(error.code, crate::ErrorCode::InvalidDependsOn);
}

#[test]
fn volume_declarations_keep_driver_and_labels() {
    let text = "volumes: {nfs: {driver: local, driver_opts: {type: nfs, o: addr=1}, labels: [a=b]}}\nservices: {}";
    let declared = &Project::parse(text.as_bytes()).unwrap().volumes["nfs"];
    assert_eq!(declared.driver, "local");
    assert_eq!(
        declared.driver_opts,
        map(&[("type", "nfs"), ("o", "addr=1")])
    );
    assert_eq!(declared.labels, map(&[("a", "b")]));
    let wrong = "volumes: {nfs: {driver_opts: 5}}\nservices: {}";
    let error = Project::parse(wrong.as_bytes()).unwrap_err();
    assert!(
        error.message.contains("mapping of texts"),
        "{}",
        error.message
    );
}

#[test]
fn volume_declarations_keep_name_and_external() {
    let text = "volumes: {a: , b: {}, c: {name: x}, d: {external: true}, e: {external: {name: z}}}";
    let volumes = Project::parse(text.as_bytes()).unwrap().volumes;
    let declaration = |name: Option<&str>, external| VolumeDeclaration {
        name: name.map(str::to_owned),
        external,
        ..Default::default()
    };
    assert_eq!(volumes["a"], declaration(None, false));
    assert_eq!(volumes["b"], declaration(None, false));
    assert_eq!(volumes["c"], declaration(Some("x"), false));
    assert_eq!(volumes["d"], declaration(None, true));
    assert_eq!(volumes["e"], declaration(Some("z"), true));
}

#[test]
fn devices_limits_and_accelerators_take_all_forms() {
    let web = service(
        "devices: [/a, '/b:/c', '/d:/e:r', {source: /f, target: /g}]\n\
         ulimits: {nofile: 10, nproc: {soft: 1, hard: '2'}}\ngpus: all",
    );
    let device = |source: &str, target: &str, permissions: &str| Device {
        source: source.to_owned(),
        target: target.to_owned(),
        permissions: permissions.to_owned(),
    };
    let expected = [
        device("/a", "/a", "rwm"),
        device("/b", "/c", "rwm"),
        device("/d", "/e", "r"),
        device("/f", "/g", "rwm"),
    ];
    assert_eq!(web.devices, expected);
    assert_eq!(web.ulimits["nofile"], Ulimit { soft: 10, hard: 10 });
    assert_eq!(web.ulimits["nproc"], Ulimit { soft: 1, hard: 2 });
    assert_eq!(
        (web.gpus[0].count, web.gpus[0].capabilities.as_slice()),
        (-1, strings(&["gpu"]).as_slice())
    );
    let web = service(
        "gpus: [{count: 2, driver: nv, capabilities: [gpu, x], options: {a: 1}}, {device_ids: [z]}, {}]",
    );
    assert_eq!((web.gpus[0].count, web.gpus[0].driver.as_str()), (2, "nv"));
    assert_eq!(web.gpus[0].capabilities, ["gpu", "x"]);
    assert_eq!(
        (web.gpus[1].count, web.gpus[1].device_ids.as_slice()),
        (0, strings(&["z"]).as_slice())
    );
    assert_eq!(web.gpus[2].count, -1);
}

#[test]
fn networks_attach_by_priority_then_name() {
    let file = "networks: {a: , b: , c: , default: }";
    let web = service_of("networks: {c: , b: {priority: 5}, a: , default: }", file);
    assert_eq!(web.networks, ["b", "_default", "a", "c"]);
    assert_eq!(service("networks: []").networks, ["_default"]);
    assert_eq!(service_of("networks: [c, a]", file).networks, ["a", "c"]);
}

#[test]
fn joined_namespace_clears_networks_and_adds_dependency() {
    let web = service(
        "network_mode: service:db\nhostname: h\ndomainname: d\ndns: [x]\ndns_search: [x]\ndns_opt: [x]\n\
         extra_hosts: [a:1]\nports: ['9001:1']",
    );
    assert_eq!(
        web.network_mode,
        Some(NetworkMode::Service("db".to_owned()))
    );
    assert!(web.networks.is_empty() && web.hostname.is_none() && web.domainname.is_none());
    assert!(web.dns.is_empty() && web.dns_search.is_empty() && web.dns_opt.is_empty());
    assert!(web.extra_hosts.is_empty());
    let started = Dependency {
        condition: Condition::ServiceStarted,
        required: true,
    };
    assert_eq!(web.depends_on["db"], started);
    let healthy = service("ipc: service:db\ndepends_on: {db: {condition: service_healthy}}");
    assert_eq!(
        healthy.depends_on["db"].condition,
        Condition::ServiceHealthy
    );
    for field in ["ipc", "pid", "uts"] {
        let web = service(&format!("{field}: service:db"));
        let joined =
            [&web.ipc, &web.pid, &web.uts].map(|n| n.as_ref().and_then(Namespace::service));
        assert_eq!(joined.into_iter().flatten().collect::<Vec<_>>(), ["db"]);
        assert_eq!(web.depends_on["db"], started, "{field}");
        assert_eq!(web.networks, ["_default"], "{field}");
    }
    assert_eq!(service("network_mode: ''").networks, ["_default"]);
}

#[test]
fn extra_hosts_are_normalised_and_sorted() {
    let web = service("extra_hosts: ['z=[::1]', 'b:10.0.0.1', 'a=::2']");
    assert_eq!(web.extra_hosts, ["a:::2", "b:10.0.0.1", "z:::1"]);
    let web = service("extra_hosts: {b: 10.0.0.1, a: [1.1.1.1, 2.2.2.2]}");
    assert_eq!(web.extra_hosts, ["a:1.1.1.1", "a:2.2.2.2", "b:10.0.0.1"]);
}

#[test]
fn deploy_resources_replace_flat_keys_as_block() {
    let reserved = service(
        "deploy: {resources: {reservations: {memory: 64M}}}\nmem_limit: 1g\ncpus: 2\ncpuset: '0'",
    );
    assert_eq!(reserved.resources.memory_reservation, Some(64 << 20));
    assert_eq!(reserved.resources.memory, None);
    assert_eq!(reserved.resources.nano_cpus, None);
    assert_eq!(reserved.resources.cpuset.as_deref(), Some("0"));
    let flat = service(
        "mem_limit: 1g\ncpus: '0.5'\npids_limit: -1\ncpu_shares: 5\nmem_reservation: 1m\ndeploy: {resources: {}}",
    );
    assert_eq!(flat.resources.memory, Some(1 << 30));
    assert_eq!(flat.resources.nano_cpus, Some(500_000_000));
    assert_eq!(flat.resources.pids, None);
    assert_eq!(flat.resources.cpu_shares, Some(5));
    let limits =
        service("deploy: {resources: {limits: {cpus: 0.25, memory: 10M, pids: 7}}}\npids_limit: 9");
    assert_eq!(limits.resources.nano_cpus, Some(250_000_000));
    assert_eq!(limits.resources.pids, Some(7));
}

#[test]
fn deploy_keeps_replicas_and_rollout_settings() {
    let web = service(
        "deploy: {replicas: '3', mode: replicated, labels: [a], placement: {}, restart_policy: {}, \
         update_config: {parallelism: 2, delay: 5s, monitor: 1m, order: start-first, failure_action: rollback}}",
    );
    assert_eq!(web.deploy.replicas, Some(3));
    let expected = UpdateConfig {
        parallelism: Some(2),
        delay: Some(Duration::from_secs(5)),
        monitor: Some(Duration::from_secs(60)),
        order: Some(UpdateOrder::StartFirst),
        failure_action: Some(FailureAction::Rollback),
    };
    assert_eq!(web.deploy.update, expected);
}

#[test]
fn logging_and_dependencies_are_read() {
    let web = service("logging: {driver: json-file, options: {max-file: 3}}\ndepends_on: [db]");
    let logging = web.logging.unwrap();
    assert_eq!(logging.driver, "json-file");
    assert_eq!(logging.options, map(&[("max-file", "3")]));
    assert!(web.depends_on["db"].required);
    let web =
        service("depends_on: {db: {condition: service_healthy, required: false, restart: true}}");
    let expected = Dependency {
        condition: Condition::ServiceHealthy,
        required: false,
    };
    assert_eq!(web.depends_on["db"], expected);
}

#[test]
fn restart_policies_are_read() {
    let policy = |condition, attempts| {
        Some(Restart {
            condition,
            attempts,
            delay: None,
        })
    };
    let (always, failed, never) = (
        RestartCondition::Always,
        RestartCondition::OnFailure,
        RestartCondition::Never,
    );
    for (text, expected) in [
        ("read_only: true", None),
        ("restart:", None),
        ("restart: always", policy(always, None)),
        ("restart: unless-stopped", policy(always, None)),
        ("restart: no", policy(never, None)),
        ("restart: 'no'", policy(never, None)),
        ("restart: on-failure", policy(failed, None)),
        ("restart: on-failure:5", policy(failed, Some(5))),
        ("restart: on-failure:0", policy(failed, None)),
        ("deploy: {restart_policy: {}}", policy(always, None)),
        (
            "restart: always\ndeploy: {restart_policy: {condition: none}}",
            policy(never, None),
        ),
        (
            "deploy: {restart_policy: {condition: on-failure, max_attempts: 2, window: 5s}}",
            policy(failed, Some(2)),
        ),
        (
            "deploy: {restart_policy: {condition: any, max_attempts: 0, delay: 1m30s}}",
            Some(Restart {
                delay: Some(Duration::from_secs(90)),
                ..Restart::default()
            }),
        ),
    ] {
        assert_eq!(service(text).restart, expected, "{text}");
    }
}

#[test]
fn awaited_service_may_complete() {
    let restart_of = |job: &str| {
        let text = format!(
            "services:\n  web:\n    image: x\n    depends_on: {{job: {{condition: \
             service_completed_successfully}}}}\n  job: {{{job}}}\n"
        );
        let project = Project::parse(text.as_bytes()).unwrap();
        let restart = project.services["job"].restart.clone();
        restart.map(|policy| policy.condition)
    };
    let (always, failed) = (RestartCondition::Always, RestartCondition::OnFailure);
    assert_eq!(restart_of("image: x"), Some(failed));
    assert_eq!(restart_of("image: x, restart: always"), Some(always));
}

#[test]
fn commands_around_a_container_are_read() {
    let web = service(
        "post_start:\n- command: a 'b c'\n- {command: [d], user: root, working_dir: /e, \
         environment: [F=g]}\npre_stop: [{command: [h]}]",
    );
    let hook = |words: &[&str]| Hook {
        command: strings(words),
        ..Hook::default()
    };
    let second = Hook {
        user: Some("root".to_owned()),
        working_dir: Some("/e".to_owned()),
        environment: BTreeMap::from([("F".to_owned(), Some("g".to_owned()))]).into(),
        ..hook(&["d"])
    };
    assert_eq!(web.post_start, [hook(&["a", "b c"]), second]);
    assert_eq!(web.pre_stop, [hook(&["h"])]);
}

#[test]
fn unresolved_variables_are_literal_in_the_daemon() {
    let web = service("command: echo $HOME\nenvironment: {A: '${B}'}");
    assert_eq!(web.command, Some(strings(&["echo", "$HOME"])));
    assert_eq!(web.environment["A"].as_deref(), Some("${B}"));
}

#[test]
fn realistic_file_is_read_completely() {
    let text = r#"
version: "3.9"

x-logging: &logging
  driver: json-file
  options: { max-size: 10m, max-file: 3 }

x-app: &app
  image: registry.example.com/shop/app:1.4.2
  environment: &env
    DATABASE_URL: postgres://shop:secret@db:5432/shop
    WORKERS: 4
    DEBUG: "false"
  logging: *logging
  restart: unless-stopped
  networks: [back]

services:
  web:
    <<: *app
    command: ["gunicorn", "-b", "0.0.0.0:8000", "shop.wsgi"]
    environment:
      <<: *env
      WORKERS: 8
    depends_on:
      db: { condition: service_healthy }
      cache:
        condition: service_started
    networks: { front: { aliases: [shop] }, back: }
    healthcheck:
      test: ["CMD", "curl", "-f", "http://localhost:8000/health"]
      interval: 30s
      start_period: 1m
    deploy:
      replicas: 3
      resources:
        limits: { cpus: "0.50", memory: 512M }
  worker:
    <<: *app
    command: celery -A shop worker --loglevel=info
    stop_grace_period: 2m
    depends_on: [cache]
  db:
    image: postgres:16
    volumes:
      - pgdata:/var/lib/postgresql/data
      - type: bind
        source: /srv/backup
        target: /backup
        read_only: true
    ports: ["5432:5432"]
    shm_size: 256mb
    healthcheck: { test: pg_isready -U shop, retries: 5 }
    networks: [back]
  cache:
    image: redis:7
    command: >
      redis-server
      --save ""
    networks: [back]
volumes:
  pgdata: {}
networks:
  front:
  back:
    internal: true
"#;
    let project = Project::parse(text.as_bytes()).unwrap();
    let web = &project.services["web"];
    assert_eq!(web.environment["WORKERS"].as_deref(), Some("8"));
    assert_eq!(web.environment["DEBUG"].as_deref(), Some("false"));
    assert_eq!(web.networks, ["back", "front"]);
    assert_eq!(web.depends_on["db"].condition, Condition::ServiceHealthy);
    assert_eq!(web.resources.nano_cpus, Some(500_000_000));
    assert_eq!(web.deploy.replicas, Some(3));
    let worker = &project.services["worker"];
    assert_eq!(worker.environment["WORKERS"].as_deref(), Some("4"));
    assert_eq!(worker.logging, web.logging);
    assert_eq!(worker.command.as_ref().map(Vec::len), Some(5));
    let db = &project.services["db"];
    assert_eq!(
        db.volumes[0].source,
        MountSource::Volume("pgdata".to_owned())
    );
    let listener = db.ports[0].listener.map(|listener| listener.to_string());
    assert_eq!(listener.as_deref(), Some("5432"));
    let cache = &project.services["cache"];
    assert_eq!(
        cache.command,
        Some(strings(&["redis-server", "--save", ""]))
    );
    let names: Vec<_> = project.networks.keys().collect();
    assert_eq!(names, ["back", "front"]);
}
