//! Platforms of machines and images, as `os/arch[/variant]`. Pure.
//!
//! Source: OCI image index, `platform`; names of architectures as in Go; normalization as in
//! containerd, `platforms/database.go`.

/// A platform in its normal form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Platform<'a> {
    os: &'a str,
    arch: &'a str,
    /// Only of `arm`: its version.
    version: Option<u32>,
}

impl<'a> Platform<'a> {
    /// Reads `os/arch[/variant]`; the system is Linux where the text has only an architecture.
    fn parse(text: &'a str) -> Option<Self> {
        let mut parts = text.split('/');
        let first = parts.next().filter(|part| !part.is_empty())?;
        let (os, arch, variant) = match parts.next() {
            Some(arch) => (first, arch, parts.next()),
            None => ("linux", first, None),
        };
        let (arch, implied) = match arch {
            "x86_64" | "x86-64" => ("amd64", None),
            "i386" | "i486" | "i586" | "i686" | "x86" => ("386", None),
            "aarch64" => ("arm64", None),
            "armhf" => ("arm", Some("v7")),
            "armel" => ("arm", Some("v6")),
            "powerpc64le" => ("ppc64le", None),
            other => (other, None),
        };
        let variant = variant.or(implied).unwrap_or("v7");
        let version = variant.trim_start_matches('v').parse().ok();
        Some(Self {
            os,
            arch,
            version: version.filter(|_| arch == "arm"),
        })
    }
}

/// Whether a machine with `platforms` runs an image for `wanted`.
///
/// A machine that reported none, and a text that is no platform, exclude nothing: the engine decides.
#[must_use]
pub fn runs(platforms: &[String], wanted: &str) -> bool {
    let Some(wanted) = Platform::parse(wanted).filter(|_| !platforms.is_empty()) else {
        return true;
    };
    let known = platforms.iter().filter_map(|text| Platform::parse(text));
    known.into_iter().any(|one| {
        let is_same = (one.os, one.arch) == (wanted.os, wanted.arch);
        // A later version of `arm` runs the programs of the earlier ones.
        is_same && one.version >= wanted.version
    })
}

/// System and architecture of a machine's own platform, the first one.
#[must_use]
pub fn own(platforms: &[String]) -> Option<(&str, &str)> {
    let own = Platform::parse(platforms.first()?)?;
    Some((own.os, own.arch))
}

/// Whether `text` names the architecture `arch`, in any of its spellings.
#[must_use]
pub fn is_arch(text: &str, arch: &str) -> bool {
    let text = text.to_ascii_lowercase();
    Platform::parse(&text).is_some_and(|named| named.arch == arch)
}

/// Name of an architecture in a platform; of `arm` the version that its processors have today.
fn architecture(name: &str) -> &str {
    match Platform::parse(name).map_or(name, |named| named.arch) {
        "arm" => "arm/v7",
        other => other,
    }
}

/// Platforms of a machine: that of its processor, those that the processor runs as well, and those of
/// the kernel's `interpreters`, each a name and a description of `binfmt_misc`.
#[must_use]
pub fn of_machine(os: &str, arch: &str, interpreters: Vec<(String, String)>) -> Vec<String> {
    let native = architecture(arch);
    let mut architectures = vec![native];
    match native {
        "amd64" => architectures.push("386"),
        "arm64" => architectures.push("arm/v8"),
        _ => {}
    }
    for (name, description) in &interpreters {
        let Some(arch) = name.strip_prefix("qemu-") else {
            continue;
        };
        // Without the flag F, the path of the interpreter is looked up in the container.
        let mut lines = description.lines();
        let is_enabled = lines.next() == Some("enabled");
        let flags = lines.find_map(|line| line.strip_prefix("flags:"));
        if !is_enabled || !flags.is_some_and(|flags| flags.contains('F')) {
            continue;
        }
        let arch = architecture(arch);
        if !architectures.contains(&arch) {
            architectures.push(arch);
        }
    }
    let platforms = architectures.into_iter();
    platforms.map(|arch| format!("{os}/{arch}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(platforms: &[&str]) -> Vec<String> {
        platforms.iter().map(|text| (*text).to_owned()).collect()
    }

    #[test]
    fn machines_run_their_platforms() {
        let amd64 = &["linux/amd64", "linux/386"][..];
        let arm64 = &["linux/arm64", "linux/arm/v8"][..];
        for (platforms, wanted, expected) in [
            (amd64, "linux/amd64", true),
            (amd64, "linux/x86_64", true),
            (amd64, "amd64", true),
            (amd64, "linux/amd64/v3", true),
            (amd64, "linux/386", true),
            (amd64, "linux/arm64", false),
            (amd64, "windows/amd64", false),
            (arm64, "linux/arm64/v8", true),
            (arm64, "linux/aarch64", true),
            (arm64, "linux/arm/v7", true),
            (arm64, "linux/arm", true),
            (arm64, "linux/amd64", false),
            (&["linux/arm/v7"], "linux/arm/v6", true),
            (&["linux/arm/v6"], "linux/arm/v7", false),
            (&["linux/arm/v6"], "linux/armhf", false),
            (&["linux/arm/v7"], "linux/arm64", false),
            (&[], "linux/arm64", true),
            (amd64, "", true),
        ] {
            let found = runs(&machine(platforms), wanted);
            assert_eq!(found, expected, "{platforms:?} {wanted:?}");
        }
    }

    #[test]
    fn interpreters_add_platforms() {
        let entry = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let usable = "enabled\ninterpreter /usr/bin/qemu\nflags: OCF\n";
        let interpreters = vec![
            entry("qemu-aarch64", usable),
            entry("qemu-arm", usable),
            entry("qemu-i386", usable),
            entry(
                "qemu-riscv64",
                "enabled\ninterpreter /usr/bin/qemu\nflags: \n",
            ),
            entry("qemu-s390x", "disabled\nflags: F\n"),
            entry("python3.11", usable),
            entry("status", "enabled"),
        ];
        let expected = ["linux/amd64", "linux/386", "linux/arm64", "linux/arm/v7"];
        assert_eq!(of_machine("linux", "x86_64", interpreters), expected);
        let expected = ["linux/arm64", "linux/arm/v8"];
        assert_eq!(of_machine("linux", "aarch64", Vec::new()), expected);
        assert_eq!(
            of_machine("linux", "riscv64", Vec::new()),
            ["linux/riscv64"]
        );
    }

    #[test]
    fn architectures_have_several_names() {
        let own = own(&machine(&["linux/amd64", "linux/386"])).map(|(os, arch)| {
            assert_eq!(os, "linux");
            arch.to_owned()
        });
        let own = own.unwrap();
        assert!(is_arch("x86_64", &own) && is_arch("AMD64", &own));
        assert!(!is_arch("arm64", &own) && !is_arch("", &own));
    }
}
