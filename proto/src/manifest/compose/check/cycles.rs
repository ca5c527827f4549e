//! Cycles in the dependencies of services.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Error, ErrorCode, manifest::fault::Located, yaml::Position};

/// Fails if services depend on each other in a cycle.
pub(super) fn check(mut edges: BTreeMap<&str, (BTreeSet<&str>, Position)>) -> Result<(), Error> {
    // Remove services without remaining dependencies until only cycles, and services that depend on
    // them, remain.
    let mut waiters: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, (targets, _)) in &edges {
        for target in targets {
            waiters.entry(target).or_default().push(name);
        }
    }
    let known: BTreeSet<&str> = edges.keys().copied().collect();
    for (targets, _) in edges.values_mut() {
        targets.retain(|target| known.contains(target));
    }
    let mut free: Vec<&str> = edges
        .iter()
        .filter(|(_, (targets, _))| targets.is_empty())
        .map(|(name, _)| *name)
        .collect();
    while let Some(name) = free.pop() {
        edges.remove(name);
        for waiter in waiters.get(name).into_iter().flatten() {
            if let Some((targets, _)) = edges.get_mut(waiter)
                && targets.remove(name)
                && targets.is_empty()
            {
                free.push(waiter);
            }
        }
    }
    // Every remaining service depends on another remaining one, so following the first edge ends in
    // a cycle.
    let Some(start) = edges.keys().next().copied() else {
        return Ok(());
    };
    let mut path = vec![start];
    let mut seen = BTreeMap::from([(start, 0)]);
    let mut next = start;
    while let Some(target) = edges.get(next).and_then(|(targets, _)| targets.first()) {
        next = target;
        if let Some(&from) = seen.get(next) {
            path.drain(..from);
            break;
        }
        seen.insert(next, path.len());
        path.push(next);
    }
    path.push(next);
    let cycle = path.join(" -> ");
    let message = format!("services wait for each other: {cycle}");
    let at = edges.get(next).map_or(Position::START, |(_, at)| *at);
    Err(Error::new(ErrorCode::InvalidDependsOn, message)
        .with("service", next)
        .with("cycle", cycle)
        .at(at))
}
