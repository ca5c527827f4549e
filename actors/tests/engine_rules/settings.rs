//! Settings of a container: one service per rule, all of them in one deployment.

use super::fixture::{EngineFixture, FOREVER, is_podman};

/// Method of observing a rule's effect.
enum Seen {
    /// Output of a script in the container.
    In(&'static str),
    /// A field of `docker inspect`.
    Of(&'static str),
}
use Seen::{In, Of};

struct Rule {
    service: &'static str,
    says: &'static str,
    seen: &'static [(Seen, &'static str)],
}

const RULES: &[Rule] = &[
    Rule {
        service: "ulimits",
        says: "ulimits: {nofile: 512, nproc: 20000, core: {soft: 512, hard: 1024}}",
        seen: &[(In("ulimit -n; ulimit -Sc; ulimit -Hc"), "512\n1\n2")],
    },
    Rule {
        service: "sysctls",
        says: "sysctls: {net.core.somaxconn: 77}",
        seen: &[(In("busybox cat /proc/sys/net/core/somaxconn"), "77")],
    },
    Rule {
        service: "devices",
        says: "devices: [\"/dev/zero:/dev/mine:r\"]",
        seen: &[(In("busybox head -c 3 /dev/mine | busybox wc -c"), "3")],
    },
    Rule {
        service: "caps",
        says: "cap_drop: [ALL]\ncap_add: [NET_BIND_SERVICE]",
        seen: &[(
            In("busybox grep CapBnd /proc/1/status"),
            "CapBnd:\t0000000000000400",
        )],
    },
    Rule {
        service: "init",
        says: "init: true",
        seen: &[(
            In("busybox cat /proc/1/cmdline | busybox grep -c init"),
            "1",
        )],
    },
    Rule {
        service: "shm",
        says: "shm_size: 8m",
        seen: &[(
            In("busybox df -k /dev/shm | busybox awk 'NR==2 {print $2}'"),
            "8192",
        )],
    },
    Rule {
        service: "names",
        says: "hostname: h1\ndomainname: example.org\nextra_hosts: [\"there:10.9.8.7\"]",
        seen: &[
            (In("busybox hostname"), "h1"),
            (
                In("busybox awk '/there/ {print $1}' /etc/hosts"),
                "10.9.8.7",
            ),
            (Of("{{.Config.Domainname}}"), "example.org"),
        ],
    },
    Rule {
        service: "dns",
        says: "dns: [192.0.2.7]\ndns_search: [example.net]\ndns_opt: [\"ndots:3\"]",
        seen: &[
            (Of("{{.HostConfig.Dns}}"), "[192.0.2.7]"),
            (
                In(
                    "busybox grep -c -e '^search example.net' -e '^options.*ndots:3' /etc/resolv.conf",
                ),
                "2",
            ),
        ],
    },
    Rule {
        service: "process",
        says: "working_dir: /bin\nuser: \"7:8\"\nenvironment: {B: two, A: 1, C: null}",
        seen: &[
            (In("pwd; busybox id -u; busybox id -g"), "/bin\n7\n8"),
            (In("echo \"$A $B [${C-unset}]\""), "1 two []"),
        ],
    },
    Rule {
        service: "readonly",
        says: "read_only: true\ntmpfs: [\"/scratch:size=64k,mode=700\"]",
        seen: &[
            (In("echo x 2>/dev/null >/file || echo no"), "no"),
            (In("echo x >/scratch/file && echo yes"), "yes"),
            (
                In("busybox df -k /scratch | busybox awk 'NR==2 {print $2}'"),
                "64",
            ),
        ],
    },
    Rule {
        service: "limits",
        says: "mem_limit: 32m\nmem_reservation: 16m\ncpus: 0.5\npids_limit: 50\ncpu_shares: 512\ncpuset: \"0\"",
        seen: &[
            (Of("{{.HostConfig.Memory}}"), "33554432"),
            (Of("{{.HostConfig.MemoryReservation}}"), "16777216"),
            (Of("{{.HostConfig.NanoCpus}}"), "500000000"),
            (Of("{{.HostConfig.PidsLimit}}"), "50"),
            (Of("{{.HostConfig.CpuShares}}"), "512"),
            (Of("{{.HostConfig.CpusetCpus}}"), "0"),
        ],
    },
    Rule {
        service: "deploylimits",
        says: "mem_limit: 99m\ndeploy: {resources: {limits: {memory: 32m, pids: 50}}}",
        seen: &[
            (Of("{{.HostConfig.Memory}}"), "33554432"),
            (Of("{{.HostConfig.PidsLimit}}"), "50"),
        ],
    },
    Rule {
        service: "stopping",
        says: "stop_signal: SIGUSR1\nstop_grace_period: 3500ms",
        seen: &[(Of("{{.Config.StopTimeout}}"), "3")],
    },
    Rule {
        service: "logging",
        says: "logging: {driver: none}",
        seen: &[(Of("{{.HostConfig.LogConfig.Type}}"), "none")],
    },
    Rule {
        service: "labels",
        says: "labels: {mine: kept, jaco.service: stolen}",
        seen: &[
            (Of("{{index .Config.Labels \"mine\"}}"), "kept"),
            (Of("{{index .Config.Labels \"jaco.service\"}}"), "labels"),
            (Of("{{index .Config.Labels \"jaco.replica_index\"}}"), "0"),
        ],
    },
    Rule {
        service: "loopback",
        says: "network_mode: none\nhostname: cleared",
        seen: &[
            (In("busybox ls /sys/class/net"), "lo"),
            (In("[ $(busybox hostname) != cleared ] && echo yes"), "yes"),
        ],
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_have_the_documents_settings() {
    let fixture = EngineFixture::new("settings").await;
    let services: String = RULES
        .iter()
        .map(|rule| fixture.service(rule.service, FOREVER, rule.says))
        .collect();
    let rows: Vec<(&str, &[&str])> = RULES
        .iter()
        .map(|rule| (rule.service, [].as_slice()))
        .collect();
    fixture
        .apply(&format!("services:\n{services}"), &rows)
        .await;
    let mut broken = Vec::new();
    for Rule { service, seen, .. } in RULES {
        fixture.running(service).await;
        for (how, expected) in *seen {
            let (how, found) = match how {
                In(script) => (script, fixture.exec(service, script)),
                Of(template) => (template, fixture.inspect(service, template)),
            };
            if found != *expected && !dropped_by_podman(how) {
                broken.push(format!("{service}: {how}: {found:?}, not {expected:?}"));
            }
        }
    }
    assert!(broken.is_empty(), "{}", broken.join("\n"));
    fixture.close().await;
}

/// Settings that Podman 4.3 drops; see docs/podman.md.
fn dropped_by_podman(seen: &str) -> bool {
    is_podman() && seen.contains("Domainname")
}
