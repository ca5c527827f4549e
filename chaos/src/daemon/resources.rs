//! Resources of the machine that a daemon needs: its binary, ports and an address pool.

use std::{
    collections::BTreeSet,
    net::{TcpListener, UdpSocket},
    ops::Range,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
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

/// Numbers that this process hands out, each to one owner at a time. A test uses what it was given
/// only later, so another test must not find it free meanwhile.
struct HandedOut(Mutex<BTreeSet<u16>>);

static PORTS: HandedOut = HandedOut::new();
static POOLS: HandedOut = HandedOut::new();

impl HandedOut {
    const fn new() -> Self {
        Self(Mutex::new(BTreeSet::new()))
    }

    /// Hands out a random number of `range` without an owner for which `is_free` holds; `None` if
    /// there is none.
    fn draw(&self, range: Range<u16>, is_free: impl Fn(u16) -> bool) -> Option<u16> {
        let mut taken = self.taken();
        let start = Rng::new(rng::unique()).within(range.start.into()..range.end.into());
        let start = u16::try_from(start).ok()?;
        let number = (start..range.end)
            .chain(range.start..start)
            .find(|number| !taken.contains(number) && is_free(*number))?;
        taken.insert(number);
        Some(number)
    }

    fn give_back(&self, number: u16) {
        self.taken().remove(&number);
    }

    fn taken(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ports without a TCP or UDP listener, below the system's ephemeral range. A process gets each port
/// at most once.
///
/// # Errors
/// When no port is left.
pub fn free_ports<const N: usize>() -> Result<[u16; N]> {
    let is_free = |port| {
        let tcp = TcpListener::bind(("0.0.0.0", port));
        tcp.is_ok() && UdpSocket::bind(("0.0.0.0", port)).is_ok()
    };
    let mut ports = [0; N];
    for port in &mut ports {
        *port = PORTS
            .draw(15_000..32_000, is_free)
            .context("no free port")?;
    }
    Ok(ports)
}

/// Second octet of the addresses of the mesh, `10.99.0.0/24`.
const MESH_OCTET: u16 = 99;

/// An address pool `10.<octet>.0.0/16` that no other pool of this process overlaps.
#[derive(Debug)]
pub struct AddressPool {
    octet: u16,
}

impl AddressPool {
    /// A pool that no network of the engine overlaps: daemons of other tests use the same engine.
    pub(super) async fn free(engine: &Engine) -> Result<Self> {
        Self::free_among(async || engine.subnets().await).await
    }

    async fn free_among(subnets: impl AsyncFn() -> Result<Vec<String>>) -> Result<Self> {
        // Held until the end, so that each is drawn once.
        let mut taken = Vec::new();
        loop {
            let pool = Self::draw()?;
            // Listed after the draw, which shows the networks that its last owner has left.
            if !pool.overlaps(&subnets().await?) {
                return Ok(pool);
            }
            taken.push(pool);
        }
    }

    fn draw() -> Result<Self> {
        // 10.244.0.0/16, the default pool of every daemon, is beyond the range.
        let octet = POOLS.draw(16..240, |octet| octet != MESH_OCTET);
        let octet = octet.context("no free pool of addresses")?;
        Ok(Self { octet })
    }

    fn overlaps(&self, subnets: &[String]) -> bool {
        let prefix = format!("10.{}.", self.octet);
        subnets.iter().any(|subnet| subnet.starts_with(&prefix))
    }

    /// Address and prefix length.
    pub(super) fn cidr(&self) -> String {
        format!("10.{}.0.0/16", self.octet)
    }
}

impl Drop for AddressPool {
    fn drop(&mut self) {
        POOLS.give_back(self.octet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_has_one_owner_at_a_time() {
        let numbers = HandedOut::new();
        let draw = || numbers.draw(3..8, |number| number != 5);
        let drawn: BTreeSet<u16> = (0..4).filter_map(|_| draw()).collect();
        assert_eq!(drawn, [3, 4, 6, 7].into());
        assert_eq!(draw(), None);
        numbers.give_back(4);
        assert_eq!(draw(), Some(4));
        assert_eq!(draw(), None);
    }

    #[test]
    fn concurrent_tests_get_different_ports() {
        let draw = || (0..50).map(|_| free_ports::<3>().unwrap());
        let draws = [(); 4].map(|()| std::thread::spawn(move || Vec::from_iter(draw())));
        let ports = draws.into_iter().flat_map(|draw| draw.join().unwrap());
        let mut seen = BTreeSet::new();
        assert!(ports.flatten().all(|port| seen.insert(port)));
    }

    #[tokio::test]
    async fn pool_is_free_again_after_its_owner() {
        let subnets = async || {
            Ok(Vec::from_iter(
                (16..230).map(|at| format!("10.{at}.4.0/24")),
            ))
        };
        let mut pools = Vec::new();
        for _ in 0..10 {
            pools.push(AddressPool::free_among(subnets).await.unwrap());
        }
        let cidrs: BTreeSet<_> = pools.iter().map(AddressPool::cidr).collect();
        assert_eq!(cidrs.len(), 10, "{cidrs:?}");
        assert!(cidrs.contains("10.239.0.0/16"));
        assert!(AddressPool::free_among(subnets).await.is_err());
        drop(pools);
        assert!(AddressPool::free_among(subnets).await.is_ok());
    }
}
