//! `secrets` of `jaco.yaml`: environment variables whose values the cluster keeps sealed.
//!
//! The file holds a template per name, as `${VARIABLE}`. The client resolves it and sends the value
//! beside the file, so that the stored file never holds one.

use std::collections::{BTreeMap, BTreeSet};

use super::{FILE, Override, Spanned};
use crate::{
    Error, ErrorCode,
    manifest::{
        fault::{Located, invalid, suggestion},
        template::{ExpandError, expand},
    },
    secret::SecretString,
    yaml::Position,
};

/// Limit of the secrets of a deployment.
pub const MAX_SECRETS: usize = 200;
/// Limit of the value of a secret, in bytes.
pub const MAX_VALUE: usize = 64 << 10;
/// Limit of the name of a secret, in bytes.
pub const MAX_NAME: usize = 64;

/// Whether a secret can have this name: upper-case letters, digits and `_`, no digit first.
#[must_use]
pub fn is_name(name: &str) -> bool {
    let inner = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    !name.is_empty()
        && name.len() <= MAX_NAME
        && name.chars().all(inner)
        && !name.starts_with(|c: char| c.is_ascii_digit())
}

/// Fails if a secret cannot have this name.
///
/// # Errors
/// `validation_failed`.
pub fn check_name(name: &str) -> Result<(), Error> {
    if is_name(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(MAX_NAME).collect();
    let message = format!(
        "secret {shown:?} is no name of an environment variable: write at most {MAX_NAME} upper-case \
         letters, digits and _, no digit first"
    );
    Err(invalid(message)
        .with("field", "secrets")
        .with("value", shown))
}

/// Fails if a container cannot have this value in its environment.
///
/// # Errors
/// `validation_failed`; the error does not hold the value.
pub fn check_value(name: &str, value: &[u8]) -> Result<(), Error> {
    let fail = |message: String| Err(invalid(message).with("field", "secrets").with("name", name));
    if value.len() > MAX_VALUE {
        let bytes = value.len();
        return fail(format!(
            "the value of secret {name:?} has {bytes} bytes, more than {MAX_VALUE}"
        ));
    }
    if value.contains(&0) || std::str::from_utf8(value).is_err() {
        return fail(format!(
            "the value of secret {name:?} is no text, which an environment variable has to be"
        ));
    }
    Ok(())
}

pub(super) fn check(
    raw: Vec<(Spanned<String>, Spanned<String>)>,
) -> Result<BTreeMap<String, Spanned<String>>, Error> {
    if raw.len() > MAX_SECRETS {
        let message = format!(
            "{} secrets are declared, more than {MAX_SECRETS}",
            raw.len()
        );
        let at = raw.last().map_or(Position::START, |(name, _)| name.at);
        return Err(invalid(message)
            .with("field", "secrets")
            .with("limit", MAX_SECRETS)
            .at(at));
    }
    let mut secrets = BTreeMap::new();
    for (name, template) in raw {
        check_name(&name).map_err(|error| error.at(name.at))?;
        if template.is_empty() {
            let name_text = &name.value;
            let message = format!(
                "secret {name_text:?} has no value: write {name_text}: ${{{name_text}}} to take it \
                 from the environment"
            );
            return Err(invalid(message)
                .with("field", format!("secrets.{name_text}"))
                .at(name.at));
        }
        expanded(&template, &|_| Some("x".to_owned())).map_err(|fault| {
            invalid(format!("secret {:?}: {fault}", name.value))
                .with("field", format!("secrets.{}", name.value))
                .at(template.at)
        })?;
        secrets.insert(name.value, template);
    }
    Ok(secrets)
}

/// Fails if a service names a secret that is not declared.
pub(super) fn check_users(
    services: &[Override],
    declared: &BTreeMap<String, Spanned<String>>,
) -> Result<(), Error> {
    for service in services {
        for name in service.secrets.iter().flatten() {
            if declared.contains_key(&name.value) {
                continue;
            }
            let near = suggestion(name, declared.keys().map(String::as_str));
            let message = format!(
                "service {:?} names secret {:?}, which is not declared in secrets{near}",
                service.name.value, name.value
            );
            return Err(invalid(message)
                .with("field", "services.secrets")
                .with("service", &service.name.value)
                .with("value", &name.value)
                .at(name.at));
        }
    }
    Ok(())
}

/// Whether a template is its value, which then stands in the stored file.
pub(in crate::manifest) fn is_literal(template: &str) -> bool {
    let mut uses = false;
    let lookup = |_: &str| None;
    let result = expand(template, &lookup, &mut |_| uses = true);
    !uses && result.is_ok_and(|value| value == template.replace("$$", "$"))
}

fn expanded(
    template: &str,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<(SecretString, BTreeSet<String>), ExpandError> {
    let mut unset = BTreeSet::new();
    let value = expand(template, lookup, &mut |name| {
        unset.insert(name.to_owned());
    })?;
    Ok((SecretString::new(value), unset))
}

/// Returns the values of secrets, with the variables of `lookup`.
///
/// # Errors
/// `secret_unresolved` with the names of all secrets whose variables are not set, and the error of the
/// first value that a container cannot have.
pub fn resolve(
    secrets: &BTreeMap<String, Spanned<String>>,
    lookup: &dyn Fn(&str) -> Option<String>,
) -> Result<BTreeMap<String, SecretString>, Error> {
    let mut values = BTreeMap::new();
    let mut unresolved: Vec<(&str, String, Position)> = Vec::new();
    for (name, template) in secrets {
        match expanded(template, lookup) {
            Ok((value, unset)) if unset.is_empty() => {
                check_value(name, value.expose().as_bytes())
                    .map_err(|error| error.with("file", FILE).at(template.at))?;
                values.insert(name.clone(), value);
            }
            Ok((_, unset)) => {
                let unset: Vec<String> = unset.into_iter().collect();
                let why = format!("{} is not set", unset.join(", "));
                unresolved.push((name, why, template.at));
            }
            Err(fault) => unresolved.push((name, fault.to_string(), template.at)),
        }
    }
    let Some((_, _, at)) = unresolved.first() else {
        return Ok(values);
    };
    let names: Vec<&str> = unresolved.iter().map(|(name, ..)| *name).collect();
    let reasons = unresolved.iter();
    let reasons: Vec<String> = reasons
        .map(|(name, why, _)| format!("secret {name:?}: {why}"))
        .collect();
    let message = format!(
        "{}: export the variables, or put them into a file for --env-file",
        reasons.join("; ")
    );
    Err(Error::new(ErrorCode::SecretUnresolved, message)
        .with("names", names.join(","))
        .with("file", FILE)
        .at(*at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::jaco::Jaco;

    const HEAD: &str = "deployment: shop\n";

    fn parse(text: &str) -> Result<Jaco, Error> {
        Jaco::parse(format!("{HEAD}{text}").as_bytes())
    }

    fn lookup(name: &str) -> Option<String> {
        let known = [("SET", "s3cret"), ("EMPTY", "")];
        let found = known.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    }

    #[test]
    fn names_and_templates_are_checked() {
        let long = format!("secrets: {{{}: x}}\n", "A".repeat(65));
        let rows = [
            ("secrets: {A: \"${A}\", _B1: x}\n", None),
            ("secrets: {}\n", None),
            ("secrets:\n", None),
            ("secrets: {a: \"${A}\"}\n", Some("is no name")),
            ("secrets: {1A: \"${A}\"}\n", Some("is no name")),
            ("secrets: {A-B: \"${A}\"}\n", Some("is no name")),
            (&long, Some("is no name")),
            ("secrets: {A: }\n", Some("write A: ${A}")),
            ("secrets: {A: \"${A\"}\n", Some("Invalid template")),
            ("secrets: [A]\n", Some("must be a mapping")),
            ("secrets: {A: [x]}\n", Some("must be a string")),
            (
                "secrets: {A: x}\nservices: [{name: web, secrets: [B]}]\n",
                Some("not declared"),
            ),
        ];
        for (text, expected) in rows {
            let result = parse(text);
            match expected {
                None => assert!(result.is_ok(), "{text}: {result:?}"),
                Some(expected) => {
                    let message = result.expect_err(text).message;
                    assert!(message.contains(expected), "{text}: {message}");
                }
            }
        }
    }

    #[test]
    fn number_of_secrets_is_limited() {
        let secrets = |count: usize| {
            let lines = (0..count).map(|at| format!("  A{at}: x\n"));
            format!("secrets:\n{}", lines.collect::<String>())
        };
        assert!(parse(&secrets(MAX_SECRETS)).is_ok());
        let error = parse(&secrets(MAX_SECRETS + 1)).unwrap_err();
        assert_eq!(error.details["limit"], "200");
    }

    #[test]
    fn empty_list_of_a_service_is_no_default() {
        let jaco = "secrets: {A: x}\nservices: [{name: a, secrets: []}, {name: b}]\n";
        let jaco = parse(jaco).unwrap();
        assert_eq!(jaco.services[0].secrets, Some(vec![]));
        assert_eq!(jaco.services[1].secrets, None);
    }

    #[test]
    fn templates_resolve_like_those_of_compose() {
        let text = "secrets: {A: \"${SET}\", B: \"${UNSET:-b}\", C: \"x$$y\", D: \"${EMPTY-d}\"}\n";
        let values = resolve(&parse(text).unwrap().secrets, &lookup).unwrap();
        let values: Vec<(&str, &str)> = values
            .iter()
            .map(|(name, value)| (name.as_str(), value.expose()))
            .collect();
        assert_eq!(
            values,
            [("A", "s3cret"), ("B", "b"), ("C", "x$y"), ("D", "")]
        );
    }

    #[test]
    fn all_unset_variables_are_reported() {
        let text = "secrets: {A: \"${SET}\", B: \"${UNSET}\", C: \"${EMPTY:?give it}\"}\n";
        let error = resolve(&parse(text).unwrap().secrets, &lookup).unwrap_err();
        assert_eq!(error.code, ErrorCode::SecretUnresolved);
        assert_eq!(error.details["names"], "B,C");
        assert!(
            error.message.contains("UNSET is not set"),
            "{}",
            error.message
        );
        assert!(error.message.contains("give it"), "{}", error.message);
        assert!(!error.message.contains("s3cret"));
    }

    #[test]
    fn values_fit_an_environment() {
        assert!(check_value("A", "ä".as_bytes()).is_ok());
        assert!(check_value("A", &vec![b'x'; MAX_VALUE]).is_ok());
        for value in [vec![b'x'; MAX_VALUE + 1], b"a\0b".to_vec(), vec![0xff]] {
            assert!(check_value("A", &value).is_err());
        }
    }

    #[test]
    fn only_text_without_variables_is_literal() {
        for (template, expected) in [
            ("x", true),
            ("x$$y", true),
            ("${A}", false),
            ("$A", false),
            ("${A:-x}", false),
            ("${A:?x}", false),
            ("${A+x}", false),
        ] {
            assert_eq!(is_literal(template), expected, "{template}");
        }
    }
}
