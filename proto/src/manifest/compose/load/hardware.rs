//! Devices, accelerators and ulimits of a service.

use std::collections::BTreeMap;

use crate::{
    Error,
    manifest::compose::{
        Device, GpuRequest, Ulimit,
        keys::{DEVICE, GPU, ULIMIT},
        reader::Reader,
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

pub(super) fn gpus(reader: &Reader<'_>, node: &Node) -> Result<Vec<GpuRequest>, Error> {
    let all = GpuRequest {
        count: -1,
        capabilities: vec!["gpu".to_owned()],
        ..GpuRequest::default()
    };
    if let Value::Scalar(_) = &node.value {
        let word = reader.choice("gpus", node, &[("all", ())])?;
        return Ok(word.map(|()| all).into_iter().collect());
    }
    let mut requests = Vec::new();
    for item in reader.seq("gpus", node)? {
        let Some(map) = reader.map("gpus", item, &GPU)? else {
            if reader.is_open(item) {
                continue;
            }
            return Err(reader.wrong("gpus", item, "a mapping"));
        };
        let mut request = all.clone();
        let mut count = None;
        for (key, node) in map.iter() {
            let field = format!("gpus.{}", key.text);
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
            return Err(reader.fault("gpus", item, "takes a count or device_ids, not both"));
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
