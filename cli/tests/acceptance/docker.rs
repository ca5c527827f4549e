//! The container engine of this machine.

use std::{
    env, fs,
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::lab::Engine;

/// The engine of this machine; dropping it removes everything the test created on it.
pub(crate) struct Docker {
    socket: PathBuf,
    /// Part of every name the test uses.
    pub(crate) id: String,
    /// Cluster whose objects are removed, once it is known.
    pub(crate) cluster_id: String,
}

impl Docker {
    pub(crate) fn new() -> Self {
        let socket = env::var_os("JACO_DOCKER_SOCKET");
        let dir = tempfile::tempdir().unwrap(); // unique among the tests of this machine
        let id = dir.path().file_name().unwrap().to_str().unwrap();
        Self {
            socket: socket.map_or_else(|| "/var/run/docker.sock".into(), PathBuf::from),
            id: id.trim_start_matches('.').to_lowercase(),
            cluster_id: String::new(),
        }
    }

    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command
            .args(words)
            .env("DOCKER_HOST", format!("unix://{}", self.socket.display()));
        command
    }

    /// Output lines of an engine command.
    pub(crate) fn output_lines(&self, words: &[&str]) -> Vec<String> {
        let output = self.command(words).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn engine(&self) -> Engine {
        let networks = self.output_lines(&["network", "ls", "-q"]);
        let mut words = vec![
            "network",
            "inspect",
            "-f",
            "{{range .IPAM.Config}}{{.Subnet}}{{end}}",
        ];
        words.extend(networks.iter().map(String::as_str));
        let taken = self.output_lines(&words);
        let first = usize::try_from(std::process::id()).unwrap();
        let pool = (0..200)
            .map(|step| format!("10.{}.", 16 + (first + step) % 200))
            .find(|prefix| !taken.iter().any(|subnet| subnet.starts_with(prefix)))
            .unwrap();
        Engine {
            socket: self.socket.clone(),
            pool: format!("{pool}0.0/16"),
        }
    }

    /// An image from this machine's busybox that serves `text`.
    pub(crate) fn image(&self, text: &str) -> String {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("bin")).unwrap();
        fs::create_dir(path("www")).unwrap();
        fs::copy("/bin/busybox", path("bin/busybox")).unwrap();
        for applet in ["sh", "httpd", "echo"] {
            std::os::unix::fs::symlink("busybox", path("bin").join(applet)).unwrap();
        }
        fs::write(path("www/index.html"), text).unwrap();
        let mut tar = Command::new("tar")
            .args(["-C", root.path().to_str().unwrap(), "-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let name = format!("jaco-cli-test/{}:{text}", self.id);
        let imported = self
            .command(&["import", "--change", "ENV PATH=/bin", "-", &name])
            .stdin(tar.stdout.take().unwrap())
            .output()
            .unwrap();
        assert!(imported.status.success(), "{imported:?}");
        assert!(tar.wait().unwrap().success());
        name
    }

    /// Ids of the objects that belong to the test's cluster.
    pub(crate) fn owned(&self, words: &[&str]) -> Vec<String> {
        let filter = format!("label=jaco.cluster_id={}", self.cluster_id);
        self.output_lines(&[words, &["-q", "--filter", &filter]].concat())
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        for container in self.owned(&["ps", "-a"]) {
            self.output_lines(&["rm", "-f", &container]);
        }
        for network in self.owned(&["network", "ls"]) {
            self.output_lines(&["network", "rm", &network]);
        }
        for text in ["one", "two"] {
            self.output_lines(&["rmi", &format!("jaco-cli-test/{}:{text}", self.id)]);
        }
    }
}
