//! Runs the examples, on the engine of `JACO_DOCKER_SOCKET` or the usual one.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
};

#[path = "../examples/embed.rs"]
#[expect(dead_code, reason = "only its functions are tested here")]
mod embed;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn embedding_example_leaves_no_containers() {
    let image = Image::import();
    embed::run(socket(), &image.0).await.expect("all of it");
    let left = docker(&["ps", "-aq", "--filter", &format!("ancestor={}", image.0)]);
    assert_eq!(left, "", "containers are left");
}

fn socket() -> PathBuf {
    std::env::var_os("JACO_DOCKER_SOCKET")
        .map_or_else(|| "/var/run/docker.sock".into(), PathBuf::from)
}

fn docker(args: &[&str]) -> String {
    let host = format!("unix://{}", socket().display());
    let output = Command::new("docker")
        .args(["-H", &host])
        .args(args)
        .output();
    let output = output.expect("docker");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// An image for this test, built from this machine's static busybox.
struct Image(String);

impl Image {
    fn import() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).expect("bin");
        std::fs::copy("/bin/busybox", bin.join("busybox")).expect("a static busybox");
        for applet in ["sh", "sleep"] {
            std::os::unix::fs::symlink("busybox", bin.join(applet)).expect("a link");
        }
        let mut tar = Command::new("tar")
            .arg("-C")
            .arg(dir.path())
            .args(["-c", "."])
            .stdout(Stdio::piped())
            .spawn()
            .expect("tar");
        let image = Self(format!("jaco-embed-test:{}", uuid::Uuid::new_v4().simple()));
        let host = format!("unix://{}", socket().display());
        let imported = Command::new("docker")
            .args(["-H", &host, "import", "-c", "ENV PATH=/bin", "-", &image.0])
            .stdin(tar.stdout.take().expect("a pipe"))
            .stdout(Stdio::null())
            .status()
            .expect("docker");
        assert!(imported.success() && tar.wait().expect("tar").success());
        image
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let host = format!("unix://{}", socket().display());
        let _ = Command::new("docker")
            .args(["-H", &host, "rmi", "-f", &self.0])
            .output();
    }
}
