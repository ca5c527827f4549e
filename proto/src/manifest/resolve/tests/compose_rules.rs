//! Violations of compose file rules.

use super::*;

#[test]
fn invalid_services_are_rejected_with_their_code() {
    for (web, code, words, details) in [
        (
            "mac_adress: x",
            "validation_failed",
            "unsupported compose field",
            "service=web field=mac_adress line=1 file=compose.yaml",
        ),
        (
            "mac_address: x",
            "validation_failed",
            "such as 02:42",
            "service=web field=mac_address value=x",
        ),
        (
            "scale: 2, deploy: {replicas: 3}",
            "validation_failed",
            "keep one of them",
            "field=scale",
        ),
        (
            "container_name: a/b",
            "validation_failed",
            "letters",
            "field=container_name value=a/b",
        ),
        (
            "links: [nope]",
            "validation_failed",
            "not in this file",
            "field=links target_service=nope",
        ),
        (
            "links: ['web:x']",
            "validation_failed",
            "is the service itself",
            "field=links target_service=web",
        ),
        (
            "volumes_from: ['container:x']",
            "validation_failed",
            "name a service of this file",
            "field=volumes_from value=container:x",
        ),
        (
            "mem_swappiness: 101",
            "validation_failed",
            "0 to 100",
            "field=mem_swappiness",
        ),
        (
            "oom_score_adj: -1001",
            "validation_failed",
            "-1000 to 1000",
            "field=oom_score_adj",
        ),
        (
            "blkio_config: {weight: 1001}",
            "validation_failed",
            "0 to 1000",
            "field=blkio_config.weight",
        ),
        (
            "blkio_config: {weight_device: [{path: /a}]}",
            "validation_failed",
            "needs a path and a weight",
            "",
        ),
        (
            "enviroment: {}",
            "validation_failed",
            "did you mean \"environment\"",
            "field=enviroment",
        ),
        (
            "log_driver: json-file, aaa: 1",
            "legacy_compose_field",
            "",
            "field=log_driver modern_equivalent=logging.driver",
        ),
        (
            "net: host",
            "legacy_compose_field",
            "",
            "field=net modern_equivalent=network_mode",
        ),
        (
            "volume_driver: x",
            "legacy_compose_field",
            "",
            "field=volume_driver",
        ),
        (
            "networks: [back]",
            "unknown_network",
            "back",
            "service=web network=back",
        ),
        ("networks: {back: }", "unknown_network", "back", ""),
        ("networks: [default]", "unknown_network", "default", ""),
        (
            "ports: [\"443:443/udp\"]",
            "reserved_port",
            "",
            "service=web port=443 entry=443:443/udp",
        ),
        (
            "ports: [\"127.0.0.1:443:1\"]",
            "reserved_port",
            "",
            "port=443",
        ),
        ("ports: [\"79-81:79-81\"]", "reserved_port", "", "port=80"),
        (
            "ports: [{target: 1, published: 80}]",
            "reserved_port",
            "",
            "port=80 entry=80:1/tcp",
        ),
        (
            "ports: [{target: 1, published: \"79-81\"}]",
            "reserved_port",
            "",
            "port=80",
        ),
        (
            "ports: [\"9001:1\", \"9001:2\"]",
            "port_conflict",
            "twice",
            "port=9001 services=web",
        ),
        (
            "ports: [\"9000:1\"]",
            "port_conflict",
            "other",
            "port=9000 deployment=other",
        ),
        (
            "ports: [\"9001:1\", \"9001:1\"]",
            "validation_failed",
            "repeats",
            "service=web field=ports",
        ),
        ("ports: [\"1-2:1-3\"]", "validation_failed", "unequal", ""),
        ("ports: [\"a:b\"]", "validation_failed", "compose load", ""),
        (
            "ports: [70000]",
            "validation_failed",
            "compose load",
            "field=ports",
        ),
        (
            "ports: [0]",
            "validation_failed",
            "compose load",
            "field=ports",
        ),
        (
            "pull_policy: every_",
            "validation_failed",
            "pull_policy",
            "field=pull_policy value=every_",
        ),
        (
            "pull_policy: 1",
            "validation_failed",
            "pull_policy",
            "field=pull_policy",
        ),
        (
            "privileged: true",
            "validation_failed",
            "jaco.io/allow-privileged",
            "service=web fields=privileged label=jaco.io/allow-privileged",
        ),
        (
            "privileged: \"true\"",
            "validation_failed",
            "",
            "fields=privileged",
        ),
        (
            "privileged: \"Yes\", security_opt: [a]",
            "validation_failed",
            "",
            "fields=privileged,security_opt",
        ),
        (
            "privileged: true, labels: {jaco.io/allow-privileged: true}",
            "validation_failed",
            "",
            "fields=privileged",
        ),
        (
            "privileged: true, labels: {jaco.io/allow-privileged: \"1\"}",
            "validation_failed",
            "",
            "",
        ),
        (
            "privileged: true, labels: [jaco.io/allow-privileged=True]",
            "validation_failed",
            "",
            "",
        ),
        (
            "privileged: true, labels: {jaco.io/allow-privileged: \"true\"}",
            "privilege_denied",
            "ci",
            "service=web fields=privileged identity=ci",
        ),
        (
            "network_mode: host",
            "validation_failed",
            "network_mode",
            "service=web fields=network_mode label=jaco.io/allow-privileged",
        ),
        (
            "network_mode: host, labels: {jaco.io/allow-privileged: \"true\"}",
            "privilege_denied",
            "ci",
            "service=web fields=network_mode identity=ci",
        ),
        (
            "network_mode: container:x",
            "validation_failed",
            "service:<name>",
            "service=web field=network_mode value=container:x",
        ),
        (
            "network_mode: \"service:\"",
            "validation_failed",
            "network_mode",
            "",
        ),
        (
            "network_mode: 1",
            "validation_failed",
            "network_mode",
            "value=1",
        ),
        (
            "network_mode: [none]",
            "validation_failed",
            "network_mode",
            "",
        ),
        (
            "network_mode: \"service:nope\"",
            "validation_failed",
            "",
            "target_service=nope",
        ),
        (
            "network_mode: \"service:web\"",
            "validation_failed",
            "itself",
            "",
        ),
        (
            "pid: \"service:nope\"",
            "validation_failed",
            "",
            "field=pid target_service=nope",
        ),
        (
            "depends_on: [web]",
            "invalid_depends_on",
            "itself",
            "service=web depends_on=web",
        ),
        (
            "depends_on: [bd]",
            "unknown_depends_on_service",
            "did you mean \"db\"",
            "depends_on=bd",
        ),
        (
            "depends_on: {nope: {condition: service_started, required: false}}",
            "unknown_depends_on_service",
            "",
            "",
        ),
        (
            "depends_on: {db: {condition: service_ready}}",
            "unsupported_depends_on_condition",
            "",
            "service=web depends_on=db condition=service_ready",
        ),
        (
            "depends_on: {db: }",
            "validation_failed",
            "needs a condition",
            "",
        ),
        (
            "depends_on: {db: {required: true}}",
            "validation_failed",
            "needs a condition",
            "",
        ),
        (
            "env_file: .env",
            "env_file_unresolved",
            "env_file",
            "service=web",
        ),
    ] {
        assert_refused(apply("", web), code, words, details);
    }
}

