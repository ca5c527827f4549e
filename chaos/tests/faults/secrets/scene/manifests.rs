//! Manifests of operators: valid, invalid, and valid but impossible to run.

use anyhow::{Result, ensure};
use jaco_chaos::{Service, Workload, engine::IMAGE};
use jaco_proto::v1;

use super::{Output, Scene};

impl Scene {
    pub(in crate::secrets) fn deploys(&mut self) -> Result<()> {
        let (environment, from_file) = (self.markers.plant("env"), self.markers.plant("envfile"));
        let (comment, label) = (self.markers.plant("comment"), self.markers.plant("label"));
        let output = self.markers.plant("output");
        let compose = format!(
            "# {comment}\nservices:\n  web:\n    image: {IMAGE}\n    pull_policy: never\n    \
             stop_signal: SIGKILL\n    labels: {{note: {label}}}\n    \
             command: [sh, -c, 'echo $$OUTPUT; exec /bin/busybox httpd -f -p 8080 -h /']\n    \
             environment:\n      OUTPUT: {output}\n      PASSWORD: {environment}\n      \
             TOKEN: \"${{TOKEN}}\"\n    env_file: [more.env]\n"
        );
        let jaco = format!(
            "# {comment}\ndeployment: {}\nacme: \"off\"\nenvironment: vars.env\n\
             services: [{{name: web}}]\n\
             routes: [{{domain: a.example, service: web, port: 8080, tls: \"off\"}}]\n",
            self.deployment
        );
        let dir = self.file("compose.yml", &compose)?;
        self.file("jaco.yaml", &jaco)?;
        self.file("vars.env", &format!("TOKEN={from_file}\n"))?;
        self.file("more.env", &format!("EXTRA={from_file}\n"))?;
        let apply = format!("apply {}", dir.with_file_name("jaco.yaml").display());
        for line in [
            apply.replace("apply", "validate --jaco"),
            format!("{apply} --dry-run"),
            apply,
        ] {
            let applied = self.jaco(&line, Output::Checked, |_| {})?;
            ensure!(applied || line.starts_with("validate"), "{:?}", self.last());
        }
        // The standard output of these commands may contain the stored values.
        let shown = format!("get deployment {}", self.deployment);
        ensure!(
            self.jaco(&shown, Output::Allowed, |_| {})?,
            "{:?}",
            self.last()
        );
        let logs = format!("logs {}/web", self.deployment);
        ensure!(
            self.jaco(&logs, Output::Allowed, |_| {})?,
            "{:?}",
            self.last()
        );
        Ok(())
    }

    pub(in crate::secrets) async fn applies_what_is_wrong(&mut self) -> Result<()> {
        let environment = self.markers.plant("badenv");
        let web = "services:\n  web:\n    image: x\n    environment:\n";
        for compose in [
            format!("{web}      A: [{environment}]\n"),
            format!("{web}      A: {{b: {environment}}}\n"),
            format!("{web}      A: \"{environment}\n"),
            format!("{web}      A: {environment}\n      A: {environment}\n"),
            format!("{web}      - {{A: {environment}}}\n"),
            format!("{web}      - ={environment}\n"),
            format!("{web}      A: *{environment}x\n"),
            format!("{web}      A: !!binary {environment}\n    nosuch: 1\n"),
            format!("{web}      A: {environment}\n    mem_limit: lots\n"),
            format!("{web}      A: {environment}\n   bad: indent\n"),
            format!("{web}      A: {environment}\n    env_file: x\n"),
            format!("{web} {environment}: &{environment}\n\t"),
        ] {
            let request = v1::ApplyRequest {
                jaco_yaml: b"deployment: bad\nservices: [{name: web}]\n".to_vec(),
                compose_yaml: compose.clone().into_bytes(),
                dry_run: false,
            };
            let answer = self.api().deploy().apply(request).await;
            if answer.is_ok() {
                let delete = v1::DeleteRequest {
                    deployment: "bad".to_owned(),
                };
                self.api().deploy().delete(delete).await?;
                continue;
            }
            self.refused(
                &format!("answer to {}", compose.replace(&environment, "X")),
                answer,
            )?;
        }
        // The client resolves variables before the result is validated.
        let value = self.markers.plant("resolved");
        self.file(
            "bad.env",
            &format!("VALUE={value}\n=\nno separator {value}\n'{value}\n"),
        )?;
        self.file("vars.env", &format!("VALUE={value}\n"))?;
        let jaco = self.file(
            "bad.yaml",
            "deployment: bad\nenvironment: vars.env\nservices: [{name: web}]\n",
        )?;
        for compose in [
            format!("{web}      - {{A: \"${{VALUE}}\"}}\n"),
            format!("{web}      A: ${{VALUE}}\n    mem_limit: lots\n"),
            format!("{web}      A: ${{VALUE:?}}\n    nosuch: 1\n"),
            format!("{web}      A: 1\n    env_file: [bad.env]\n"),
        ] {
            let path = self.file("bad-compose.yml", &compose)?;
            let line = format!("apply {} --compose {}", jaco.display(), path.display());
            let applied = self.jaco(&line, Output::Checked, |_| {})?;
            ensure!(!applied, "{compose} was applied");
        }
        Ok(())
    }

    pub(in crate::secrets) async fn pulls_in_vain(&mut self) -> Result<()> {
        let password = self.markers.plant("registry");
        let add = v1::RegistryCredentialAddRequest {
            registry: "127.0.0.1:9".to_owned(),
            username: "robot".to_owned(),
            secret: password.into_bytes(),
        };
        self.api().registry().add(add).await?;
        let short = self.markers.plant("emptyregistry");
        let add = v1::RegistryCredentialAddRequest {
            registry: String::new(),
            username: "robot".to_owned(),
            secret: short.into_bytes(),
        };
        let answer = self.api().registry().add(add).await;
        self.refused("a credential without a registry", answer)?;

        let environment = self.markers.plant("vain");
        let mut vain = Workload::new("vain", [Service::new("web"), Service::new("job")]);
        for service in &mut vain.services {
            let variable = ("SECRET".to_owned(), environment.clone());
            service.environment.extend([variable]);
        }
        vain.services[1].command = vec!["/no/such/program".to_owned()];
        let mut request = vain.request();
        let text = String::from_utf8(request.compose_yaml)?;
        // The image of the first service is to come from an unreachable registry.
        let text = text.replacen("\"pull_policy\":\"never\"", "\"pull_policy\":\"always\"", 2);
        request.compose_yaml = text.replace(IMAGE, "127.0.0.1:9/x/y:1").into_bytes();
        self.api().deploy().apply(request).await?;
        let name = vain.name.clone();
        self.api()
            .replica(
                &name,
                &vain.replica("web", 0),
                "cannot be pulled",
                |replica| replica.code == "image_pull_failed",
            )
            .await?;
        let mut broken = Workload::new("broken", [vain.services.remove(1)]);
        broken.services[0].healthcheck = false;
        self.api().apply(&broken).await?;
        self.api()
            .replica(
                &broken.name,
                &broken.replica("job", 0),
                "cannot be started",
                |replica| !replica.code.is_empty(),
            )
            .await?;
        for name in [name, broken.name] {
            let replicas = self.api().replicas(&name).await?;
            self.tell("replicas that failed", format!("{replicas:?}"));
            self.api().delete(&name).await?;
        }
        Ok(())
    }
}
