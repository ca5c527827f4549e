//! Every accepted key has an effect, or a warning, or is listed as one that needs neither.

use std::collections::BTreeSet;

use super::*;
use crate::manifest::compose::{Compose, Project, SERVICE_KEYS};

/// The keys of a mapping in a file.
struct Case {
    keys: &'static Keys,
    /// The file, with `@` in place of the keys.
    file: &'static str,
    /// Path of the mapping in warnings.
    path: &'static str,
    /// Keys without which the file is invalid, or the others have no effect.
    required: &'static [&'static str],
    /// One line per key, with a value that asks for something.
    values: &'static str,
}

const CASES: [Case; 17] = [
    Case {
        keys: &TOP_LEVEL,
        file: "{@}",
        path: "",
        required: &["services: {}"],
        values: "configs: {a: {file: a}}
                 models: {a: {model: a}}
                 name: a
                 networks: {front: {}}
                 secrets: {a: {file: a}}
                 services: {web: {image: x}}
                 version: '3'
                 volumes: {data: {}}",
    },
    Case {
        keys: &NETWORK,
        file: "{services: {}, networks: {front: {@}}}",
        path: "",
        required: &[],
        values: "attachable: true
                 driver: overlay
                 driver_opts: {a: b}
                 enable_ipv4: false
                 enable_ipv6: true
                 external: true
                 internal: true
                 ipam: {driver: a}
                 labels: {a: b}
                 name: a",
    },
    Case {
        keys: &VOLUME,
        file: "{services: {}, volumes: {data: {@}}}",
        path: "",
        required: &[],
        values: "driver: nfs
                 driver_opts: {a: b}
                 external: true
                 labels: {a: b}
                 name: a",
    },
    Case {
        keys: &DEPLOY,
        file: "{services: {web: {image: x, deploy: {@}}}}",
        path: "deploy.",
        required: &[],
        values: "endpoint_mode: dnsrr
                 labels: {a: b}
                 mode: global
                 placement: {constraints: [a]}
                 replicas: 2
                 resources: {limits: {pids: 5}}
                 restart_policy: {condition: none}
                 rollback_config: {parallelism: 2}
                 update_config: {parallelism: 2}",
    },
    Case {
        keys: &ROLLOUT,
        file: "{services: {web: {image: x, deploy: {update_config: {@}}}}}",
        path: "deploy.update_config.",
        required: &[],
        values: ROLLOUT_VALUES,
    },
    Case {
        keys: &ROLLOUT,
        file: "{services: {web: {image: x, deploy: {rollback_config: {@}}}}}",
        path: "deploy.rollback_config.",
        required: &[],
        values: ROLLOUT_VALUES,
    },
    Case {
        keys: &RESOURCES,
        file: "{services: {web: {image: x, deploy: {resources: {@}}}}}",
        path: "deploy.resources.",
        required: &[],
        values: "limits: {pids: 5}
                 reservations: {memory: 1g}",
    },
    Case {
        keys: &LIMITS,
        file: "{services: {web: {image: x, deploy: {resources: {limits: {@}}}}}}",
        path: "deploy.resources.limits.",
        required: &[],
        values: "cpus: 1
                 memory: 1g
                 pids: 5",
    },
    Case {
        keys: &RESERVATIONS,
        file: "{services: {web: {image: x, deploy: {resources: {reservations: {@}}}}}}",
        path: "deploy.resources.reservations.",
        required: &[],
        values: "cpus: 1
                 devices: [{capabilities: [gpu]}]
                 generic_resources: [{a: b}]
                 memory: 1g
                 pids: 5",
    },
    Case {
        keys: &HEALTHCHECK,
        file: "{services: {web: {image: x, healthcheck: {@}}}}",
        path: "healthcheck.",
        required: &["test: a"],
        values: "disable: true
                 interval: 1s
                 retries: 2
                 start_interval: 1s
                 start_period: 1s
                 test: b
                 timeout: 1s",
    },
    Case {
        keys: &LOGGING,
        file: "{services: {web: {image: x, logging: {@}}}}",
        path: "logging.",
        required: &[],
        values: "driver: a
                 options: {a: b}",
    },
    Case {
        keys: &DEPENDENCY,
        file: "{services: {db: {image: x}, web: {image: x, depends_on: {db: {@}}}}}",
        path: "depends_on.db.",
        required: &["condition: service_started"],
        values: "condition: service_healthy
                 required: false
                 restart: true",
    },
    Case {
        keys: &ULIMIT,
        file: "{services: {web: {image: x, ulimits: {nofile: {@}}}}}",
        path: "ulimits.nofile.",
        required: &["hard: 1", "soft: 1"],
        values: "hard: 2
                 soft: 2",
    },
    Case {
        keys: &DEVICE,
        file: "{services: {web: {image: x, devices: [{@}]}}}",
        path: "devices.",
        required: &["source: /a"],
        values: "permissions: r
                 source: /b
                 target: /c",
    },
    Case {
        keys: &GPU,
        file: "{services: {web: {image: x, gpus: [{@}]}}}",
        path: "gpus.",
        required: &[],
        values: "capabilities: [a]
                 count: 2
                 device_ids: [a]
                 driver: a
                 options: {a: b}",
    },
    Case {
        keys: &MOUNT,
        file: "{services: {web: {image: x, volumes: [{@}]}}}",
        path: "volumes.",
        required: &["type: bind", "source: /a", "target: /b"],
        values: "bind: {create_host_path: false}
                 consistency: cached
                 driver: a
                 image: {subpath: a}
                 read_only: true
                 source: /c
                 target: /c
                 tmpfs: {size: 1m}
                 type: tmpfs
                 volume: {nocopy: true}",
    },
    Case {
        keys: &PORT,
        file: "{services: {web: {image: x, ports: [{@}]}}}",
        path: "ports.",
        required: &["target: 1"],
        values: "app_protocol: http
                 host_ip: 127.0.0.1
                 mode: host
                 name: a
                 protocol: udp
                 published: 9001
                 target: 2",
    },
];