#[test]
fn wrong_types_are_reported_with_their_service() {
    for web in [
        "command: {}",
        "command: [1]",
        "command: \"open 'quote\"",
        "entrypoint: [[a]]",
        "environment: [[a]]",
        "environment: {A: [1]}",
        "environment: text",
        "environment: [A=1, A=1]",
        "labels: 1",
        "working_dir: 1",
        "user: 1000",
        "stop_grace_period: 10",
        "stop_grace_period: soon",
        "healthcheck: []",
        "healthcheck: {test: {}}",
        "healthcheck: {intervall: 1s}",
        "healthcheck: {retries: many}",
        "volumes: {}",
        "volumes: [1]",
        "volumes: [\"./rel:/x\"]",
        "volumes: [\"../rel:/x\"]",
        "volumes: [\"data:rel\"]",
        "volumes: [\":/x\"]",
        "volumes: [\"a:/b:c:d\"]",
        "volumes: [{source: a, target: /b}]",
        "volumes: [{type: bind, target: /b}]",
        "volumes: [{type: bind, source: rel, target: /b}]",
        "volumes: [\"a:/b\", \"a:/b\"]",
        "read_only: 1",
        "read_only: perhaps",
        "cap_add: ALL",
        "cap_add: [A, A]",
        "ulimits: {nofile: {soft: 1}}",
        "ulimits: {nofile: lots}",
        "devices: [\"a:b:c:d\"]",
        "devices: [{target: /x}]",
        "gpus: some",
        "gpus: [{count: 1, device_ids: [a]}]",
        "ports: {}",
        "ports: [{published: 9001}]",
        "dns: {}",
        "extra_hosts: [nope]",
        "init: 3",
        "shm_size: big",
        "cgroup: shared",
        "logging: text",
        "logging: {driver: 1}",
        "deploy: []",
        "deploy: {replicas: -1}",
        "deploy: {replicas: 10001}",
        "deploy: {replicas: two}",
        "deploy: {replcas: 2}",
        "deploy: {resources: {limits: {cpus: half}}}",
        "deploy: {update_config: {order: sideways}}",
        "deploy: {update_config: {parallelism: -1}}",
        "cpus: half",
        "mem_limit: lots",
        "pids_limit: 1.5",
        "image: [nginx]",
    ] {
        let compose = format!("services: {{web: {{{web}}}}}");
        let result = resolve(b"deployment: d", compose.as_bytes(), &PLAIN);
        assert_refused(result, "validation_failed", "compose load", "service=web");
    }
}

