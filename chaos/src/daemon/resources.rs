//! Resources of the machine that a daemon needs: its binary, ports and an address pool.

use std::{
    net::{TcpListener, UdpSocket},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use crate::{Engine, Rng, rng};

/// Path of `jaco` or `jacod`, in `JACO_BIN_DIR` or in cargo's output directory.
///
/// # Errors
/// When it was not built.
pub fn program(name: &str) -> Result<PathBuf> {
    let dirs = match std::env::var_os("JACO_BIN_DIR") {
        Some(dir) => vec![PathBuf::from(dir)],
        None => {
            // The binary of a test is one directory below the other binaries.
            let this = std::env::current_exe()?;
            this.ancestors()
                .skip(1)
                .take(2)
                .map(Path::to_owned)
                .collect()
        }
    };
    let mut paths = dirs.iter().map(|dir| dir.join(name));
    paths.find(|path| path.is_file()).with_context(|| {
        format!(
            "{name} is not in {dirs:?}: run `cargo build -p jaco-cli --bins` first, or set \
             JACO_BIN_DIR"
        )
    })
}

/// Ports without a TCP or UDP listener, below the system's ephemeral range.
pub(crate) fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let mut rng = Rng::new(rng::unique());
    // Bound until all are found, so that they differ.
    let mut held = Vec::new();
    let mut found = [0; N];
    for slot in &mut found {
        let (port, sockets) = (0..1000)
            .find_map(|_| {
                let port = u16::try_from(rng.within(15_000..32_000)).ok()?;
                let tcp = TcpListener::bind(("0.0.0.0", port)).ok()?;
                let udp = UdpSocket::bind(("0.0.0.0", port)).ok()?;
                Some((port, (tcp, udp)))
            })
            .context("no free port")?;
        held.push(sockets);
        *slot = port;
    }
    Ok(found)
}

/// An address pool that no network of the engine overlaps: daemons of other tests use the same
/// engine.
pub(super) async fn free_pool(engine: &Engine) -> Result<String> {
    let taken = engine.subnets().await?;
    let mut rng = Rng::new(rng::unique());
    let pool = (0..1000).find_map(|_| {
        let octet = rng.within(16..240);
        let prefix = format!("10.{octet}.");
        // 10.244.0.0/16 is the default pool of every daemon.
        let free = octet != 244 && !taken.iter().any(|subnet| subnet.starts_with(&prefix));
        free.then(|| format!("10.{octet}.0.0/16"))
    });
    pool.context("no free pool of addresses")
}