const ROLLOUT_VALUES: &str = "delay: 1s
                              failure_action: continue
                              max_failure_ratio: 1
                              monitor: 1s
                              order: start-first
                              parallelism: 2";

/// Values of the keys of a service.
const SERVICE_VALUES: &str = "build: .
    cap_add: [A]
    cap_drop: [A]
    cgroup: host
    cgroup_parent: a
    command: a
    cpu_shares: 5
    cpus: 1
    cpuset: '0'
    depends_on: [db]
    deploy: {replicas: 2}
    devices: [/dev/a]
    dns: 1.1.1.1
    dns_opt: [a]
    dns_search: a
    domainname: a
    entrypoint: a
    env_file: a
    environment: {A: b}
    extra_hosts: ['a:1.1.1.1']
    gpus: all
    healthcheck: {test: a}
    hostname: a
    image: y
    init: true
    ipc: host
    labels: {a: b}
    logging: {driver: a}
    mem_limit: 1g
    mem_reservation: 1g
    name: a
    network_mode: none
    networks: [front]
    pid: host
    pids_limit: 5
    ports: ['9001:80']
    privileged: true
    pull_policy: never
    read_only: true
    restart: on-failure
    security_opt: [a]
    shm_size: 1g
    stop_grace_period: 1s
    stop_signal: SIGINT
    sysctls: {a: b}
    tmpfs: /a
    ulimits: {a: 1}
    user: a
    userns_mode: host
    uts: host
    volumes: ['a:/b']
    working_dir: /a";

/// Consequences of setting a key.
struct Outcome {
    has_effect: bool,
    has_warning: bool,
}

/// Reads a file; `None` if it is invalid.
fn read(file: &str) -> (Option<Project>, Vec<String>) {
    match Compose::checked(file.as_bytes()) {
        Ok(compose) => {
            let warnings = compose.unused();
            (Some(compose.project), warnings)
        }
        Err(_) => (None, Vec::new()),
    }
}

/// Reads `file` with and without the key of the line `entry`.
fn outcome(file: &str, path: &str, required: &[&str], key: &str, entry: &str) -> Outcome {
    let others = required.iter().copied();
    let others = others.filter(|line| line.split(':').next() != Some(key));
    let others: Vec<&str> = others.collect();
    let (without, before) = read(&file.replace('@', &others.join(", ")));
    let with = [&others[..], &[entry]].concat().join(", ");
    let (with, warnings) = read(&file.replace('@', &with));
    // Only a client reads the files that `env_file` names.
    assert!(with.is_some() || key == "env_file", "{entry} is refused");
    let path = format!("{path}{key}");
    let named = |word: &str| {
        let inside = |inner: &str, outer: &str| {
            let rest = inner.strip_prefix(outer);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        inside(word, &path) || inside(&path, word)
    };
    let new = warnings.iter().filter(|warning| !before.contains(warning));
    Outcome {
        has_effect: with != without,
        has_warning: new
            .flat_map(|warning| warning.split([' ', ',']))
            .any(|word| !word.is_empty() && named(word)),
    }
}

/// Returns key and line of each value.
fn entries(values: &str) -> Vec<(&str, &str)> {
    let lines = values.lines().map(str::trim);
    lines
        .map(|line| (line.split(':').next().unwrap_or_default(), line))
        .collect()
}

#[test]
fn every_accepted_key_has_effect_or_warning() {
    for case in &CASES {
        let path = case.path;
        let entries = entries(case.values);
        let given: BTreeSet<&str> = entries.iter().map(|(key, _)| *key).collect();
        let accepted: BTreeSet<&str> = case.keys.all().collect();
        assert_eq!(given, accepted, "a value for each key of {}", case.file);
        for (key, entry) in entries {
            let found = outcome(case.file, path, case.required, key, entry);
            if case.keys.used.contains(&key) {
                assert!(found.has_effect, "{path}{key} has no effect");
            } else if case.keys.unused.contains(&key) {
                assert!(found.has_warning, "{path}{key} has no warning");
            } else {
                let nothing = !found.has_effect && !found.has_warning;
                assert!(nothing, "{path}{key} is not silent");
            }
        }
    }
    // No mapping is left out.
    let declared = include_str!("../keys.rs").matches(": Keys =").count();
    let covered: BTreeSet<_> = CASES
        .iter()
        .map(|case| format!("{:?}", case.keys))
        .collect();
    assert_eq!(covered.len(), declared);
}

#[test]
fn every_service_key_has_effect_or_warning() {
    let file = "{networks: {front: {}}, services: {db: {image: x}, web: {@}}}";
    let required = ["image: x", "labels: {jaco.io/allow-privileged: 'true'}"];
    let entries = entries(SERVICE_VALUES);
    assert!(entries.iter().map(|(key, _)| *key).eq(SERVICE_KEYS));
    for (key, entry) in entries {
        let found = outcome(file, "", &required, key, entry);
        if SERVICE_UNUSED.contains(&key) {
            assert!(found.has_warning, "{key} has no warning");
            assert!(!found.has_effect, "{key} has an effect");
        } else {
            assert!(found.has_effect, "{key} has no effect");
        }
    }
}
