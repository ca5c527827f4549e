//! Devices, accelerators and ulimits of a service.

use std::collections::BTreeMap;

use crate::{
    Error,
    manifest::{
        compose::{
            Blkio, Device, GpuRequest, Ulimit,
            keys::{BLKIO, BLKIO_RATE, BLKIO_WEIGHT, DEVICE, GPU, Keys, ULIMIT},
            reader::Reader,
        },
        grammar,
    },
    yaml::{Node, Value},
};

pub(super) fn ulimits(reader: &Reader<'_>, node: &Node) -> Result<BTreeMap<String, Ulimit>, Error> {
    let mut limits = BTreeMap::new();
    let Some(map) = reader.any_map("ulimits", node)? else {
        return Ok(limits);
    };
    for (key, node) in map.iter() {
        let field = format!("ulimits.{}", key.text);
        let limit = match &node.value {
            Value::Map(_) => {
                let pair = reader.map(&field, node, &ULIMIT)?;
                let side = |side: &str| pair.and_then(|pair| pair.get(side));
                let (Some(soft), Some(hard)) = (side("soft"), side("hard")) else {
                    return Err(reader.fault(&field, node, "needs both soft and hard"));
                };
                let soft = reader.int(&field, soft)?;
                soft.zip(reader.int(&field, hard)?)
            }
            Value::Scalar(_) | Value::Seq(_) => reader.int(&field, node)?.map(|n| (n, n)),
        };
        if let Some((soft, hard)) = limit {
            limits.insert(key.text.clone(), Ulimit { soft, hard });
        }
    }
    Ok(limits)
}

pub(super) fn devices(reader: &Reader<'_>, node: &Node) -> Result<Vec<Device>, Error> {
    let mut devices = Vec::new();
    for item in reader.seq("devices", node)? {
        if reader.is_open(item) {
            continue;
        }
        let (source, target, permissions) = match &item.value {
            Value::Map(_) => {
                let map = reader.map("devices", item, &DEVICE)?;
                let text = |key: &str| match map.and_then(|map| map.get(key)) {
                    Some(node) => reader.name(&format!("devices.{key}"), node),
                    None => Ok(None),
                };
                let source = map.and_then(|map| map.get("source"));
                if source.is_some_and(|source| reader.is_open(source)) {
                    continue;
                }
                (text("source")?, text("target")?, text("permissions")?)
            }
            Value::Scalar(_) | Value::Seq(_) => {
                let text = reader.name("devices", item)?.unwrap_or_default();
                let mut parts = text.split(':').map(str::to_owned);
                let device = (parts.next(), parts.next(), parts.next());
                if parts.next().is_some() {
                    return Err(reader.wrong("devices", item, "source[:target[:permissions]]"));
                }
                device
            }
        };
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        let Some(source) = given(source) else {
            return Err(reader.fault("devices", item, "needs a source"));
        };
        devices.push(Device {
            target: given(target).unwrap_or_else(|| source.clone()),
            permissions: given(permissions).unwrap_or_else(|| "rwm".to_owned()),
            source,
        });
    }
    Ok(devices)
}

/// Reads accelerators in either place: `field` is `gpus` or that of the reservations.
pub(super) fn gpus(
    reader: &Reader<'_>,
    field: &str,
    node: &Node,
) -> Result<Vec<GpuRequest>, Error> {
    let all = GpuRequest {
        count: -1,
        capabilities: vec!["gpu".to_owned()],
        ..GpuRequest::default()
    };
    if let Value::Scalar(_) = &node.value {
        let word = reader.choice(field, node, &[("all", ())])?;
        return Ok(word.map(|()| all).into_iter().collect());
    }
    let mut requests = Vec::new();
    for item in reader.seq(field, node)? {
        let Some(map) = reader.map(field, item, &GPU)? else {
            if reader.is_open(item) {
                continue;
            }
            return Err(reader.wrong(field, item, "a mapping"));
        };
        let mut request = all.clone();
        let mut count = None;
        for (key, node) in map.iter() {
            let field = format!("{field}.{}", key.text);
            match key.text.as_str() {
                "driver" => request.driver = reader.name(&field, node)?.unwrap_or_default(),
                "count" if node.text() == Some("all") => count = Some(-1),
                "count" => count = reader.int(&field, node)?,
                "device_ids" => request.device_ids = reader.string_list(&field, node)?,
                "capabilities" => {
                    let given = reader.string_list(&field, node)?;
                    if !given.is_empty() {
                        request.capabilities = given;
                    }
                }
                "options" => request.options = reader.labels(&field, node)?,
                _ => {}
            }
        }
        if count.is_some() && !request.device_ids.is_empty() {
            return Err(reader.fault(field, item, "takes a count or device_ids, not both"));
        }
        request.count = match count {
            Some(count) => count,
            None if request.device_ids.is_empty() => -1,
            None => 0,
        };
        requests.push(request);
    }
    Ok(requests)
}

