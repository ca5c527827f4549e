//! Format of the lines of each log.

use anyhow::{Context, Result, bail, ensure};
use jaco_proto::config::SUBSYSTEMS;
use serde_json::{Map, Value};

use super::fixture::LogFormat;

/// Checks every line; the text format is for people and is not checked.
pub(super) fn check(format: LogFormat, log: &str) -> Result<()> {
    let check: fn(&str) -> Result<()> = match format {
        LogFormat::Text => return Ok(()),
        LogFormat::Json => json,
        LogFormat::Journal => entry,
    };
    let lines: Vec<&str> = match format {
        LogFormat::Text | LogFormat::Json => log.lines().collect(),
        LogFormat::Journal => log
            .split("\n\n")
            .filter(|entry| !entry.is_empty())
            .collect(),
    };
    ensure!(lines.len() > 100, "only {} lines", lines.len());
    for line in lines {
        check(line).with_context(|| line.to_owned())?;
    }
    Ok(())
}

fn json(line: &str) -> Result<()> {
    let Value::Object(line) = serde_json::from_str(line)? else {
        bail!("not an object");
    };
    let text = |key: &str| {
        let value = line.get(key).with_context(|| format!("no {key}"))?;
        value.as_str().with_context(|| format!("{key} is no text"))
    };
    let time = text("time")?;
    ensure!(
        time.len() == "2026-11-21T14:00:00.123456789Z".len() && time.ends_with('Z'),
        "time"
    );
    ensure!(
        ["DEBUG", "INFO", "WARN", "ERROR"].contains(&text("level")?),
        "level"
    );
    ensure!(!text("msg")?.is_empty(), "msg");
    let subsystem = text("subsystem")?;
    ensure!(
        SUBSYSTEMS.contains(&subsystem),
        "{subsystem:?} is not in the table"
    );
    ensure!(
        line.keys()
            .all(|key| key.chars().all(|c| c.is_ascii_lowercase() || c == '_')),
        "attribute names"
    );
    attributes(subsystem, text("level")?, text("msg")?, &line)
}

/// Attributes that lines of a kind must carry.
fn attributes(
    subsystem: &str,
    level: &str,
    message: &str,
    line: &Map<String, Value>,
) -> Result<()> {
    let carries = |keys: &[&str]| keys.iter().all(|key| line.contains_key(*key));
    match (subsystem, message) {
        ("daemon/grpc", "request started") => {
            ensure!(level == "DEBUG" && carries(&["request_id", "method", "peer"]));
        }
        ("daemon/grpc", "request") => {
            ensure!(carries(&["request_id", "method", "peer"]));
            let method = line["method"].as_str().unwrap_or_default();
            let reads = [
                "/Status",
                "/Query",
                "/GetReplicas",
                "/Actors",
                "/Logs",
                "/List",
            ];
            let reads = reads.iter().any(|name| method.ends_with(name));
            let writes = [
                "/Apply",
                "/Init",
                "/Issue",
                "/Revoke",
                "/Add",
                "/KillActor",
                "/Delete",
            ];
            let writes = writes.iter().any(|name| method.ends_with(name));
            ensure!(!reads || level == "DEBUG", "a read is logged at debug");
            ensure!(!writes || level == "INFO", "a write is logged at info");
        }
        ("fsm", "applied") => {
            let keys: Vec<&str> = line.keys().map(String::as_str).collect();
            ensure!(level == "DEBUG");
            ensure!(
                keys == ["index", "level", "msg", "op", "subsystem", "time"],
                "{keys:?}"
            );
        }
        ("actor", "actor failed" | "actor used up its restarts") => {
            ensure!(carries(&["actor", "kind", "restarts", "cause"]));
        }
        _ => {}
    }
    Ok(())
}

fn entry(entry: &str) -> Result<()> {
    let mut fields = std::collections::BTreeMap::new();
    for line in entry.trim_start_matches('\n').lines() {
        // The one value with line breaks, preceded by its length, is the last of its entry.
        if line == "BACKTRACE" {
            break;
        }
        let (name, value) = line.split_once('=').context("not a field")?;
        let first = name.chars().next().context("no name")?;
        ensure!(first.is_ascii_uppercase(), "{name}");
        ensure!(
            name.chars()
                .all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_'),
            "{name}"
        );
        ensure!(fields.insert(name, value).is_none(), "{name} twice");
    }
    let field = |name: &str| {
        fields
            .get(name)
            .copied()
            .with_context(|| format!("no {name}"))
    };
    ensure!(!field("MESSAGE")?.is_empty());
    ensure!(["3", "4", "6", "7"].contains(&field("PRIORITY")?));
    ensure!(field("SYSLOG_IDENTIFIER")? == "jacod");
    let subsystem = field("SUBSYSTEM")?;
    ensure!(
        SUBSYSTEMS.contains(&subsystem),
        "{subsystem:?} is not in the table"
    );
    Ok(())
}
