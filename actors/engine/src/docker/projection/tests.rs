//! Golden cases of the projection.

use std::time::Duration;

use bollard::models::MountType;
use jaco_proto::{
    manifest::compose::{
        Device, GpuRequest, Mount, MountSource, NetworkMode, NetworkSettings, Recursive, Resources,
        Ulimit, VolumeDeclaration,
    },
    v1::{ReplicaDesired, ServiceSpec},
};

use super::*;
use crate::spec::{FileMount, declares_healthcheck, joined_service, networks, shared_services};

fn row() -> ReplicaDesired {
    ReplicaDesired {
        id: "shop-web-2".into(),
        deployment: "shop".into(),
        service: "web".into(),
        index: 2,
        host: "node-1".into(),
        image: "web:2".into(),
        raft_index: 42,
        spec_hash: Vec::new(),
        previous_host: String::new(),
        files: Vec::new(),
        secrets_version: 0,
    }
}

fn bridges() -> Vec<Attachment> {
    [
        ("jaco_shop_front", "10.244.0.1"),
        ("jaco_shop__default", "10.244.1.1"),
    ]
    .map(|(network, gateway)| Attachment {
        network: network.trim_start_matches("jaco_shop_").into(),
        engine_network: network.into(),
        gateway: gateway.into(),
    })
    .into()
}

fn body(service: &Service, networking: Networking) -> ContainerCreateBody {
    project(&spec_of(service, networking))
}

fn spec_of(service: &Service, networking: Networking) -> ContainerSpec {
    let volumes = [
        ("data", None, false),
        ("named", Some("shared-data"), false),
        ("outside", None, true),
    ]
    .map(|(key, name, external)| {
        let name = name.map(str::to_owned);
        let declared = VolumeDeclaration {
            name,
            external,
            ..Default::default()
        };
        (key.to_owned(), declared)
    })
    .into();
    ContainerSpec {
        cluster_id: "cl-1".into(),
        row: row(),
        service: service.clone(),
        volumes,
        networking,
        shared_containers: [("vpn".to_owned(), "c9".to_owned())].into(),
        home: "/home/jaco".into(),
        files: Vec::new(),
    }
}

fn host(service: &Service) -> HostConfig {
    body(service, Networking::Attached(bridges()))
        .host_config
        .unwrap()
}

fn strings<const N: usize>(items: [&str; N]) -> Vec<String> {
    items.map(str::to_owned).into()
}

#[test]
fn own_labels_override_document_labels() {
    let service = Service {
        labels: [
            ("team".to_owned(), "a".to_owned()),
            ("jaco.replica_id".to_owned(), "forged".to_owned()),
        ]
        .into(),
        ..Default::default()
    };
    let labels = body(&service, Networking::None).labels.unwrap();
    for (key, value) in [
        ("team", "a"),
        ("jaco.cluster_id", "cl-1"),
        ("jaco.deployment", "shop"),
        ("jaco.service", "web"),
        ("jaco.replica_id", "shop-web-2"),
        ("jaco.replica_index", "2"),
        ("jaco.raft_index", "42"),
    ] {
        assert_eq!(labels[key], value, "{key}");
    }
}

#[test]
fn environment_is_sorted_and_missing_value_is_empty() {
    let service = Service {
        environment: [
            ("Z".to_owned(), Some("1=2".to_owned())),
            ("A".to_owned(), None),
        ]
        .into(),
        ..Default::default()
    };
    assert_eq!(
        body(&service, Networking::None).env.unwrap(),
        ["A=", "Z=1=2"]
    );
}

#[test]
fn row_image_overrides_document_image() {
    let service = Service {
        image: Some("doc:1".into()),
        ..Default::default()
    };
    assert_eq!(image(&row(), &service), "web:2");
    let bare = ReplicaDesired {
        image: String::new(),
        ..row()
    };
    assert_eq!(image(&bare, &service), "doc:1");
}

