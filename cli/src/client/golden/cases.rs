//! Every command, with the state of the fake daemon it is called on.

use super::{
    Script,
    setup::{
        alone, breached, converging, diverged, empty, failing, full, pending, refusing, upstream,
        watched,
    },
};

/// One command line.
pub(super) struct Case {
    /// Base name of its files: the command, then what distinguishes the case.
    pub(super) name: &'static str,
    /// The arguments; `DIR` is a directory with manifests.
    pub(super) line: &'static str,
    /// Prepares the daemon.
    pub(super) setup: fn(&mut Script),
    /// Expected exit status.
    pub(super) status: u8,
}

const fn case(name: &'static str, line: &'static str, setup: fn(&mut Script)) -> Case {
    Case {
        name,
        line,
        setup,
        status: 0,
    }
}

const fn fails(name: &'static str, line: &'static str, setup: fn(&mut Script)) -> Case {
    Case {
        status: 1,
        ..case(name, line, setup)
    }
}

pub(super) const CASES: &[Case] = &[
    case(
        "cluster-init",
        "cluster init --name c --no-systemd-enable",
        full,
    ),
    case(
        "cluster-init.quiet",
        "cluster init --no-systemd-enable -q",
        full,
    ),
    fails(
        "cluster-init.error",
        "cluster init --no-systemd-enable",
        refusing,
    ),
    case("cluster-status", "cluster status", full),
    case("cluster-status.empty", "cluster status", empty),
    fails("cluster-status.error", "cluster status", refusing),
    case("cluster-digest", "cluster digest", full),
    fails("cluster-digest.diverged", "cluster digest", diverged),
    fails("cluster-digest.alone", "cluster digest", alone),
    fails("cluster-digest.error", "cluster digest", refusing),
    case("cluster-config-list", "cluster config list", full),
    fails("cluster-config-list.error", "cluster config list", refusing),
    case(
        "cluster-config-get",
        "cluster config get ingress.limits",
        full,
    ),
    fails("cluster-config-get.error", "cluster config get gone", full),
    case(
        "cluster-config-set",
        "cluster config set ingress.limits off",
        full,
    ),
    case(
        "cluster-config-set.quiet",
        "cluster config set ingress.limits off -q",
        full,
    ),
    case(
        "cluster-config-unset",
        "cluster config unset ingress.limits",
        full,
    ),
    case(
        "cluster-secrets-key-export",
        "cluster secrets-key export --out DIR/out.key",
        full,
    ),
    case(
        "cluster-secrets-key-import",
        "cluster secrets-key import DIR/secrets.key",
        full,
    ),
    fails(
        "cluster-secrets-key-import.error",
        "cluster secrets-key import DIR/jaco.yaml",
        full,
    ),
    case(
        "cluster-secrets-key-rotate",
        "cluster secrets-key rotate",
        full,
    ),
    case("net", "net", full),
    case("net.empty", "net", empty),
    case("net.breached", "net two", breached),
    fails("net.error", "net", refusing),
    case("node-list", "node list", full),
    case("node-list.empty", "node list", empty),
    fails("node-list.error", "node list --consistent", refusing),
    case("node-issue-join-token", "node issue-join-token", full),
    case(
        "node-issue-join-token.show-ca",
        "node issue-join-token --show-ca -q",
        full,
    ),
    case(
        "node-issue-join-token.empty",
        "node issue-join-token",
        empty,
    ),
    case(
        "node-issue-join-token.upstream",
        "node issue-join-token",
        upstream,
    ),
    fails(
        "node-issue-join-token.error",
        "node issue-join-token",
        refusing,
    ),
    case(
        "node-join",
        "node join --peer 10.0.0.1:7000 --token t0k3n --no-systemd-enable",
        full,
    ),
    case(
        "node-join.quiet",
        "node join --peer 10.0.0.1:7000 --token t0k3n --no-systemd-enable -q",
        full,
    ),
    fails(
        "node-join.error",
        "node join --peer 10.0.0.1:7000 --token t0k3n --no-systemd-enable",
        refusing,
    ),
    fails("node-join.usage-error", "node join --token t0k3n", full),
    case("node-remove", "node remove b", full),
    case("node-remove.forced", "node remove b --force", full),
    case("node-remove.quiet", "node remove b -q", full),
    fails("node-remove.error", "node remove b", refusing),
    case("apply", "apply DIR/jaco.yaml --detach", full),
    case("apply.dry-run", "apply DIR/jaco.yaml --dry-run", full),
    case(
        "apply.dry-run-empty",
        "apply DIR/jaco.yaml --dry-run",
        empty,
    ),
    case("apply.quiet", "apply DIR/jaco.yaml --detach -q", full),
    case("apply-wait", "apply DIR/jaco.yaml", converging),
    case("apply-wait.quiet", "apply DIR/jaco.yaml -q", converging),
    fails("apply-wait.failed", "apply DIR/jaco.yaml", failing),
    fails("apply-wait.pending", "apply DIR/jaco.yaml", pending),
    fails("apply.error", "apply DIR/jaco.yaml", refusing),
    fails("apply.file-error", "apply DIR/gone.yaml", full),
    fails(
        "apply.compose-error",
        "apply DIR/jaco.yaml --compose DIR/gone.yml",
        full,
    ),
    case("status", "status", full),
    case("status.empty", "status", empty),
    case("status.breached", "status", breached),
    case("status.watch", "status app -w", watched),
    fails("status.error", "status", refusing),
    case("get-deployments", "get deployments", full),
    case("get-deployments.empty", "get deployments", empty),
    fails("get-deployments.error", "get deployments", refusing),
    case("get-deployment", "get deployment app", full),
    case("get-deployment.bare", "get deployment db", full),
    fails("get-deployment.error", "get deployment gone", full),
    case("get-replicas", "get replicas", full),
    case(
        "get-replicas.empty",
        "get replicas --deployment gone",
        empty,
    ),
    fails("get-replicas.error", "get replicas", refusing),
    case("get-replica", "get replica app-web-1", full),
    case("get-replica.bare", "get replica app-web-0", full),
    fails("get-replica.error", "get replica gone", full),
    case("get-routes", "get routes", full),
    case("get-routes.empty", "get routes --domain gone.example", full),
    fails("get-routes.error", "get routes", refusing),
    case("get-route", "get route shop.example", full),
    fails("get-route.error", "get route gone.example", refusing),
    case("logs", "logs app/web", full),
    case("logs.quiet", "logs app/web -q", full),
    case("logs.empty", "logs app/web -f", empty),
    fails("logs.error", "logs app/web", refusing),
    case("rollback", "rollback app", full),
    case("rollback.quiet", "rollback app -q", full),
    fails("rollback.error", "rollback app", refusing),
    case("delete", "delete app", full),
    case("delete.quiet", "delete app -q", full),
    fails("delete.error", "delete app", refusing),
    case(
        "token-issue",
        "token issue --name ci --allow-privileged",
        full,
    ),
    case("token-issue.quiet", "token issue --name ci -q", full),
    fails("token-issue.error", "token issue --name ci", refusing),
    case("token-revoke", "token revoke ci", full),
    case("token-revoke.quiet", "token revoke ci -q", full),
    fails("token-revoke.error", "token revoke ci", refusing),
    case("token-list", "token list", full),
    case("token-list.empty", "token list", empty),
    fails("token-list.error", "token list", refusing),
    case("registry-logout", "registry logout GHCR.io/Own", full),
    case("registry-logout.quiet", "registry logout ghcr.io -q", full),
    fails("registry-logout.error", "registry logout ghcr.io", refusing),
    case("registry-list", "registry list", full),
    case("registry-list.empty", "registry list", empty),
    fails("registry-list.error", "registry list", refusing),
    case("audit", "audit", full),
    case("audit.empty", "audit --type apply", empty),
    case("audit-follow", "audit -f", full),
    case("audit-follow.empty", "audit -f", empty),
    fails("audit.error", "audit", refusing),
    case("actors", "actors", full),
    case("actors.empty", "actors", empty),
    fails("actors.error", "actors", refusing),
    case("actors-kill", "actors kill node/raft --mode panic", full),
    case("actors-kill.quiet", "actors kill node/raft -q", full),
    fails("actors-kill.error", "actors kill node/raft", refusing),
    case(
        "validate",
        "validate --jaco DIR/jaco.yaml --compose DIR/compose.yml",
        full,
    ),
    fails("validate.error", "validate --jaco DIR/bad.yaml", full),
    fails("validate.usage-error", "validate", full),
    case("backup", "backup --output DIR/b.tgz", full),
    case("backup.quiet", "backup --output DIR/b.tgz -q", full),
    fails("backup.error", "backup --output DIR/b.tgz", refusing),
    fails("backup.usage-error", "backup", full),
    case(
        "restore",
        "restore --input DIR/archive.tgz --name new --config DIR/jacod.yaml --socket DIR/none",
        full,
    ),
    case(
        "restore.quiet",
        "restore --input DIR/archive.tgz --name new --config DIR/jacod.yaml --socket DIR/none -q",
        full,
    ),
    fails(
        "restore.key-error",
        "restore --input DIR/archive.tgz --secrets-key DIR/secrets.key --name new --config DIR/jacod.yaml --socket DIR/none",
        full,
    ),
    fails(
        "restore.error",
        "restore --input DIR/jaco.yaml --name new --config DIR/jacod.yaml --socket DIR/none",
        full,
    ),
    case("version", "version", full),
    fails("version.usage-error", "version now", full),
];
