//! Compares the compiled contract with `contract.tsv`, entry by entry in both directions.
//!
//! The table is the contract: released clients depend on every row marked `base`, so those must not
//! change. Rows marked `added` are extensions with numbers that the base never uses. A change of
//! the .proto files without a change of the table fails here, and vice versa.

use std::collections::{BTreeMap, BTreeSet};

use jaco_proto::FILE_DESCRIPTOR_SET;
use prost::Message;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto,
    FileDescriptorSet, MethodDescriptorProto,
    field_descriptor_proto::{Label, Type},
};

const TABLE: &str = include_str!("contract.tsv");
const PACKAGE: &str = "jaco.v1";
const FILES: [&str; 9] = [
    "commands", "entities", "error", "events", "fsm", "hosting", "network", "platform", "services",
];
/// First number of entries that extend base messages and enums.
const FIRST_ADDED: i32 = 1000;

#[test]
fn compiled_contract_equals_the_table() {
    let compiled = compiled_rows(&contract_files());
    let table: BTreeSet<String> = table().into_iter().map(|row| row.entry).collect();

    assert_eq!(difference(&table, &compiled), Vec::<String>::new());
}

#[test]
fn base_contract_has_its_known_size() {
    let base: Vec<Row> = table().into_iter().filter(|row| !row.added).collect();
    let count = |kind: &str| base.iter().filter(|row| row.kind() == kind).count();
    let services: BTreeSet<&str> = base
        .iter()
        .filter(|row| row.kind() == "method")
        .map(Row::owner)
        .collect();

    assert_eq!(services.len(), 7);
    assert_eq!(count("method"), 29);
    assert_eq!(count("message"), 133);
    assert_eq!(count("enum"), 9);
}

#[test]
fn extensions_use_only_reserved_numbers() {
    let table = table();
    let owner_added: BTreeMap<&str, bool> = table
        .iter()
        .filter(|row| matches!(row.kind(), "message" | "enum"))
        .map(|row| (row.owner(), row.added))
        .collect();

    for row in table
        .iter()
        .filter(|row| matches!(row.kind(), "field" | "value"))
    {
        let number: i32 = row.number().parse().expect("number");
        if owner_added[row.owner()] {
            assert!(row.added, "{row:?}: part of an extension");
        } else {
            assert_eq!(row.added, number >= FIRST_ADDED, "{row:?}");
        }
    }
}

#[test]
fn every_file_is_proto3_in_one_package() {
    let files = contract_files();
    let names: Vec<&str> = files.iter().map(FileDescriptorProto::name).collect();

    assert_eq!(names, FILES.map(|name| format!("jaco/v1/{name}.proto")));
    for file in &files {
        assert_eq!(file.syntax(), "proto3", "{}", file.name());
        assert_eq!(file.package(), PACKAGE, "{}", file.name());
        assert!(file.extension.is_empty(), "{}", file.name());
        assert!(file.public_dependency.is_empty(), "{}", file.name());
    }
}

#[test]
fn changed_contract_is_detected() {
    let original = contract_files();
    let table = compiled_rows(&original);
    let changes: [(&str, Change); 8] = [
        ("a field type", |file| {
            file.message_type[0].field[0].set_type(Type::Sint64)
        }),
        ("a field number", |file| {
            file.message_type[0].field[0].number = Some(77)
        }),
        ("a field name", |file| {
            file.message_type[0].field[0].name = Some("renamed".into())
        }),
        ("a new message", |file| {
            file.message_type.push(DescriptorProto {
                name: Some("Extra".into()),
                ..Default::default()
            })
        }),
        ("an enum value", |file| {
            file.enum_type[0].value[1].number = Some(77)
        }),
        ("a reserved name", |file| {
            file.message_type
                .iter_mut()
                .for_each(|message| message.reserved_name.clear())
        }),
        ("a reserved enum number", |file| {
            file.enum_type
                .iter_mut()
                .for_each(|item| item.reserved_range.clear())
        }),
        ("an import", |file| file.dependency.clear()),
    ];

    for (what, change) in changes {
        let mut files = original.clone();
        let entities = files
            .iter_mut()
            .find(|file| file.name() == "jaco/v1/entities.proto")
            .expect("entities");
        change(entities);
        let found = difference(&table, &compiled_rows(&files));
        assert!(!found.is_empty(), "{what} is not detected");
    }
}

