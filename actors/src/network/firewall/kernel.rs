//! The packet filter of this network namespace as a port.

use std::{
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{StreamExt as _, stream, stream::BoxStream};
use jaco_engine::cidr::Cidr;
use jaco_net::firewall as nft;
use jaco_policy::network::{
    firewall::{
        core::Applied,
        exemptions::{
            ChainRule, ENGINE_CHAIN, Exemption, ExemptionRule, Outcome, Write, plan, removal,
        },
        ruleset::{Attachment, Base, Chain, Elements, Rule, Ruleset, Selection, Set, Span},
    },
    probe::drops::{DropReason, DropTotals, Drops},
};
use jaco_proto::chain;

use super::FirewallPort;

/// Hooks by their numbers in `linux/netfilter.h`.
const HOOKS: [&str; 5] = ["prerouting", "input", "forward", "output", "postrouting"];

/// The packet filter of the one network namespace in which it is used.
#[derive(Debug, Default)]
pub struct KernelPort {
    /// Held by each use, so that a batch of an instance that was killed does not follow one of its
    /// successor.
    turn: Mutex<Turn>,
}

/// State that each use of the packet filter leaves to the next one.
#[derive(Debug, Default)]
struct Turn {
    found: Option<Found>,
    drops: DropTotals,
}

/// The table when it was last read, which it still is while no table has changed.
#[derive(Debug)]
struct Found {
    generation: u32,
    ruleset: Option<Ruleset>,
}

impl KernelPort {
    fn turn(&self) -> MutexGuard<'_, Turn> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn exempt_in(exemption: Exemption, pool: Cidr, accepts: bool) -> Result<Outcome, nft::Error> {
        let (table, chain) = exemption.chain();
        let wanted = (accepts || !exemption.accepts())
            && (exemption != Exemption::Forwarding || must_forward()?);
        let Some(found) = nft::read_chain(table, chain)? else {
            return Ok(match nft::is_legacy_table(table) {
                _ if !wanted => Outcome::InPlace,
                true => Outcome::Legacy,
                false => Outcome::NoChain,
            });
        };
        let found: Vec<ChainRule> = found.iter().map(chain_rule).collect();
        let rules = exemption.rules(pool);
        let writes = match wanted {
            true => plan(&rules, &found),
            false => removal(&rules, &found),
        };
        if writes.is_empty() {
            return Ok(Outcome::InPlace);
        }
        let edits: Vec<nft::Edit> = writes.iter().map(edit).collect();
        nft::edit_chain(table, chain, &edits)?;
        Ok(if wanted {
            Outcome::Written
        } else {
            Outcome::Removed
        })
    }
}

/// Whether an engine writes rules and has no chain for those of others.
fn must_forward() -> Result<bool, nft::Error> {
    let (table, chain) = Exemption::InterNetwork.chain();
    Ok(nft::read_chain(table, chain)?.is_none() && nft::read_chain(table, ENGINE_CHAIN)?.is_some())
}

impl FirewallPort for KernelPort {
    fn read(&self) -> Result<Option<Ruleset>, String> {
        let mut turn = self.turn();
        let last = &mut turn.found;
        let known = last.as_ref().map(|found| found.generation);
        let reading = nft::read_table_unless(known).map_err(|error| chain(&error).to_string())?;
        if let Some(reading) = reading {
            *last = Some(Found {
                generation: reading.generation,
                ruleset: reading.table.map(ruleset),
            });
        }
        Ok(last.as_ref().and_then(|found| found.ruleset.clone()))
    }

    fn apply(&self, ruleset: &Ruleset) -> Result<Applied, String> {
        let mut turn = self.turn();
        // The counters end with the table. It is replaced also if they cannot be read.
        if let Ok(read) = nft::read_drops() {
            turn.drops.handle_reading(drops(read));
        }
        nft::replace_table(&table(ruleset)).map_err(|error| chain(&error).to_string())?;
        turn.drops.handle_replaced();
        let known = turn.found.as_ref().map(|found| found.generation);
        let only = known.map(nft::is_only_change_since);
        Ok(match only {
            Some(Ok(true)) => Applied::Undisturbed,
            Some(Ok(false) | Err(_)) | None => Applied::Disturbed,
        })
    }

