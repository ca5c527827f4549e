//! Every accepted key has an effect, or a warning, or is listed as one that needs neither.

use std::collections::BTreeSet;

use super::*;
use crate::manifest::compose::{Compose, Project};

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

const CASES: [Case; 32] = [
    Case {
        keys: &TOP_LEVEL,
        file: "{@}",
        path: "",
        required: &["services: {}"],
        values: "configs: {a: {file: a}}
                 include: [a.yaml]
                 jobs: {a: {}}
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
                 name: a, external: true",
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
        keys: &CONFIG,
        file: "{services: {}, configs: {a: {@}}}",
        path: "",
        required: &["file: b"],
        values: "content: b
                 environment: B
                 external: true
                 file: c
                 labels: {a: b}
                 name: a
                 template_driver: golang",
    },
    Case {
        keys: &SECRET,
        file: "{services: {}, secrets: {a: {@}}}",
        path: "",
        required: &["file: b"],
        values: "content: b
                 driver: a
                 driver_opts: {a: b}
                 environment: B
                 external: true
                 file: c
                 labels: {a: b}
                 name: a
                 template_driver: golang",
    },
    Case {
        keys: &FILE_REFERENCE,
        file: "{configs: {a: {file: a}, b: {file: b}}, services: {web: {image: x, configs: [{@}]}}}",
        path: "configs.",
        required: &["source: a"],
        values: "gid: 5
                 mode: 0400
                 source: b
                 target: /b
                 uid: '5'",
    },
    Case {
        keys: &SERVICE,
        file: "{networks: {front: {}}, configs: {a: {file: a}}, secrets: {a: {file: a}}, \
               services: {db: {image: x}, web: {@}}}",
        path: "",
        required: &["image: x", "labels: {jaco.io/allow-privileged: 'true'}"],
        values: "annotations: {a: b}
                 attach: false
                 blkio_config: {weight: 100}
                 build: .
                 cap_add: [A]
                 cap_drop: [A]
                 cgroup: host
                 cgroup_parent: a
                 command: a
                 configs: [a]
                 container_name: a
                 cpu_count: 1
                 cpu_percent: 50
                 cpu_period: 1000
                 cpu_quota: 1000
                 cpu_rt_period: 1ms
                 cpu_rt_runtime: 950
                 cpu_shares: 5
                 cpus: 1
                 cpuset: '0'
                 credential_spec: {file: a}
                 depends_on: [db]
                 deploy: {replicas: 2}
                 develop: {watch: []}
                 device_cgroup_rules: ['c 1:3 mr']
                 devices: [/dev/a]
                 dns: 1.1.1.1
                 dns_opt: [a]
                 dns_search: a
                 domainname: a
                 entrypoint: a
                 env_file: a
                 environment: {A: b}
                 expose: ['80']
                 extends: db
                 external_links: [a]
                 extra_hosts: ['a:1.1.1.1']
                 gpus: all
                 group_add: [5]
                 healthcheck: {test: a}
                 hostname: a
                 image: y
                 init: true
                 ipc: host
                 isolation: hyperv
                 label_file: a
                 labels: {a: b}
                 links: ['db:data']
                 logging: {driver: a}
                 mac_address: '02:42:ac:11:65:43'
                 mem_limit: 1g
                 mem_reservation: 1g
                 mem_swappiness: 10
                 memswap_limit: -1
                 models: [a]
                 name: a
                 network_mode: none
                 networks: [front]
                 oom_kill_disable: true
                 oom_score_adj: -5
                 pid: host
                 pids_limit: 5
                 platform: linux/arm64
                 ports: ['9001:80']
                 post_start: [{command: a}]
                 pre_start: [{image: x}]
                 pre_stop: [{command: [a, b]}]
                 privileged: true
                 profiles: [a]
                 provider: {type: a}
                 pull_policy: never
                 pull_refresh_after: 1h
                 read_only: true
                 restart: on-failure
                 runtime: runsc
                 scale: 2
                 secrets: [a]
                 security_opt: [a]
                 shm_size: 1g
                 stdin_open: true
                 stop_grace_period: 1s
                 stop_signal: SIGINT
                 storage_opt: {size: 1g}
                 sysctls: {a: b}
                 tmpfs: /a
                 tty: true
                 ulimits: {a: 1}
                 umask: '022'
                 use_api_socket: true
                 user: a
                 userns_mode: host
                 uts: host
                 volumes: ['a:/b']
                 volumes_from: [db]
                 working_dir: /a",
    },
    Case {
        keys: &DEPLOY,
        file: "{services: {web: {image: x, deploy: {@}}}}",
        path: "deploy.",
        required: &[],
        values: "endpoint_mode: dnsrr
                 labels: {a: b}
                 mode: global
                 placement: {constraints: [node.hostname == a]}
                 replicas: 2
                 resources: {limits: {pids: 5}}
                 restart_policy: {condition: none}
                 rollback_config: {parallelism: 2}
                 update_config: {parallelism: 2}",
    },
    Case {
        keys: &PLACEMENT,
        file: "{services: {web: {image: x, deploy: {placement: {@}}}}}",
        path: "deploy.placement.",
        required: &[],
        values: "constraints: ['node.labels.a != b']
                 max_replicas_per_node: 2
                 preferences: [{spread: node.labels.a}]",
    },
    Case {
        keys: &RESTART_POLICY,
        file: "{services: {web: {image: x, deploy: {restart_policy: {@}}}}}",
        path: "deploy.restart_policy.",
        required: &[],
        values: "condition: none
                 delay: 5s
                 max_attempts: 5
                 window: 10s",
    },
    Case {
        keys: &UPDATE,
        file: "{services: {web: {image: x, deploy: {update_config: {@}}}}}",
        path: "deploy.update_config.",
        required: &[],
        values: ROLLOUT_VALUES,
    },
    Case {
        keys: &ROLLBACK,
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
        keys: &SERVICE_NETWORK,
        file: "{networks: {front: {}, back: {}}, services: {web: {image: x, networks: {front: {@}, back: {}}}}}",
        path: "networks.front.",
        required: &[],
        values: "aliases: [a]
                 driver_opts: {a: b}
                 gw_priority: 1
                 interface_name: a
                 ipv4_address: 10.0.0.1
                 ipv6_address: '::1'
                 link_local_ips: [169.254.0.1]
                 mac_address: '02:42:ac:11:65:43'
                 priority: 1
                 use_service_name_alias: false",
    },
    Case {
        keys: &BLKIO,
        file: "{services: {web: {image: x, blkio_config: {@}}}}",
        path: "blkio_config.",
        required: &[],
        values: "device_read_bps: [{path: /a, rate: 1m}]
                 device_read_iops: [{path: /a, rate: 1}]
                 device_write_bps: [{path: /a, rate: 1m}]
                 device_write_iops: [{path: /a, rate: 1}]
                 weight: 100
                 weight_device: [{path: /a, weight: 100}]",
    },
    Case {
        keys: &BLKIO_WEIGHT,
        file: "{services: {web: {image: x, blkio_config: {weight_device: [{@}]}}}}",
        path: "blkio_config.weight_device.",
        required: &["path: /a", "weight: 1"],
        values: "path: /b
                 weight: 2",
    },
    Case {
        keys: &BLKIO_RATE,
        file: "{services: {web: {image: x, blkio_config: {device_read_bps: [{@}]}}}}",
        path: "blkio_config.device_read_bps.",
        required: &["path: /a", "rate: 1"],
        values: "path: /b
                 rate: 2",
    },
    Case {
        keys: &MOUNT_BIND,
        file: "{services: {web: {image: x, volumes: [{type: bind, source: /a, target: /b, bind: {@}}]}}}",
        path: "volumes.bind.",
        required: &[],
        values: "create_host_path: false
                 propagation: rslave
                 recursive: disabled
                 selinux: z",
    },
    Case {
        keys: &MOUNT_VOLUME,
        file: "{services: {web: {image: x, volumes: [{type: volume, source: a, target: /b, volume: {@}}]}}}",
        path: "volumes.volume.",
        required: &[],
        values: "labels: {a: b}
                 nocopy: true
                 subpath: a",
    },
    Case {
        keys: &MOUNT_TMPFS,
        file: "{services: {web: {image: x, volumes: [{type: tmpfs, target: /b, tmpfs: {@}}]}}}",
        path: "volumes.tmpfs.",
        required: &[],
        values: "mode: 0700
                 size: 1m",
    },
    Case {
        keys: &MOUNT_IMAGE,
        file: "{services: {web: {image: x, volumes: [{type: image, source: a, target: /b, image: {@}}]}}}",
        path: "volumes.image.",
        required: &[],
        values: "subpath: a",
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
        keys: &HOOK,
        file: "{services: {web: {image: x, labels: [jaco.io/allow-privileged=true], post_start: [{@}]}}}",
        path: "post_start.",
        required: &["command: a"],
        values: "command: [a, b]
                 environment: {A: b}
                 privileged: true
                 user: root
                 working_dir: /a",
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

/// Keys of a config or secret of which it has one.
const ORIGINS: [&str; 4] = ["content", "environment", "external", "file"];

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
///
/// A daemon refuses a key of clients.
fn outcome(case: &Case, key: &str, entry: &str) -> Outcome {
    let Case {
        file,
        path,
        required,
        ..
    } = *case;
    let is_of_client = case.keys.effect(key) == Some(Effect::Client);
    let others = required.iter().copied();
    let name = |line: &str| line.split(':').next().unwrap_or_default().to_owned();
    let is_origin = |key: &str| ORIGINS.contains(&key);
    let others =
        others.filter(|line| name(line) != key && !(is_origin(key) && is_origin(&name(line))));
    let others: Vec<&str> = others.collect();
    let (without, before) = read(&file.replace('@', &others.join(", ")));
    let with = [&others[..], &[entry]].concat().join(", ");
    let (with, warnings) = read(&file.replace('@', &with));
    assert!(with.is_some() || is_of_client, "{entry} is refused");
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
        let accepted: BTreeSet<&str> = case.keys.names().collect();
        assert_eq!(given, accepted, "a value for each key of {}", case.file);
        assert!(case.keys.names().is_sorted(), "{}", case.file);
        for (key, entry) in entries {
            let found = outcome(case, key, entry);
            match case.keys.effect(key) {
                Some(Effect::Kept | Effect::Client) => {
                    assert!(found.has_effect, "{path}{key} has no effect");
                }
                Some(Effect::Noted(_)) => {
                    assert!(found.has_warning, "{path}{key} has no warning");
                }
                Some(Effect::Silent) => {
                    let nothing = !found.has_effect && !found.has_warning;
                    assert!(nothing, "{path}{key} is not silent");
                }
                None => panic!("{path}{key} is not listed"),
            }
        }
    }
    // No mapping is left out.
    let covered: BTreeSet<_> = CASES.iter().map(|case| case.keys.path).collect();
    let listed: BTreeSet<_> = ALL.iter().map(|keys| keys.path).collect();
    assert_eq!(covered, listed);
}

/// Keys of a service in the schema of the Compose Specification.
///
/// Source: compose-spec, `schema/compose-spec.json`, 2026-11.
const SPECIFIED: &str = "annotations attach blkio_config build cap_add cap_drop cgroup \
    cgroup_parent command configs container_name cpu_count cpu_percent cpu_period cpu_quota \
    cpu_rt_period cpu_rt_runtime cpu_shares cpus cpuset credential_spec depends_on deploy develop \
    device_cgroup_rules devices dns dns_opt dns_search domainname entrypoint env_file environment \
    expose extends external_links extra_hosts gpus group_add healthcheck hostname image init ipc \
    isolation label_file labels links logging mac_address mem_limit mem_reservation mem_swappiness \
    memswap_limit models network_mode networks oom_kill_disable oom_score_adj pid pids_limit \
    platform ports post_start pre_start pre_stop privileged profiles provider pull_policy \
    pull_refresh_after read_only restart runtime scale secrets security_opt shm_size stdin_open \
    stop_grace_period stop_signal storage_opt sysctls tmpfs tty ulimits umask use_api_socket user \
    userns_mode uts volumes volumes_from working_dir";

#[test]
fn every_key_of_the_specification_is_listed() {
    let missing: Vec<&str> = SPECIFIED
        .split_whitespace()
        .filter(|key| SERVICE.effect(key).is_none())
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}