#[test]
fn first_network_is_attached_with_all_aliases() {
    let body = body(&Service::default(), Networking::Attached(bridges()));
    let endpoints = body.networking_config.unwrap().endpoints_config.unwrap();
    assert_eq!(endpoints.len(), 1);
    assert_eq!(
        endpoints["jaco_shop_front"].aliases.clone().unwrap(),
        ["web", "web.shop", "web.shop.jaco.internal"]
    );
    let host = body.host_config.unwrap();
    assert_eq!(host.network_mode.as_deref(), Some("jaco_shop_front"));
    assert_eq!(host.dns.unwrap(), ["10.244.0.1", "10.244.1.1"]);
    assert_eq!(host.restart_policy, None);
    assert_eq!(host.port_bindings, None);
}

#[test]
fn attached_containers_probe_the_mtu_of_paths() {
    let key = "net.ipv4.tcp_mtu_probing";
    let sysctls = |service: &Service, networking| {
        let host = body(service, networking).host_config.unwrap();
        host.sysctls.map(|sysctls| sysctls[key].clone())
    };
    let mut service = Service::default();
    let attached = |service: &Service| sysctls(service, Networking::Attached(bridges()));
    assert_eq!(attached(&service).as_deref(), Some("1"));
    assert_eq!(sysctls(&service, Networking::None), None);
    assert_eq!(sysctls(&service, Networking::Joined("db".into())), None);
    service.sysctls = [(key.to_owned(), "0".to_owned())].into();
    assert_eq!(attached(&service).as_deref(), Some("0"), "by the document");
}

#[test]
fn document_resolvers_replace_bridge_resolvers() {
    let service = Service {
        dns: strings(["9.9.9.9"]),
        dns_search: strings(["corp"]),
        dns_opt: strings(["ndots:1"]),
        ..Default::default()
    };
    let host = host(&service);
    assert_eq!(host.dns.unwrap(), ["9.9.9.9"]);
    assert_eq!(host.dns_search.unwrap(), ["corp"]);
    assert_eq!(host.dns_options.unwrap(), ["ndots:1"]);
}

#[test]
fn network_mode_clears_incompatible_settings() {
    let service = Service {
        hostname: Some("h".into()),
        domainname: Some("d".into()),
        dns: strings(["9.9.9.9"]),
        dns_search: strings(["corp"]),
        dns_opt: strings(["ndots:1"]),
        extra_hosts: strings(["a:1.2.3.4"]),
        ..Default::default()
    };
    for (networking, mode) in [
        (Networking::None, "none"),
        (Networking::Joined("vpn".into()), "container:c9"),
    ] {
        let body = body(&service, networking);
        assert_eq!((body.hostname, body.domainname), (None, None));
        assert_eq!(body.networking_config, None);
        let host = body.host_config.unwrap();
        assert_eq!(host.network_mode.as_deref(), Some(mode));
        assert_eq!((host.dns, host.dns_search), (None, None));
        assert_eq!((host.dns_options, host.extra_hosts), (None, None));
    }
}

#[test]
fn volume_declaration_decides_engine_name() {
    let volume = |source| Mount {
        no_copy: true,
        ..Mount::new(source, "/x")
    };
    for (source, name) in [
        (MountSource::Volume("data".into()), Some("jaco_shop_data")),
        (MountSource::Volume("named".into()), Some("shared-data")),
        (MountSource::Volume("outside".into()), Some("outside")),
        (MountSource::Anonymous, None),
    ] {
        let service = Service {
            volumes: vec![volume(source)],
            ..Default::default()
        };
        let mount = host(&service).mounts.unwrap().remove(0);
        assert_eq!(mount.typ, Some(MountType::VOLUME));
        assert_eq!(mount.source.as_deref(), name);
        assert_eq!(mount.volume_options.unwrap().no_copy, Some(true));
    }
}

#[test]
fn binds_create_host_path_by_default() {
    let bind = |path: &str, create, read_only| {
        let path = path.into();
        Mount {
            read_only,
            propagation: Some("rslave".into()),
            ..Mount::new(MountSource::Bind { path, create }, "/in")
        }
    };
    let service = Service {
        volumes: vec![
            bind("/srv/a", true, true),
            bind("/srv/b", false, false),
            bind("/srv/c:d", true, false),
            bind("~/data", false, false),
            bind("~other/data", false, false),
        ],
        ..Default::default()
    };
    let host = host(&service);
    assert_eq!(host.binds.unwrap(), ["/srv/a:/in:ro,rslave"]);
    let sources: Vec<_> = host
        .mounts
        .unwrap()
        .into_iter()
        .map(|m| m.source.unwrap())
        .collect();
    let expected = ["/srv/b", "/srv/c:d", "/home/jaco/data", "~other/data"];
    assert_eq!(sources, expected);
}