/// Reads groups, which may be numbers.
pub(super) fn group_add(reader: &Reader<'_>, node: &Node) -> Result<Vec<String>, Error> {
    let mut groups = Vec::new();
    for item in reader.distinct("group_add", node)? {
        if reader.is_open(item) {
            continue;
        }
        let group = reader.any_scalar("group_add", item)?;
        let group = group.filter(|group| !group.is_empty());
        groups.push(group.ok_or_else(|| reader.wrong("group_add", item, "a name or a number"))?);
    }
    Ok(groups)
}

/// Reads options of the storage driver, which may be numbers.
pub(super) fn storage_opt(
    reader: &Reader<'_>,
    node: &Node,
) -> Result<BTreeMap<String, String>, Error> {
    reader.any_map("storage_opt", node)?;
    reader.labels("storage_opt", node)
}

/// Reads a time of the CPU scheduler: microseconds, or a duration with a unit.
pub(super) fn microseconds(
    reader: &Reader<'_>,
    field: &str,
    node: &Node,
) -> Result<Option<i64>, Error> {
    let parse = |text: &str| {
        text.parse().ok().or_else(|| {
            let micros = grammar::duration(text)?.as_micros();
            i64::try_from(micros).ok()
        })
    };
    reader.parsed(field, node, "microseconds or a duration", parse)
}

/// Reads a size, or -1 for no limit; 0 counts as absent.
pub(super) fn memory_swap(reader: &Reader<'_>, node: &Node) -> Result<Option<i64>, Error> {
    let parse = |text: &str| match text {
        "-1" => Some(-1),
        size => grammar::bytes(size),
    };
    let limit = reader.parsed("memswap_limit", node, "a size such as 64M, or -1", parse)?;
    Ok(limit.filter(|limit| *limit != 0))
}

pub(super) fn blkio(reader: &Reader<'_>, node: &Node) -> Result<Blkio, Error> {
    let mut blkio = Blkio::default();
    let Some(map) = reader.map("blkio_config", node, &BLKIO)? else {
        return Ok(blkio);
    };
    for (key, node) in map.iter() {
        let field = format!("blkio_config.{}", key.text);
        match key.text.as_str() {
            "weight" => blkio.weight = weight(reader, &field, node)?,
            "weight_device" => {
                blkio.weight_device = by_device(reader, &field, node, &BLKIO_WEIGHT, weight)?;
            }
            "device_read_bps" => {
                blkio.read_bps = by_device(reader, &field, node, &BLKIO_RATE, rate)?;
            }
            "device_read_iops" => {
                blkio.read_iops = by_device(reader, &field, node, &BLKIO_RATE, rate)?;
            }
            "device_write_bps" => {
                blkio.write_bps = by_device(reader, &field, node, &BLKIO_RATE, rate)?;
            }
            "device_write_iops" => {
                blkio.write_iops = by_device(reader, &field, node, &BLKIO_RATE, rate)?;
            }
            _ => {}
        }
    }
    Ok(blkio)
}

fn weight(reader: &Reader<'_>, field: &str, node: &Node) -> Result<Option<u16>, Error> {
    let weight = reader.int_within(field, node, 0..=1000)?;
    Ok(weight.and_then(|weight| u16::try_from(weight).ok()))
}

fn rate(reader: &Reader<'_>, field: &str, node: &Node) -> Result<Option<i64>, Error> {
    reader.bytes(field, node)
}

/// Reads a list of `{path, <value>}`, the value being the other of `keys`.
fn by_device<T>(
    reader: &Reader<'_>,
    field: &str,
    node: &Node,
    keys: &Keys,
    value: impl Fn(&Reader<'_>, &str, &Node) -> Result<Option<T>, Error>,
) -> Result<Vec<(String, T)>, Error> {
    let name = keys
        .names()
        .find(|name| *name != "path")
        .unwrap_or_default();
    let mut devices = Vec::new();
    for item in reader.seq(field, node)? {
        let Some(map) = reader.map(field, item, keys)? else {
            if reader.is_open(item) {
                continue;
            }
            return Err(reader.wrong(field, item, "a mapping"));
        };
        if reader.is_open_in(map, "path") || reader.is_open_in(map, name) {
            continue;
        }
        let path = match map.get("path") {
            Some(node) => reader.name(&format!("{field}.path"), node)?,
            None => None,
        };
        let given = match map.get(name) {
            Some(node) => value(reader, &format!("{field}.{name}"), node)?,
            None => None,
        };
        let pair = path.zip(given);
        let what = format!("needs a path and a {name}");
        devices.push(pair.ok_or_else(|| reader.fault(field, item, what))?);
    }
    Ok(devices)
}
