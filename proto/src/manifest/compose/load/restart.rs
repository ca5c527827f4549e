//! Restarts of containers that end, and the commands run after a start and before a stop.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    Error,
    manifest::compose::{
        Condition, Hook, Project, Restart, RestartCondition,
        keys::{HOOK, RESTART_POLICY},
        reader::Reader,
    },
    yaml::Node,
};

/// Largest number of restarts in a row that a service may ask for.
const MAX_ATTEMPTS: u32 = 1_000_000;
/// Longest delay before a restart.
const MAX_DELAY: Duration = Duration::from_secs(24 * 60 * 60);

const WANT: &str = "\"no\", always, unless-stopped or on-failure[:restarts]";

/// Reads `restart`.
pub(super) fn restart(reader: &Reader<'_>, node: &Node) -> Result<Option<Restart>, Error> {
    reader.parsed("restart", node, WANT, |text| {
        let (word, attempts) = match text.split_once(':') {
            Some((word, attempts)) => (word, Some(attempts)),
            None => (text, None),
        };
        let condition = match (word, attempts) {
            ("no", None) => RestartCondition::Never,
            ("always" | "unless-stopped", None) => RestartCondition::Always,
            ("on-failure", _) => RestartCondition::OnFailure,
            _ => return None,
        };
        let attempts = match attempts {
            Some(text) => Some(text.parse().ok().filter(|count| *count <= MAX_ATTEMPTS)?),
            None => None,
        };
        Some(Restart {
            condition,
            attempts: attempts.filter(|count| *count > 0),
            delay: None,
        })
    })
}

/// Reads `deploy.restart_policy`.
pub(super) fn policy(
    reader: &Reader<'_>,
    field: &str,
    node: &Node,
) -> Result<Option<Restart>, Error> {
    let Some(map) = reader.map(field, node, &RESTART_POLICY)? else {
        return Ok(None);
    };
    let mut policy = Restart::default();
    if let Some(node) = map.get("condition") {
        let words = [
            ("any", RestartCondition::Always),
            ("on-failure", RestartCondition::OnFailure),
            ("none", RestartCondition::Never),
            ("always", RestartCondition::Always),
            ("unless-stopped", RestartCondition::Always),
        ];
        let chosen = reader.choice(&format!("{field}.condition"), node, &words)?;
        policy.condition = chosen.unwrap_or_default();
    }
    if let Some(node) = map.get("delay") {
        let field = format!("{field}.delay");
        policy.delay = reader.duration(&field, node)?;
        if policy.delay.is_some_and(|delay| delay > MAX_DELAY) {
            return Err(reader.wrong(&field, node, "at most 24h"));
        }
    }
    if let Some(node) = map.get("max_attempts") {
        let field = format!("{field}.max_attempts");
        let attempts = reader.int_within(&field, node, 0..=i64::from(MAX_ATTEMPTS))?;
        let attempts = attempts.and_then(|attempts| u32::try_from(attempts).ok());
        policy.attempts = attempts.filter(|count| *count > 0);
    }
    if let Some(node) = map.get("window") {
        reader.duration(&format!("{field}.window"), node)?;
    }
    Ok(Some(policy))
}

/// Lets services whose completion others wait for end: without a policy of their own they start
/// again only after a failure, as compose starts no container again by default.
pub(super) fn let_complete(project: &mut Project) {
    let services = project.services.values();
    let dependencies = services.flat_map(|service| &service.depends_on);
    let awaited: BTreeSet<String> = dependencies
        .filter(|(_, it)| it.condition == Condition::ServiceCompletedSuccessfully)
        .map(|(name, _)| name.clone())
        .collect();
    for name in awaited {
        if let Some(service) = project.services.get_mut(&name) {
            service.restart.get_or_insert(Restart {
                condition: RestartCondition::OnFailure,
                ..Restart::default()
            });
        }
    }
}

/// Reads `post_start` or `pre_stop`.
pub(super) fn hooks(reader: &Reader<'_>, field: &str, node: &Node) -> Result<Vec<Hook>, Error> {
    let items = reader.seq(field, node)?.iter();
    items.map(|item| hook(reader, field, item)).collect()
}

fn hook(reader: &Reader<'_>, field: &str, node: &Node) -> Result<Hook, Error> {
    let Some(map) = reader.map(field, node, &HOOK)? else {
        return match reader.is_open(node) {
            true => Ok(Hook::default()),
            false => Err(reader.wrong(field, node, "a mapping")),
        };
    };
    let mut hook = Hook::default();
    for (key, node) in map.iter() {
        let field = format!("{field}.{}", key.text);
        match key.text.as_str() {
            "command" => hook.command = reader.command(&field, node)?.unwrap_or_default(),
            "user" => hook.user = reader.name(&field, node)?,
            "privileged" => hook.privileged = reader.boolean(&field, node)?.unwrap_or(false),
            "working_dir" => hook.working_dir = reader.name(&field, node)?,
            "environment" => hook.environment = reader.dict(&field, node)?.into(),
            _ => {}
        }
    }
    if hook.command.is_empty() && !reader.is_open_in(map, "command") {
        return Err(reader.fault(field, node, "needs a command"));
    }
    Ok(hook)
}
