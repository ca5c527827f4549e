//! The domains with a certificate, and the contact of each.

use std::collections::BTreeMap;

use jaco_proto::v1;
use jaco_state::State;

/// Domains with a route that asks for a certificate, and the contact of the account that orders it.
///
/// The contact is that of the deployment with the smallest name that has one, else `fallback`,
/// which may be empty for none.
#[must_use]
pub fn wanted(state: &State, fallback: &str) -> BTreeMap<String, String> {
    let mut deployments: BTreeMap<&str, Option<(&str, &str)>> = BTreeMap::new();
    for route in asking(state) {
        let best = deployments.entry(&route.domain).or_default();
        let contact = state
            .deployments
            .get(&route.deployment)
            .map(|deployment| deployment.acme_email.as_str())
            .filter(|contact| !contact.is_empty());
        if let Some(contact) = contact
            && best.is_none_or(|(name, _)| route.deployment.as_str() < name)
        {
            *best = Some((&route.deployment, contact));
        }
    }
    let named = deployments.into_iter().map(|(domain, best)| {
        let contact = best.map_or(fallback, |(_, contact)| contact);
        (domain.to_owned(), contact.to_owned())
    });
    named.filter(|(domain, _)| !domain.is_empty()).collect()
}

/// Routes that ask for a certificate.
fn asking(state: &State) -> impl Iterator<Item = &v1::Route> {
    let routes = state.routes.values().map(AsRef::as_ref);
    routes.filter(|route| state.is_tls_auto(route))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn smallest_deployment_with_a_contact_names_it() {
        let mut state = State::default();
        let mut route = |domain: &str, path: &str, deployment: &str, tls_auto| {
            let row = v1::Route {
                domain: domain.to_owned(),
                path: path.to_owned(),
                deployment: deployment.to_owned(),
                tls_auto,
                ..v1::Route::default()
            };
            let key = (domain.to_owned(), path.to_owned());
            state.routes.insert(key, Arc::new(row));
        };
        route("a.example", "", "zeta", true);
        route("a.example", "/b", "beta", true);
        route("a.example", "/c", "alpha", true);
        route("b.example", "", "alpha", true);
        route("plain.example", "", "beta", false);
        for (name, acme_email) in [("alpha", ""), ("beta", "b@x"), ("zeta", "z@x")] {
            let row = v1::Deployment {
                name: name.to_owned(),
                acme_email: acme_email.to_owned(),
                ..v1::Deployment::default()
            };
            state.deployments.insert(name.to_owned(), Arc::new(row));
        }
        let expected = [("a.example", "b@x"), ("b.example", "daemon@x")];
        let expected = expected.map(|(domain, contact)| (domain.to_owned(), contact.to_owned()));
        assert_eq!(wanted(&state, "daemon@x"), expected.into());
    }
}
