//! Authentication: initialisation of the cluster, and tokens that are valid and invalid.

use std::fs;

use anyhow::{Result, ensure};
use jaco_proto::v1;

use super::{Output, Scene};

impl Scene {
    pub(in crate::secrets) async fn founds_a_cluster(&mut self) -> Result<()> {
        let setup = fs::read_to_string(self.daemon.data_dir().join("bootstrap/setup-token"))?;
        self.markers.add("setup token", setup.trim().as_bytes());
        let fingerprint = fs::read_to_string(self.daemon.data_dir().join("bootstrap/fingerprint"));
        let wrong = self.markers.plant("wrongsetup");
        let server = self.daemon.address();
        if let Ok(fingerprint) = fingerprint {
            let line = format!(
                "--server {server} --ca-fingerprint {} cluster init --no-systemd-enable",
                fingerprint.trim()
            );
            let founded = self.jaco(&line, Output::Checked, |command| {
                command.env("JACO_TOKEN", &wrong);
            })?;
            ensure!(!founded, "a wrong setup token was good enough");
        }
        self.daemon.init().await?;
        let token = self.daemon.operator_token().to_owned();
        self.markers.add("operator token", token.as_bytes());
        let key = fs::read_to_string(self.daemon.data_dir().join("node/chaos.key"))?;
        self.add_key("node key", &key)
    }

    pub(in crate::secrets) async fn uses_tokens(&mut self) -> Result<()> {
        let issue = v1::TokenIssueRequest {
            identity: "ci".to_owned(),
            allows_privileged: false,
        };
        let issued = self.api().tokens().issue(issue).await?;
        let token = issued.into_inner().token;
        self.markers.add("issued token", token.as_bytes());
        let wrong = self.markers.plant("wrongtoken");
        ensure!(self.remote(&token)?, "a good token was refused");
        ensure!(!self.remote(&wrong)?, "a wrong token was accepted");
        ensure!(
            !self.remote(&format!("{wrong}\u{e9}"))?,
            "an odd token was accepted"
        );
        let revoke = v1::TokenRevokeRequest {
            identity: "ci".to_owned(),
        };
        self.api().tokens().revoke(revoke).await?;
        ensure!(!self.remote(&token)?, "a revoked token was accepted");
        let odd = v1::TokenIssueRequest {
            identity: "local".to_owned(),
            ..Default::default()
        };
        let answer = self.api().tokens().issue(odd).await;
        self.refused("an identity that is taken", answer)
    }

    /// Runs a command over TLS, with a token.
    fn remote(&mut self, token: &str) -> Result<bool> {
        let ca = self.daemon.data_dir().join("node/ca.crt");
        let line = format!(
            "--server {} --ca-cert {} status",
            self.daemon.address(),
            ca.display()
        );
        self.jaco(&line, Output::Checked, |command| {
            command.env("JACO_TOKEN", token);
        })
    }
}