#[test]
fn invalid_documents_are_rejected() {
    for (text, words) in [
        ("", "compose_yaml is required"),
        ("{}", "empty compose file"),
        ("# nothing", "empty compose file"),
        ("- a", "expected a mapping"),
        ("services: []", "must be a mapping"),
        ("services: {web: }", "must be a mapping"),
        ("services: {\"a b\": {image: x}}", "letters, digits"),
        ("networks: {\"a/b\": }", "letters, digits"),
        ("volumes: {\"a/b\": }", "letters, digits"),
        ("volumes: {a: {external: true, driver: x}}", "external"),
        ("volumes: {a: []}", "must be a mapping"),
        ("include: [a.yaml]", "unsupported compose field"),
        ("service: {}", "did you mean \"services\""),
        ("services: {}\n---\nservices: {}", "second"),
        ("services: {a: {image: x}, a: {image: y}}", "already set"),
        ("services: {a: {image: x, image: y}}", "already set"),
        ("services: [", "compose load"),
        ("a: \u{0}", "compose load"),
    ] {
        let result = resolve(b"deployment: d", text.as_bytes(), &PLAIN);
        assert_refused(result, "validation_failed", words, "");
    }
    for accepted in [
        "services: {}",
        "name: x",
        "x-note: 1\nversion: '3'\nsecrets: {}\nconfigs: {}\nmodels: {}\nservices: {}",
        "volumes: {a: {external: true, name: b, x-c: d}}",
    ] {
        resolve(b"deployment: d", accepted.as_bytes(), &PLAIN).unwrap();
    }
}

#[test]
fn cyclic_dependencies_are_rejected() {
    let circle = |edges: &str| {
        resolve(
            b"deployment: d",
            format!("services: {{{edges}}}").as_bytes(),
            &PLAIN,
        )
    };
    let result = circle("a: {depends_on: [b]}, b: {depends_on: [c]}, c: {depends_on: [b]}, z: {}");
    assert_refused(result, "invalid_depends_on", "b -> c -> b", "service=b");
    let result = circle("a: {network_mode: 'service:b'}, b: {pid: 'service:a'}");
    assert_refused(result, "invalid_depends_on", "a -> b -> a", "service=a");
    let optional = "{condition: service_started, required: false}";
    circle(&format!(
        "a: {{depends_on: [b]}}, b: {{depends_on: {{a: {optional}}}}}"
    ))
    .unwrap();
    circle("a: {depends_on: [b, c]}, b: {depends_on: [c]}, c: {}").unwrap();
}

#[test]
fn long_dependency_chain_is_accepted() {
    let mut text = String::from("services:\n  s0: {image: x}\n");
    for n in 1..20_000 {
        text += &format!("  s{n}: {{image: x, depends_on: [s{}]}}\n", n - 1);
    }
    let resolved = resolve(b"deployment: d", text.as_bytes(), &PLAIN).unwrap();
    assert_eq!(resolved.services.len(), 20_000);
}
