//! `jaco audit`: the audit log.

use std::{
    collections::BTreeMap,
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jaco_proto::{
    timestamp,
    v1::{self, AuditEventType, audit_client::AuditClient},
};
use serde::Serialize;

use super::{
    args::{ReadArgs, parse_duration},
    connection::{Client, within},
    failure::Stop,
    output::{
        Format, Ui, View, table,
        text::{enum_name, pairs, time},
    },
};

const DEADLINE: Duration = Duration::from_secs(30);
/// Column widths for typical content; rows are printed as they arrive, so they cannot be computed.
const WIDTHS: [usize; 3] = [32, 26, 20];
const PREFIX: &str = "AUDIT_EVENT_TYPE_";
/// A type that old records contain; no current version writes it.
const REBALANCE_DRY_RUN: i32 = 22;

/// Arguments of `audit`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show only events of this last period
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = parse_duration,
        allow_hyphen_values = true
    )]
    since: Option<Duration>,

    /// Show only these event types, comma-separated
    #[arg(
        long = "type",
        value_name = "TYPE,...",
        default_value = "",
        hide_default_value = true
    )]
    types: Types,

    /// Keep printing new events
    #[arg(short, long)]
    pub(crate) follow: bool,

    #[command(flatten)]
    pub(crate) read: ReadArgs,
}

/// Event types; empty for all.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Types(Vec<AuditEventType>);

impl FromStr for Types {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = text
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        names.map(parse_type).collect::<Result<_, _>>().map(Self)
    }
}

fn parse_type(name: &str) -> Result<AuditEventType, String> {
    let upper = name.to_ascii_uppercase();
    let full = if upper.starts_with(PREFIX) {
        upper
    } else {
        format!("{PREFIX}{upper}")
    };
    AuditEventType::from_str_name(&full)
        .filter(|&kind| kind != AuditEventType::Unspecified)
        .ok_or_else(|| format!("unknown audit type {name:?}"))
}

#[derive(Debug, Serialize)]
struct EventView {
    r#type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    identity: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<String>,
    raft_index: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    payload: BTreeMap<String, String>,
}