#[test]
fn resources_and_stop_settings_are_passed_on() {
    let service = Service {
        stop_signal: Some("SIGINT".into()),
        stop_grace_period: Some(Duration::from_millis(2_900)),
        resources: Resources {
            nano_cpus: Some(500_000_000),
            memory: Some(64 << 20),
            memory_reservation: Some(32 << 20),
            pids: Some(0),
            cpu_shares: Some(512),
            cpuset: Some("0-1".into()),
            ..Default::default()
        },
        ..Default::default()
    };
    let body = body(&service, Networking::None);
    assert_eq!(body.stop_signal.as_deref(), Some("SIGINT"));
    assert_eq!(body.stop_timeout, Some(2));
    let host = body.host_config.unwrap();
    assert_eq!(host.nano_cpus, Some(500_000_000));
    assert_eq!(host.memory, Some(64 << 20));
    assert_eq!(host.memory_reservation, Some(32 << 20));
    assert_eq!(host.pids_limit, None);
    assert_eq!(host.cpu_shares, Some(512));
    assert_eq!(host.cpuset_cpus.as_deref(), Some("0-1"));
}

#[test]
fn health_check_durations_are_nanoseconds() {
    let service = Service {
        healthcheck: Some(Healthcheck {
            test: strings(["CMD", "true"]),
            interval: Some(Duration::from_secs(3)),
            timeout: None,
            retries: Some(2),
            start_period: Some(Duration::from_millis(5)),
        }),
        ..Default::default()
    };
    let check = body(&service, Networking::None).healthcheck.unwrap();
    assert_eq!(check.test.unwrap(), ["CMD", "true"]);
    assert_eq!((check.interval, check.timeout), (Some(3_000_000_000), None));
    assert_eq!(
        (check.retries, check.start_period),
        (Some(2), Some(5_000_000))
    );
    assert!(declares_healthcheck(&service));
    assert!(!declares_healthcheck(&Service::default()));
}

#[test]
fn devices_limits_and_namespaces_are_passed_on() {
    let service = Service {
        devices: vec![Device {
            source: "/dev/a".into(),
            target: "/dev/b".into(),
            permissions: "r".into(),
        }],
        gpus: vec![GpuRequest {
            count: -1,
            capabilities: strings(["gpu", "compute"]),
            ..Default::default()
        }],
        ulimits: [("nofile".to_owned(), Ulimit { soft: 1, hard: 2 })].into(),
        sysctls: [("net.core.somaxconn".to_owned(), "1".to_owned())].into(),
        cap_add: strings(["NET_ADMIN"]),
        cap_drop: strings(["ALL"]),
        security_opt: strings(["no-new-privileges"]),
        tmpfs: [("/run".to_owned(), "size=1m".to_owned())].into(),
        logging: Some(Logging {
            driver: "json-file".into(),
            options: [("max-size".to_owned(), "1m".to_owned())].into(),
        }),
        cgroup: Some("private".into()),
        pid: Some(Namespace::Engine("host".into())),
        ipc: Some(Namespace::Engine("private".into())),
        uts: Some(Namespace::Engine("host".into())),
        userns_mode: Some("host".into()),
        cgroup_parent: Some("/p".into()),
        init: Some(true),
        shm_size: Some(1 << 20),
        privileged: true,
        read_only: true,
        ..Default::default()
    };
    let host = host(&service);
    assert_eq!(
        host.devices.unwrap()[0].cgroup_permissions.as_deref(),
        Some("r")
    );
    let gpu = host.device_requests.unwrap().remove(0);
    assert_eq!(gpu.count, Some(-1));
    assert_eq!(gpu.capabilities.unwrap(), [["gpu", "compute"]]);
    assert_eq!(host.ulimits.unwrap()[0].hard, Some(2));
    assert_eq!(host.sysctls.unwrap()["net.core.somaxconn"], "1");
    assert_eq!(host.cap_add.unwrap(), ["NET_ADMIN"]);
    assert_eq!(host.cap_drop.unwrap(), ["ALL"]);
    assert_eq!(host.security_opt.unwrap(), ["no-new-privileges"]);
    assert_eq!(host.tmpfs.unwrap()["/run"], "size=1m");
    let log = host.log_config.unwrap();
    assert_eq!(log.typ.as_deref(), Some("json-file"));
    assert_eq!(log.config.unwrap()["max-size"], "1m");
    assert_eq!(
        host.cgroupns_mode,
        Some(HostConfigCgroupnsModeEnum::PRIVATE)
    );
    assert_eq!(host.pid_mode.as_deref(), Some("host"));
    assert_eq!(host.ipc_mode.as_deref(), Some("private"));
    assert_eq!(host.uts_mode.as_deref(), Some("host"));
    assert_eq!(host.userns_mode.as_deref(), Some("host"));
    assert_eq!(host.cgroup_parent.as_deref(), Some("/p"));
    assert_eq!((host.init, host.shm_size), (Some(true), Some(1 << 20)));
    assert_eq!(
        (host.privileged, host.readonly_rootfs),
        (Some(true), Some(true))
    );
}

