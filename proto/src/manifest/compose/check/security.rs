//! Security options that take rights away, and those that widen them.

/// Types of SELinux that confine nothing.
///
/// Source: container-selinux, `container.te`; `spc_t` is the "super privileged container".
const UNCONFINED_TYPES: [&str; 4] = ["init_t", "spc_t", "unconfined_service_t", "unconfined_t"];

/// Whether an option of `security_opt` widens the rights of a container, or may.
///
/// Only options that are known to take rights away do not: anything else could be a later engine's
/// way to give some. A profile in JSON may permit every system call, so it counts as one that does.
///
/// Source: moby, `daemon/daemon_unix.go`, `parseSecurityOpt`.
pub(super) fn widens(option: &str) -> bool {
    if option == "no-new-privileges" {
        return false;
    }
    // The engine takes `:` as a separator where there is no `=`.
    let separator = if option.contains('=') { '=' } else { ':' };
    let Some((key, value)) = option.split_once(separator) else {
        return true;
    };
    match key {
        "no-new-privileges" => value != "true",
        "seccomp" => !matches!(value, "builtin" | "default"),
        "apparmor" => value.is_empty() || value == "unconfined",
        "label" => match value.split_once(':') {
            Some(("type", of)) => of.is_empty() || UNCONFINED_TYPES.contains(&of),
            Some(("level", _)) => false,
            Some(_) | None => true,
        },
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::widens;

    #[test]
    fn only_known_restrictions_are_free() {
        for (option, expected) in [
            ("no-new-privileges", false),
            ("no-new-privileges:true", false),
            ("no-new-privileges=true", false),
            ("no-new-privileges:false", true),
            ("no-new-privileges:", true),
            ("seccomp:unconfined", true),
            ("seccomp=unconfined", true),
            ("seccomp:builtin", false),
            ("seccomp=default", false),
            ("seccomp:/etc/profile.json", true),
            ("seccomp={\"defaultAction\":\"SCMP_ACT_ALLOW\"}", true),
            ("apparmor:unconfined", true),
            ("apparmor=docker-default", false),
            ("apparmor:my-profile", false),
            ("apparmor:", true),
            ("label:disable", true),
            ("label=disable", true),
            ("label:type:container_t", false),
            ("label=type:svirt_apache_t", false),
            ("label:type:spc_t", true),
            ("label:type:", true),
            ("label=level:s0:c1,c2", false),
            ("label:user:root", true),
            ("label:role:system_r", true),
            ("systempaths=unconfined", true),
            ("writable-cgroups=true", true),
            ("a", true),
            ("", true),
        ] {
            assert_eq!(widens(option), expected, "{option}");
        }
    }
}