    fn drops(&self) -> Result<Drops, String> {
        let mut turn = self.turn();
        let read = nft::read_drops().map_err(|error| chain(&error).to_string())?;
        turn.drops.handle_reading(drops(read));
        Ok(turn.drops.totals().clone())
    }

    fn exempt(&self, pool: Cidr, accepts: bool) -> Vec<(Exemption, Outcome)> {
        let _turn = self.turn();
        let outcome = |exemption| {
            let outcome = Self::exempt_in(exemption, pool, accepts);
            let failed = |error| Outcome::Failed(chain(&error).to_string());
            (exemption, outcome.unwrap_or_else(failed))
        };
        Exemption::ALL.into_iter().map(outcome).collect()
    }

    fn cut_flows(&self, ruleset: &Ruleset) -> Result<Option<usize>, String> {
        match nft::cut_flows(|from, to| ruleset.forbids(from, to)) {
            Ok(cut) => Ok(Some(cut)),
            Err(nft::Error::NoConntrack) => Ok(None),
            Err(error) => Err(chain(&error).to_string()),
        }
    }

    fn changes(&self) -> Result<BoxStream<'static, ()>, String> {
        let changes = nft::AsyncChanges::subscribe();
        let changes = changes.map_err(|error| chain(&error).to_string())?;
        let next = |changes: nft::AsyncChanges| async {
            changes.wait().await.ok()?;
            Some(((), changes))
        };
        Ok(stream::unfold(changes, next).boxed())
    }
}

fn drops(read: nft::RuleDrops) -> Drops {
    [
        (DropReason::ForgedSource, read.unrouted),
        (DropReason::OutsideMesh, read.outside),
    ]
    .into()
}

/// Contents of the kernel's table as a value of the core.
fn ruleset(table: nft::Table) -> Ruleset {
    let span = |(first, last)| Span { first, last };
    let selection = |(ends, chain)| Selection {
        span: span(ends),
        chain,
    };
    let attachment = |(address, interface)| Attachment { address, interface };
    let set = |set: nft::Set| Set {
        name: set.name,
        elements: match set.elements {
            nft::Elements::Intervals(list) => Elements::Spans(list.into_iter().map(span).collect()),
            nft::Elements::Chains(list) => {
                Elements::Selections(list.into_iter().map(selection).collect())
            }
            nft::Elements::Interfaces(list) => {
                Elements::Attachments(list.into_iter().map(attachment).collect())
            }
            nft::Elements::Other => Elements::Foreign,
        },
    };
    let rule = |rule| match rule {
        nft::Rule::AcceptAttached(set) => Rule::AcceptAttached(set),
        nft::Rule::DropUnrouted(set) => Rule::DropUnrouted(set),
        nft::Rule::DropOutside { from, to } => Rule::DropOutside { from, to },
        nft::Rule::DropSentOutside(set) => Rule::DropSentOutside(set),
        nft::Rule::AcceptEstablished => Rule::AcceptEstablished,
        nft::Rule::Select(map) => Rule::Select(map),
        nft::Rule::AcceptTo(set) => Rule::AcceptTo(set),
        nft::Rule::AcceptFrom(set) => Rule::AcceptFrom(set),
        nft::Rule::DropFrom(set) => Rule::DropFrom(set),
        nft::Rule::DropWithin(set) => Rule::DropWithin(set),
        nft::Rule::Foreign => Rule::Foreign,
    };
    let base = |base: nft::Base| Base {
        kind: base.kind,
        hook: usize::try_from(base.hook)
            .ok()
            .and_then(|hook| HOOKS.get(hook))
            .map_or_else(|| base.hook.to_string(), ToString::to_string),
        priority: base.priority,
        policy: if base.accepts { "accept" } else { "drop" }.to_owned(),
    };
    let chain = |chain: nft::Chain| Chain {
        name: chain.name,
        base: chain.base.map(base),
        rules: chain.rules.into_iter().map(rule).collect(),
    };
    Ruleset {
        flags: table.flags,
        sets: table.sets.into_iter().map(set).collect(),
        chains: table.chains.into_iter().map(chain).collect(),
    }
}