#[test]
fn revision_networks_override_document_networks() {
    let service = Service {
        networks: strings(["back", "front"]),
        ..Default::default()
    };
    let spec = |networks: Vec<String>| ServiceSpec {
        networks,
        ..Default::default()
    };
    let list = |spec: Option<ServiceSpec>, service: &Service| networks(spec.as_ref(), service);
    assert_eq!(list(None, &service), ["back", "front"]);
    assert_eq!(list(Some(spec(vec![])), &service), ["back", "front"]);
    assert_eq!(
        list(
            Some(spec(strings(["z", "default", "_default", "a"]))),
            &service
        ),
        ["z", "_default", "a"]
    );
    assert_eq!(list(None, &Service::default()), ["_default"]);
    let joined = Service {
        network_mode: Some(NetworkMode::Service("db".into())),
        ..Default::default()
    };
    assert!(list(Some(spec(strings(["a"]))), &joined).is_empty());
    assert_eq!(joined_service(&joined), Some("db"));
}

#[test]
fn shared_namespace_refers_to_lending_container() {
    let borrowed = || Some(Namespace::Service("vpn".into()));
    let service = Service {
        network_mode: Some(NetworkMode::Service("proxy".into())),
        ipc: borrowed(),
        pid: borrowed(),
        uts: borrowed(),
        ..Service::default()
    };
    let lending: Vec<&str> = shared_services(&service).into_iter().collect();
    assert_eq!(lending, ["proxy", "vpn"]);
    let host = host(&service);
    for mode in [host.ipc_mode, host.pid_mode, host.uts_mode] {
        assert_eq!(mode.as_deref(), Some("container:c9"));
    }
}

#[test]
fn container_name_and_aliases_follow_the_own_names() {
    let settings = NetworkSettings {
        aliases: strings(["www", "web", "legacy"]),
        gateway_priority: Some(7),
    };
    let service = Service {
        container_name: Some("legacy".into()),
        mac_address: Some("02:42:ac:11:65:43".into()),
        network_settings: [("front".to_owned(), settings)].into(),
        ..Default::default()
    };
    let body = body(&service, Networking::Attached(bridges()));
    let endpoints = body.networking_config.unwrap().endpoints_config.unwrap();
    let front = &endpoints["jaco_shop_front"];
    let own = ["web", "web.shop", "web.shop.jaco.internal"];
    let expected = [&own[..], &["legacy", "www"]].concat();
    assert_eq!(front.aliases.clone().unwrap(), expected);
    assert_eq!(front.gw_priority, Some(7));
    assert_eq!(front.mac_address.as_deref(), Some("02:42:ac:11:65:43"));
    let other = endpoint_config(&row(), &service, "_default");
    assert_eq!(other.aliases, [&own[..], &["legacy"]].concat());
    assert_eq!(other.gateway_priority, None);
}

