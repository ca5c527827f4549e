//! Rules of single keys; each function returns `None` for an absent key.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use super::{Error, HostPort, Isolation, LogLevel, Pool, WgBackend, read::Fields, values};
use crate::{duration::Nanos, node_labels};

const MIN_STATUS_INTERVAL: Duration = Duration::from_secs(5);
const MAX_STATUS_INTERVAL: Duration = Duration::from_secs(300);

pub(super) fn path(fields: &Fields<'_>, key: &'static str) -> Result<Option<PathBuf>, Error> {
    match fields.text(key)? {
        Some("") => Err(Error::Empty { key }),
        other => Ok(other.map(PathBuf::from)),
    }
}

/// Reads a text, where empty means absent.
pub(super) fn optional_text(
    fields: &Fields<'_>,
    key: &'static str,
) -> Result<Option<String>, Error> {
    let text = fields.text(key)?.filter(|text| !text.is_empty());
    Ok(text.map(str::to_owned))
}

pub(super) fn host_port(fields: &Fields<'_>, key: &'static str) -> Result<Option<HostPort>, Error> {
    let Some(text) = fields.text(key)? else {
        return Ok(None);
    };
    if text.is_empty() {
        return Err(Error::Empty { key });
    }
    HostPort::parse(text)
        .map(Some)
        .map_err(|reason| Error::NotHostPort {
            key,
            value: text.to_owned(),
            reason,
        })
}

pub(super) fn port(fields: &Fields<'_>, key: &'static str) -> Result<Option<u16>, Error> {
    number(fields, key, 1, u16::MAX)
}

pub(super) fn number<T>(
    fields: &Fields<'_>,
    key: &'static str,
    min: T,
    max: T,
) -> Result<Option<T>, Error>
where
    T: TryFrom<i128> + PartialOrd,
{
    let Some(value) = fields.integer(key)? else {
        return Ok(None);
    };
    match T::try_from(value) {
        Ok(number) if number >= min && number <= max => Ok(Some(number)),
        Ok(_) | Err(_) => Err(Error::OutOfRange { key, value }),
    }
}

pub(super) fn acme_ca(fields: &Fields<'_>) -> Result<Option<String>, Error> {
    match optional_text(fields, "acme_ca")? {
        Some(value) if !values::is_https_url(&value) => Err(Error::AcmeCa { value }),
        other => Ok(other),
    }
}

/// Accepts the exact words only, unlike flags and environment variables.
pub(super) fn log_level(fields: &Fields<'_>) -> Result<Option<LogLevel>, Error> {
    word(
        fields,
        "log_level",
        "debug, info, warn or error",
        &[
            LogLevel::Debug,
            LogLevel::Info,
            LogLevel::Warn,
            LogLevel::Error,
        ]
        .map(|level| (level.as_str(), level)),
    )
}

pub(super) fn wg_backend(fields: &Fields<'_>) -> Result<Option<WgBackend>, Error> {
    word(
        fields,
        "wg_backend",
        "auto, kernel or userspace",
        &[
            ("auto", WgBackend::Auto),
            ("kernel", WgBackend::Kernel),
            ("userspace", WgBackend::Userspace),
        ],
    )
}

pub(super) fn isolation(fields: &Fields<'_>) -> Result<Option<Isolation>, Error> {
    word(
        fields,
        "isolation",
        "enforce or off",
        &[("enforce", Isolation::Enforce), ("off", Isolation::Off)],
    )
}

fn word<T: Copy>(
    fields: &Fields<'_>,
    key: &'static str,
    expected: &'static str,
    words: &[(&str, T)],
) -> Result<Option<T>, Error> {
    let Some(text) = fields.text(key)? else {
        return Ok(None);
    };
    match words.iter().find(|(word, _)| *word == text) {
        Some((_, value)) => Ok(Some(*value)),
        None => Err(Error::NotAWord {
            key,
            value: text.to_owned(),
            expected,
        }),
    }
}

pub(super) fn status_interval(fields: &Fields<'_>) -> Result<Option<Duration>, Error> {
    match fields.duration("node_status_interval")? {
        None | Some(0) => Ok(None),
        Some(value) => positive(value)
            .filter(|interval| (MIN_STATUS_INTERVAL..=MAX_STATUS_INTERVAL).contains(interval))
            .map(Some)
            .ok_or(Error::StatusInterval { value }),
    }
}

pub(super) fn forwarder_timeout(dns: &Fields<'_>) -> Result<Option<Duration>, Error> {
    match dns.duration("forwarder_timeout")? {
        None | Some(0) => Ok(None),
        Some(value) => positive(value)
            .map(Some)
            .ok_or(Error::ForwarderTimeout { value }),
    }
}

fn positive(nanos: Nanos) -> Option<Duration> {
    u64::try_from(nanos).ok().map(Duration::from_nanos)
}

pub(super) fn forwarders(dns: &Fields<'_>, pool: Pool, block: u8) -> Result<Vec<HostPort>, Error> {
    let read = |text: &str| {
        let value = text.to_owned();
        match values::forwarder(text) {
            Ok(server) if values::loops_back(&server, pool, block) => {
                Err(Error::ForwarderLoop { value })
            }
            Ok(server) => Ok(server),
            Err(reason) => Err(Error::Forwarder { value, reason }),
        }
    };
    dns.texts("forwarders")?.into_iter().map(read).collect()
}

pub(super) fn docker_socket(fields: &Fields<'_>) -> Result<Option<PathBuf>, Error> {
    let Some(text) = fields.text("docker_socket")? else {
        return Ok(None);
    };
    match text.strip_prefix("unix://") {
        Some(path) if path.len() > 1 && path.starts_with('/') => Ok(Some(path.into())),
        Some(_) | None => Err(Error::DockerSocket {
            value: text.to_owned(),
        }),
    }
}

/// An address without a host binds to the loopback interface only.
pub(super) fn metrics_addr(fields: &Fields<'_>) -> Result<Option<HostPort>, Error> {
    if optional_text(fields, "metrics_addr")?.is_none() {
        return Ok(None);
    }
    let mut addr = host_port(fields, "metrics_addr")?;
    if let Some(addr) = addr.as_mut().filter(|addr| addr.host.is_empty()) {
        addr.host = "127.0.0.1".to_owned();
    }
    Ok(addr)
}

pub(super) fn hostname(fields: &Fields<'_>) -> Result<Option<String>, Error> {
    match optional_text(fields, "hostname")? {
        Some(value) if !values::is_hostname(&value) => Err(Error::Hostname { value }),
        other => Ok(other),
    }
}

pub(super) fn labels(fields: &Fields<'_>) -> Result<BTreeMap<String, String>, Error> {
    let labels = fields.pairs("labels")?;
    node_labels::check(&labels).map_err(|reason| Error::Labels { reason })?;
    Ok(labels)
}