type Change = fn(&mut FileDescriptorProto);

/// One line of the table.
#[derive(Debug)]
struct Row {
    /// All columns but the last.
    entry: String,
    /// Whether the entry extends the base contract.
    added: bool,
}

impl Row {
    fn column(&self, index: usize) -> &str {
        self.entry.split('\t').nth(index).expect("column")
    }

    fn kind(&self) -> &str {
        self.column(0)
    }

    fn owner(&self) -> &str {
        self.column(1)
    }

    fn number(&self) -> &str {
        self.column(2)
    }
}

fn table() -> Vec<Row> {
    let rows: Vec<Row> = TABLE
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| {
            let (entry, origin) = line.rsplit_once('\t').expect("columns");
            assert_eq!(entry.split('\t').count(), 6, "{line}");
            assert!(matches!(origin, "base" | "added"), "{line}");
            Row {
                entry: entry.to_owned(),
                added: origin == "added",
            }
        })
        .collect();
    let distinct: BTreeSet<&str> = rows.iter().map(|row| row.entry.as_str()).collect();
    assert_eq!(distinct.len(), rows.len(), "an entry is listed twice");
    rows
}

fn difference(table: &BTreeSet<String>, compiled: &BTreeSet<String>) -> Vec<String> {
    let missing = table
        .difference(compiled)
        .map(|row| format!("not compiled: {row}"));
    let extra = compiled
        .difference(table)
        .map(|row| format!("not in the table: {row}"));
    missing.chain(extra).collect()
}

fn contract_files() -> Vec<FileDescriptorProto> {
    let mut files: Vec<FileDescriptorProto> = FileDescriptorSet::decode(FILE_DESCRIPTOR_SET)
        .expect("descriptor set")
        .file
        .into_iter()
        .filter(|file| file.package() != "google.protobuf")
        .collect();
    files.sort_by(|a, b| a.name().cmp(b.name()));
    files
}

fn compiled_rows(files: &[FileDescriptorProto]) -> BTreeSet<String> {
    let mut rows = BTreeSet::new();
    for file in files {
        for import in &file.dependency {
            rows.insert(row(["import", file.name(), "", import, "", ""]));
        }
        for message in &file.message_type {
            message_rows(&mut rows, file.name(), "", message);
        }
        for item in &file.enum_type {
            enum_rows(&mut rows, file.name(), "", item);
        }
        for service in &file.service {
            for method in &service.method {
                rows.insert(method_row(service.name(), method));
            }
        }
    }
    rows
}

fn row(columns: [&str; 6]) -> String {
    columns.join("\t")
}

fn message_rows(rows: &mut BTreeSet<String>, file: &str, scope: &str, message: &DescriptorProto) {
    let name = format!("{scope}{}", message.name());
    rows.insert(row(["message", &name, "", file, "", ""]));
    for field in &message.field {
        rows.insert(field_row(&name, message, field));
    }
    for range in &message.reserved_range {
        // The end of a message range is exclusive.
        for number in range.start()..range.end() {
            rows.insert(row(["reserved", &name, &number.to_string(), "", "", ""]));
        }
    }
    for reserved in &message.reserved_name {
        rows.insert(row(["reserved", &name, "", reserved, "", ""]));
    }
    let scope = format!("{name}.");
    for nested in message.nested_type.iter().filter(|nested| !is_map(nested)) {
        message_rows(rows, file, &scope, nested);
    }
    for item in &message.enum_type {
        enum_rows(rows, file, &scope, item);
    }
}