/// The kernel's table with the contents of `ruleset`.
fn table(ruleset: &Ruleset) -> nft::Table {
    let span = |span: &Span| (span.first, span.last);
    let selection = |held: &Selection| (span(&held.span), Arc::clone(&held.chain));
    let attachment = |held: &Attachment| (held.address, held.interface.clone());
    let set = |set: &Set| nft::Set {
        name: set.name.clone(),
        elements: match &set.elements {
            Elements::Spans(list) => nft::Elements::Intervals(list.iter().map(span).collect()),
            Elements::Selections(list) => {
                nft::Elements::Chains(list.iter().map(selection).collect())
            }
            Elements::Attachments(list) => {
                nft::Elements::Interfaces(list.iter().map(attachment).collect())
            }
            Elements::Foreign => nft::Elements::Other,
        },
    };
    let rule = |rule: &Rule| match rule {
        Rule::AcceptAttached(set) => nft::Rule::AcceptAttached(set.clone()),
        Rule::DropUnrouted(set) => nft::Rule::DropUnrouted(set.clone()),
        Rule::DropOutside { from, to } => nft::Rule::DropOutside {
            from: from.clone(),
            to: to.clone(),
        },
        Rule::DropSentOutside(set) => nft::Rule::DropSentOutside(set.clone()),
        Rule::AcceptEstablished => nft::Rule::AcceptEstablished,
        Rule::Select(map) => nft::Rule::Select(map.clone()),
        Rule::AcceptTo(set) => nft::Rule::AcceptTo(set.clone()),
        Rule::AcceptFrom(set) => nft::Rule::AcceptFrom(set.clone()),
        Rule::DropFrom(set) => nft::Rule::DropFrom(set.clone()),
        Rule::DropWithin(set) => nft::Rule::DropWithin(set.clone()),
        Rule::Foreign => nft::Rule::Foreign,
    };
    let base = |base: &Base| nft::Base {
        kind: base.kind.clone(),
        hook: (0..)
            .zip(HOOKS)
            .find(|(_, hook)| *hook == base.hook)
            .map_or(u32::MAX, |(number, _)| number),
        priority: base.priority,
        accepts: base.policy == "accept",
    };
    let chain = |chain: &Chain| nft::Chain {
        name: chain.name.clone(),
        base: chain.base.as_ref().map(base),
        rules: chain.rules.iter().map(rule).collect(),
    };
    nft::Table {
        flags: ruleset.flags,
        sets: ruleset.sets.iter().map(set).collect(),
        chains: ruleset.chains.iter().map(chain).collect(),
    }
}

fn chain_rule(found: &nft::ChainRule) -> ChainRule {
    let cidr = |(address, prefix): (Ipv4Addr, u8)| Cidr::new(address, prefix).ok();
    let rule = found.rule.and_then(|rule| {
        Some(ExemptionRule {
            source: cidr(rule.source)?,
            destination: cidr(rule.destination)?,
            returns: rule.returns,
        })
    });
    ChainRule {
        handle: found.handle,
        rule,
    }
}

fn edit(write: &Write) -> nft::Edit {
    match write {
        Write::Delete(handle) => nft::Edit::Delete(*handle),
        Write::InsertFirst(rule) => nft::Edit::InsertFirst(nft::PairRule {
            source: (rule.source.network(), rule.source.prefix()),
            destination: (rule.destination.network(), rule.destination.prefix()),
            returns: rule.returns,
        }),
    }
}
