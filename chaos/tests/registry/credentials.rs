//! Choice of the credential that an image is pulled with.

use anyhow::{Result, ensure};
use base64::{Engine as _, engine::general_purpose};
use jaco_chaos::{
    Daemon, Registry, Service, Settings, Workload,
    registry::{Outcome, RecordedRequest},
    test_permits,
};
use jaco_proto::v1::{
    AuditQueryRequest, DeployStatusRequest, RegistryCredentialListRequest, ReplicaState,
};

use crate::pull_failed;

/// Accounts of successful manifest requests for a repository, without repetitions.
fn readers(registry: &Registry, repository: &str) -> Vec<Option<String>> {
    let under = format!("/v2/{repository}/manifests/");
    let seen = registry.proxy().requests().into_iter();
    let mut users: Vec<_> = seen
        .filter(|seen| seen.path.starts_with(&under))
        .filter(|seen| seen.outcome == Outcome::Answered(200))
        .map(|seen| seen.user)
        .collect();
    users.dedup();
    users
}

fn named(user: &str) -> Vec<Option<String>> {
    vec![Some(user.to_owned())]
}

#[tokio::test(flavor = "multi_thread")]
async fn public_registry_is_pulled_from_anonymously() -> Result<()> {
    let _permits = test_permits::light().await;
    let registry = Registry::public().await?;
    registry.push("shop/app:1", "anybody's").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let workload = Workload::new(
        "public",
        [Service::new("web").pulled(&registry.image("shop/app:1"))],
    );
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    ensure!(readers(&registry, "shop/app") == [None]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn longest_prefix_of_whole_segments_selects_credential() -> Result<()> {
    let _permits = test_permits::light().await;
    let users = [("host", "h-pass"), ("team", "t-pass"), ("image", "i-pass")];
    let registry = Registry::private(&users).await?;
    // The proxy refuses any account but the expected one.
    let expected = [
        ("other/app", "host"),
        ("teamwork/app", "host"),
        ("team/api", "team"),
        ("team/webshop", "team"),
        ("team/web", "image"),
    ];
    for (repository, user) in expected {
        registry
            .push(&format!("{repository}:1"), repository)
            .await?;
        registry.proxy().restrict(repository, user);
    }
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let address = registry.address();
    for (key, given, user, password) in [
        ("", "", "host", "h-pass"),
        ("/team", "/Team/", "team", "t-pass"),
        ("/team/web", "/team/web", "image", "i-pass"),
    ] {
        let stored = api
            .login(&format!("http://{address}{given}"), user, password)
            .await?;
        ensure!(stored == format!("{address}{key}"), "{stored}");
    }
    let services = expected.map(|(repository, _)| {
        let image = registry.image(&format!("{repository}:1"));
        Service::new(&repository.replace('/', "-")).pulled(&image)
    });
    let workload = Workload::new("prefix", services);
    api.apply(&workload).await?;
    api.converged(&workload).await?;
    for (repository, user) in expected {
        let found = readers(&registry, repository);
        ensure!(found == named(user), "{repository}: {found:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn single_credential_of_host_matches_all_its_repositories() -> Result<()> {
    let _permits = test_permits::light().await;
    let registry = Registry::private(&[("one", "1-pass"), ("two", "2-pass")]).await?;
    let neighbour = Registry::private(&[("one", "1-pass")]).await?;
    registry.push("shop/app:1", "shop").await?;
    registry.push("shop/other:1", "shop").await?;
    neighbour.push("shop/app:1", "neighbour").await?;
    let daemon = Daemon::bootstrap(Settings::default()).await?;
    let api = daemon.api();
    let apply = async |name: &str, image: String| -> Result<Workload> {
        let workload = Workload::new(name, [Service::new("web").pulled(&image)]);
        api.apply(&workload).await?;
        Ok(workload)
    };
    let elsewhere = format!("{}/elsewhere", registry.address());
    api.login(&elsewhere, "one", "1-pass").await?;
    api.converged(&apply("only", registry.image("shop/app:1")).await?)
        .await?;
    ensure!(readers(&registry, "shop/app") == named("one"));

    // The same address with another port is another registry.
    let workload = apply("port", neighbour.image("shop/app:1")).await?;
    let refused = |r: &_| pull_failed(r, "no basic auth credentials");
    api.replica(
        &workload.name,
        &workload.replica("web", 0),
        "is refused",
        refused,
    )
    .await?;
    ensure!(
        neighbour
            .proxy()
            .requests()
            .iter()
            .all(|seen| seen.user.is_none())
    );

    // With two credentials of which none matches, the pull is anonymous.
    let third = format!("{}/third", registry.address());
    api.login(&third, "two", "2-pass").await?;
    let workload = apply("two", registry.image("shop/other:1")).await?;
    let replica = workload.replica("web", 0);
    api.replica(&workload.name, &replica, "is refused", refused)
        .await?;
    let seen = registry.proxy().requests().into_iter();
    let mut asked = seen.filter(|seen| seen.path.contains("/shop/other/"));
    ensure!(asked.all(|seen| seen.user.is_none()));
    api.logout(&third).await?;
    api.converged(&workload).await?;
    ensure!(readers(&registry, "shop/other") == named("one"));
    Ok(())
}

const SECRETS: [&str; 2] = ["wr0ng-b4ttery-st4ple", "right-horse/+b4ttery"];

#[tokio::test(flavor = "multi_thread")]
async fn wrong_password_is_retried_and_never_shown() -> Result<()> {
    let _permits = test_permits::light().await;
    let [wrong, right] = SECRETS;
    let registry = Registry::private(&[("alice", right)]).await?;
    registry.push("shop/app:1", "private").await?;
    let daemon = Daemon::bootstrap(Settings {
        config: "log_level: debug\n".to_owned(),
        ..Default::default()
    })
    .await?;
    let api = daemon.api();
    api.login(&registry.address(), "alice", wrong).await?;
    let image = registry.image("shop/app:1");
    let mut workload = Workload::new("secret", [Service::new("web").pulled(&image)]);
    let replica = workload.replica("web", 0);
    api.apply(&workload).await?;

    let mut retries = Vec::new();
    for attempt in 1..=3 {
        let attempt = attempt.to_string();
        let seen = api
            .replica(&workload.name, &replica, "fails again", |r| {
                pull_failed(r, "unauthorized") && r.details["attempt"] == attempt
            })
            .await?;
        let reason = &seen.details["reason"];
        ensure!(reason.starts_with(&format!("{image}: ")), "{reason}");
        ensure!(seen.details["deployment"] == workload.name, "{seen:?}");
        ensure!(!seen.details["host"].is_empty(), "{seen:?}");
        retries.push(seen.details["next_retry_at"].parse::<prost_types::Timestamp>()?);
    }
    // The attempts follow 1, 2 and 4 seconds after the failure of the one before.
    for (n, pause) in [2, 4].into_iter().enumerate() {
        let between = (retries[n + 1].seconds - retries[n].seconds) * 1000
            + i64::from(retries[n + 1].nanos - retries[n].nanos) / 1_000_000;
        ensure!(between >= pause * 1000, "{retries:?}");
    }
    no_secret_is_shown(&daemon, &registry).await?;

    // The next attempt reads the credential again.
    api.login(&registry.address(), "alice", right).await?;
    let running = api.converged(&workload).await?;
    ensure!(readers(&registry, "shop/app") == named("alice"));
    let wrong_ones = registry.proxy().requests().into_iter();
    let refused =
        |seen: &RecordedRequest| seen.outcome == Outcome::Answered(401) && seen.user.is_some();
    ensure!(wrong_ones.filter(refused).count() >= 3);

    // After a rotation on the registry, a new login is used by the next start.
    registry.set_users(&[("alice", "third-one"), ("bob", "b-pass")])?;
    api.login(&registry.address(), "bob", "b-pass").await?;
    workload.revise(2);
    api.apply(&workload).await?;
    api.replica(&workload.name, &replica, "runs anew", |r| {
        r.state() == ReplicaState::Running && r.container_id != running[0].container_id
    })
    .await?;

    // Without a credential, running replicas continue, and new ones are refused.
    api.logout(&registry.address()).await?;
    api.logout(&registry.address()).await?;
    let listed = api
        .registry()
        .list(RegistryCredentialListRequest {})
        .await?
        .into_inner();
    ensure!(listed.credentials.is_empty(), "{listed:?}");
    let late = Workload::new("late", [Service::new("web").pulled(&image)]);
    api.apply(&late).await?;
    api.replica(&late.name, &late.replica("web", 0), "is refused", |r| {
        pull_failed(r, "no basic auth credentials")
    })
    .await?;
    api.converged(&workload).await?;
    no_secret_is_shown(&daemon, &registry).await
}

/// Checks that no output visible to operators contains the secrets.
async fn no_secret_is_shown(daemon: &Daemon, registry: &Registry) -> Result<()> {
    let api = daemon.api();
    let mut shown = vec![("log", daemon.log())];
    ensure!(
        shown[0].1.contains("image not pulled"),
        "no failure was logged"
    );
    let listed = api
        .registry()
        .list(RegistryCredentialListRequest {})
        .await?;
    shown.push(("list", format!("{listed:?}")));
    let status = api.deploy().status(DeployStatusRequest::default()).await?;
    shown.push(("status", format!("{:?}", status.into_inner())));
    for deployment in api.deployments().await?.deployments {
        let replicas = api.replicas(&deployment.name).await?;
        shown.push(("replicas", format!("{replicas:?}")));
    }
    let audit = api.audit().query(AuditQueryRequest::default()).await?;
    let mut events = audit.into_inner();
    let mut stored = 0;
    while let Some(event) = events.message().await? {
        stored += usize::from(event.r#type().as_str_name().contains("CREDENTIAL_UPSERT"));
        let payload: Vec<_> = event.payload.iter().collect();
        shown.push(("audit", format!("{payload:?} {}", event.identity)));
    }
    ensure!(stored > 0, "no login was audited");
    for secret in SECRETS {
        let login = format!("alice:{secret}");
        let header = serde_json::json!({
            "username": "alice", "password": secret, "serveraddress": registry.address(),
        });
        let forms = [
            secret.to_owned(),
            general_purpose::STANDARD.encode(secret),
            general_purpose::STANDARD.encode(&login),
            general_purpose::URL_SAFE.encode(&login),
            general_purpose::URL_SAFE.encode(header.to_string()),
            hex::encode(secret),
            format!("{:?}", secret.as_bytes()),
        ];
        for (place, text) in &shown {
            for form in &forms {
                ensure!(!text.contains(form), "{place} shows {form}");
            }
        }
    }
    Ok(())
}