fn enum_rows(rows: &mut BTreeSet<String>, file: &str, scope: &str, item: &EnumDescriptorProto) {
    let name = format!("{scope}{}", item.name());
    rows.insert(row(["enum", &name, "", file, "", ""]));
    for value in &item.value {
        let number = value.number().to_string();
        rows.insert(row(["value", &name, &number, value.name(), "", ""]));
    }
    for range in &item.reserved_range {
        // The end of an enum range is inclusive.
        for number in range.start()..=range.end() {
            rows.insert(row(["reserved", &name, &number.to_string(), "", "", ""]));
        }
    }
    for reserved in &item.reserved_name {
        rows.insert(row(["reserved", &name, "", reserved, "", ""]));
    }
}

fn field_row(owner: &str, message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    let map = message
        .nested_type
        .iter()
        .filter(|nested| is_map(nested))
        .find(|nested| {
            field
                .type_name()
                .ends_with(&format!("{owner}.{}", nested.name()))
        });
    let (type_name, label) = match map {
        Some(entry) => {
            let [key, value] = &entry.field[..] else {
                panic!("{owner}.{}: not a map entry", entry.name());
            };
            (
                format!("map<{},{}>", type_name(key), type_name(value)),
                "map".to_owned(),
            )
        }
        None => (type_name(field), label(message, field)),
    };
    let number = field.number().to_string();
    row(["field", owner, &number, field.name(), &type_name, &label])
}

fn label(message: &DescriptorProto, field: &FieldDescriptorProto) -> String {
    if field.proto3_optional() {
        return "optional".to_owned();
    }
    if let Some(index) = field.oneof_index {
        let oneof = &message.oneof_decl[usize::try_from(index).expect("index")];
        return format!("oneof {}", oneof.name());
    }
    match field.label() {
        Label::Optional => "one".to_owned(),
        Label::Required => "required".to_owned(),
        Label::Repeated if is_packed(field) => "packed".to_owned(),
        Label::Repeated => "repeated".to_owned(),
    }
}

/// Whether a list is packed: in proto3 numbers and enums are, unless an option overrides it.
fn is_packed(field: &FieldDescriptorProto) -> bool {
    let packable = !matches!(
        field.r#type(),
        Type::String | Type::Bytes | Type::Message | Type::Group
    );
    let forbidden = field
        .options
        .as_ref()
        .is_some_and(|options| options.packed == Some(false));
    packable && !forbidden
}

fn type_name(field: &FieldDescriptorProto) -> String {
    let short = || {
        let name = field.type_name();
        match name.strip_prefix(&format!(".{PACKAGE}.")) {
            Some(local) => local.to_owned(),
            None if name == ".google.protobuf.Timestamp" => "Timestamp".to_owned(),
            None => panic!("{name}: foreign type"),
        }
    };
    match field.r#type() {
        Type::Message => short(),
        Type::Enum => format!("enum {}", short()),
        scalar => scalar
            .as_str_name()
            .trim_start_matches("TYPE_")
            .to_ascii_lowercase(),
    }
}

fn is_map(message: &DescriptorProto) -> bool {
    message
        .options
        .as_ref()
        .is_some_and(|options| options.map_entry())
}

fn method_row(service: &str, method: &MethodDescriptorProto) -> String {
    let local = |name: &str| {
        name.strip_prefix(&format!(".{PACKAGE}."))
            .expect("message of the package")
            .to_owned()
    };
    let streams = match (method.client_streaming(), method.server_streaming()) {
        (false, false) => "-",
        (false, true) => "server",
        (true, false) => "client",
        (true, true) => "both",
    };
    let types = format!(
        "{} -> {}",
        local(method.input_type()),
        local(method.output_type())
    );
    row(["method", service, "", method.name(), &types, streams])
}