impl From<v1::AuditEvent> for EventView {
    fn from(event: v1::AuditEvent) -> Self {
        let kind = match AuditEventType::try_from(event.r#type) {
            Ok(kind) => enum_name(kind.as_str_name(), PREFIX),
            Err(_) if event.r#type == REBALANCE_DRY_RUN => "rebalance_dry_run".to_owned(),
            // Written by a newer daemon.
            Err(_) => format!("type_{}", event.r#type),
        };
        Self {
            r#type: kind,
            identity: event.identity,
            ts: event.ts.as_ref().map(time),
            raft_index: event.raft_index,
            payload: event.payload,
        }
    }
}

impl View for EventView {
    fn text(&self) -> String {
        let row = [
            self.r#type.clone(),
            self.ts.clone().unwrap_or_default(),
            self.identity.clone(),
            pairs(&self.payload),
        ];
        table::fixed(&row, &WIDTHS)
    }
}

/// All events as one list, for formats that need a closing bracket.
#[derive(Serialize)]
#[serde(transparent)]
struct EventsView(Vec<EventView>);

impl View for EventsView {
    fn text(&self) -> String {
        self.0.iter().map(View::text).collect()
    }
}

/// Prints events until the server ends the stream.
pub(crate) async fn run(args: &Args, client: &Client, ui: &mut Ui<'_>) -> Result<(), Stop> {
    let deadline = (!args.follow).then_some(DEADLINE);
    within(deadline, stream(args, client, ui, SystemTime::now())).await
}

async fn stream(
    args: &Args,
    client: &Client,
    ui: &mut Ui<'_>,
    now: SystemTime,
) -> Result<(), Stop> {
    let call = async |connection| {
        let request = v1::AuditQueryRequest {
            since: args
                .since
                .map(|ago| timestamp(now.checked_sub(ago).unwrap_or(UNIX_EPOCH))),
            until: None,
            types: args.types.0.iter().map(|&kind| kind.into()).collect(),
            follow: args.follow,
        };
        AuditClient::new(connection).query(request).await
    };
    let mut events = client.stream(call).await?;
    let collect = match ui.format {
        Format::Table => {
            let header = ["TYPE", "TS", "IDENTITY", "PAYLOAD"].map(str::to_owned);
            ui.write(&table::fixed(&header, &WIDTHS))?;
            false
        }
        Format::Json | Format::Yaml => !args.follow,
    };
    let mut all = Vec::new();
    while let Some(event) = events.next().await? {
        let event = EventView::from(event);
        if collect {
            all.push(event);
        } else {
            ui.item(&event)?;
        }
    }
    if collect {
        ui.data(&EventsView(all))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost_types::Timestamp;

    use super::*;
    use crate::client::fake::{self, Fake};

    #[test]
    fn types_are_short_or_full_in_any_case() {
        use AuditEventType::{Apply, Delete, NodeJoin};
        for (text, expected) in [
            ("", Some(vec![])),
            (
                "apply,NODE_JOIN,audit_event_type_delete",
                Some(vec![Apply, NodeJoin, Delete]),
            ),
            (" Apply , ,", Some(vec![Apply])),
            ("nope", None),
            ("apply,nope", None),
            ("unspecified", None),
            ("rebalance_dry_run", None),
        ] {
            assert_eq!(text.parse::<Types>().ok(), expected.map(Types), "{text}");
        }
    }

    fn event(kind: i32, payload: &[(&str, &str)]) -> v1::AuditEvent {
        v1::AuditEvent {
            r#type: kind,
            identity: "local".to_owned(),
            ts: Some(Timestamp {
                seconds: 60,
                nanos: 1,
            }),
            raft_index: 9,
            payload: payload
                .iter()
                .map(|&(k, v)| (k.to_owned(), v.to_owned()))
                .collect(),
            ..Default::default()
        }
    }

    async fn printed(format: Format, follow: bool, events: Vec<v1::AuditEvent>) -> String {
        let server = Fake::start().await;
        server.script(|script| script.audit = events);
        let args = Args {
            since: None,
            types: Types(vec![]),
            follow,
            read: ReadArgs::default(),
        };
        let (result, output) =
            fake::capture(format, async |ui| run(&args, &server.client(), ui).await).await;
        assert_eq!(result, Ok(()));
        output.out
    }

    #[tokio::test]
    async fn table_has_fixed_widths_and_full_payloads() {
        let long = "x".repeat(60);
        let events = vec![event(1, &[("revision", &long), ("deployment", "app")])];
        let row = format!(
            "{:<32}  {:<26}  {:<20}  deployment=app revision={long}",
            "apply", "1970-01-01T00:01:00Z", "local"
        );
        let header = format!("{:<32}  {:<26}  {:<20}  PAYLOAD", "TYPE", "TS", "IDENTITY");
        assert_eq!(
            printed(Format::Table, false, events).await,
            format!("{header}\n{row}\n")
        );
    }

    #[tokio::test]
    async fn json_and_yaml_are_one_list_without_follow() {
        assert_eq!(printed(Format::Json, false, vec![]).await, "[]\n");
        assert_eq!(printed(Format::Yaml, false, vec![]).await, "[]\n");
        assert_eq!(
            printed(Format::Json, false, vec![event(22, &[])]).await,
            "[\n  {\n    \"type\": \"rebalance_dry_run\",\n    \"identity\": \"local\",\n    \"ts\": \"1970-01-01T00:01:00Z\",\n    \"raft_index\": 9\n  }\n]\n"
        );
        assert_eq!(
            printed(Format::Yaml, false, vec![event(2, &[("deployment", "a")])]).await,
            "- type: delete\n  identity: local\n  ts: \"1970-01-01T00:01:00Z\"\n  raft_index: 9\n  payload:\n    deployment: a\n"
        );
    }

    #[tokio::test]
    async fn json_and_yaml_are_documents_with_follow() {
        let events = vec![event(1, &[]), event(99, &[])];
        let line = |kind| {
            format!(
                "{{\"type\":\"{kind}\",\"identity\":\"local\",\"ts\":\"1970-01-01T00:01:00Z\",\"raft_index\":9}}\n"
            )
        };
        let expected = line("apply") + &line("type_99");
        assert_eq!(printed(Format::Json, true, events.clone()).await, expected);
        assert_eq!(
            printed(Format::Yaml, true, events)
                .await
                .matches("---\ntype: ")
                .count(),
            2
        );
    }

    #[tokio::test]
    async fn since_becomes_an_absolute_time() {
        let server = Fake::start().await;
        let now = UNIX_EPOCH + Duration::from_secs(1000);
        for (since, expected) in [(None, None), (Some(600), Some(400)), (Some(2000), Some(0))] {
            let args = Args {
                since: since.map(Duration::from_secs),
                types: Types(vec![AuditEventType::Apply]),
                follow: false,
                read: ReadArgs::default(),
            };
            let (result, _) = fake::capture(Format::Json, async |ui| {
                stream(&args, &server.client(), ui, now).await
            })
            .await;
            assert_eq!(result, Ok(()));
            let asked = server.audit_queries().pop().unwrap();
            assert_eq!(asked.since.map(|since| since.seconds), expected);
            assert_eq!(asked.types, [1]);
        }
    }
}