#[test]
fn volumes_are_taken_from_the_shared_container() {
    let from = |service: &str, read_only| VolumesFrom {
        service: service.into(),
        read_only,
    };
    let service = Service {
        volumes_from: vec![from("vpn", true), from("vpn", false), from("gone", false)],
        ..Default::default()
    };
    assert_eq!(host(&service).volumes_from.unwrap(), ["c9:ro", "c9:rw"]);
    let shared: Vec<&str> = shared_services(&service).into_iter().collect();
    assert_eq!(shared, ["gone", "vpn"]);
}

#[test]
fn new_volumes_get_the_driver_of_their_declaration() {
    let declared = VolumeDeclaration {
        driver: "local".into(),
        driver_opts: [("type".to_owned(), "nfs".to_owned())].into(),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        ..Default::default()
    };
    let mut spec = ContainerSpec {
        cluster_id: "cl-1".into(),
        row: row(),
        service: Service {
            volumes: vec![Mount::new(MountSource::Volume("data".into()), "/x")],
            ..Default::default()
        },
        volumes: [("data".to_owned(), declared)].into(),
        networking: Networking::None,
        shared_containers: BTreeMap::new(),
        files: Vec::new(),
        home: String::new(),
    };
    let options = |spec: &ContainerSpec| {
        let mut mounts = project(spec).host_config.unwrap().mounts.unwrap();
        mounts.remove(0).volume_options
    };
    let given = options(&spec).unwrap();
    let driver = given.driver_config.unwrap();
    assert_eq!(driver.name.as_deref(), Some("local"));
    assert_eq!(driver.options.unwrap()["type"], "nfs");
    assert_eq!(given.labels.unwrap()["a"], "b");
    spec.volumes.get_mut("data").unwrap().external = true;
    assert_eq!(options(&spec), None);
}

#[test]
fn recursion_and_relabelling_choose_the_syntax_of_binds() {
    let bind = |create, recursive, selinux: Option<&str>| Mount {
        recursive,
        selinux: selinux.map(str::to_owned),
        ..Mount::new(
            MountSource::Bind {
                path: "/h".into(),
                create,
            },
            "/in",
        )
    };
    let of = |mount| {
        let host = host(&Service {
            volumes: vec![mount],
            ..Default::default()
        });
        (host.binds, host.mounts.map(|mut mounts| mounts.remove(0)))
    };
    let (binds, _) = of(bind(false, Recursive::Enabled, Some("Z")));
    assert_eq!(binds.unwrap(), ["/h:/in:Z"]);
    let (binds, mount) = of(bind(true, Recursive::ReadOnly, None));
    assert_eq!(binds, None);
    let options = mount.unwrap().bind_options.unwrap();
    assert_eq!(options.read_only_force_recursive, Some(true));
    assert_eq!(options.create_mountpoint, Some(true));
    let (_, mount) = of(bind(false, Recursive::Enabled, None));
    assert_eq!(mount.unwrap().bind_options, None);
}

#[test]
fn written_files_are_mounted_read_only() {
    let bind = |path: &str, target: &str| {
        let path = path.to_owned();
        let source = MountSource::Bind { path, create: true };
        Mount::new(source, target)
    };
    let service = Service {
        volumes: vec![bind("/src/a.conf", "/a"), bind("/src/other", "/other")],
        ..Default::default()
    };
    let mut spec = spec_of(&service, Networking::None);
    spec.files = vec![
        FileMount {
            source: "/files/1".into(),
            target: "/run/secrets/key".into(),
            replaces: None,
        },
        FileMount {
            source: "/files/2".into(),
            target: "/a".into(),
            replaces: Some("/src/a.conf".into()),
        },
    ];
    let host = project(&spec).host_config.unwrap();
    assert_eq!(host.binds.unwrap(), ["/src/other:/other"]);
    let mounts = host.mounts.unwrap();
    let shown: Vec<_> = mounts
        .iter()
        .map(|mount| {
            let (source, target) = (mount.source.as_deref(), mount.target.as_deref());
            (source.unwrap(), target.unwrap(), mount.read_only.unwrap())
        })
        .collect();
    let expected = [
        ("/files/1", "/run/secrets/key", true),
        ("/files/2", "/a", true),
    ];
    assert_eq!(shown, expected);
}
