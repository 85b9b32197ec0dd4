//! How to get packages onto a machine, and which of them bring a software Vulkan driver: pure decisions.

use crate::system::{Rights, System};

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    /// Tell the user in one line.
    Tell(String),
    /// Run commands: each attempt is made only where the one before it failed.
    Install { why: String, attempts: Vec<Attempt> },
}

/// Commands to run one after the other, each a list of words.
pub(crate) type Attempt = Vec<Vec<String>>;

const DRIVER: [&str; 2] = ["mesa-vulkan-drivers", "libvulkan1"];

/// What other distributions call the driver and Vulkan's loader.
const ELSEWHERE: [(&str, &str); 5] = [
    ("debian", "apt-get install mesa-vulkan-drivers libvulkan1"),
    ("fedora", "dnf install mesa-vulkan-drivers vulkan-loader"),
    ("arch", "pacman -S vulkan-swrast vulkan-icd-loader"),
    ("alpine", "apk add mesa-vulkan-swrast vulkan-loader"),
    ("suse", "zypper install libvulkan_lvp libvulkan1"),
];

/// Decides for a machine on which no adapter was found.
pub(crate) fn advice(system: &System) -> Advice {
    if system.os != "linux" {
        return Advice::Tell(format!(
            "no graphics adapter was found, and on {} there is nothing to install: a session with a display driver is \
             needed",
            system.os
        ));
    }
    let Some(attempts) = apt(system, &DRIVER) else { return Advice::Tell(tell(system)) };
    Advice::Install {
        why: "no graphics adapter was found: installing Mesa's software Vulkan driver, which computes on the processor"
            .to_owned(),
        attempts,
    }
}

/// How packages are installed here; `None` where there is no apt, or no right to use it.
pub(crate) fn apt(system: &System, packages: &[&str]) -> Option<Vec<Attempt>> {
    let debian = system.release.is("debian") || system.release.is("ubuntu");
    let prefix: &[&str] = match (debian && system.has_apt, system.rights) {
        (true, Rights::Root) => &[],
        (true, Rights::Sudo) => &["sudo", "-n"],
        (true, Rights::SudoAsks) => &["sudo"],
        _ => return None,
    };
    let apt = |arguments: &[&str]| -> Vec<String> {
        let run = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"];
        prefix.iter().chain(&run).chain(arguments).map(|&word| word.to_owned()).collect()
    };
    // Nothing that is there is taken away for it.
    let install = ["install", "--yes", "--no-remove", "--no-install-recommends"];
    let install: Vec<&str> = install.iter().chain(packages).copied().collect();
    let fresh = vec![apt(&["update"]), apt(&install)];
    let mut attempts = Vec::new();
    if system.has_lists {
        // Lists may be out of date, so a failure is not the end.
        attempts.push(vec![apt(&install)]);
    }
    attempts.push(fresh);
    Some(attempts)
}

fn tell(system: &System) -> String {
    let known = ELSEWHERE.iter().find(|(name, _)| match *name {
        "debian" => system.release.is("debian") || system.release.is("ubuntu"),
        "suse" => system.release.is("suse") || system.release.is("opensuse"),
        name => system.release.is(name),
    });
    match known {
        Some((_, command)) => {
            format!("no graphics adapter was found: as root, run `{command}` and try again")
        }
        None => {
            let all: Vec<String> =
                ELSEWHERE.iter().map(|(name, command)| format!("{name}: {command}")).collect();
            format!(
                "no graphics adapter was found: install a Vulkan driver ({}) and try again",
                all.join("; ")
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::Release;

    fn linux(os_release: &str, rights: Rights) -> System {
        System {
            os: "linux".into(),
            release: Release::parse(os_release),
            has_apt: os_release.contains("debian") || os_release.contains("ubuntu"),
            has_lists: false,
            rights,
        }
    }

    fn lines(advice: &Advice) -> Vec<Vec<String>> {
        match advice {
            Advice::Install { attempts, .. } => {
                attempts.iter().map(|a| a.iter().map(|c| c.join(" ")).collect()).collect()
            }
            Advice::Tell(line) => panic!("installs nothing: {line}"),
        }
    }

    #[test]
    fn debian_as_root_updates_and_installs() {
        let lines = lines(&advice(&linux("ID=debian", Rights::Root)));
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0][0], "env DEBIAN_FRONTEND=noninteractive apt-get update");
        assert_eq!(
            lines[0][1],
            "env DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-remove --no-install-recommends mesa-vulkan-drivers libvulkan1"
        );
    }

    #[test]
    fn lists_that_are_there_are_tried_before_they_are_updated() {
        let system = System { has_lists: true, ..linux("ID=debian", Rights::Root) };
        let lines = lines(&advice(&system));
        assert_eq!(lines.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2]);
        assert!(lines[0][0].contains("install") && lines[1][0].ends_with("update"));
    }

    #[test]
    fn sudo_is_used_where_one_is_not_root() {
        let ubuntu = "ID=ubuntu\nID_LIKE=debian";
        assert!(
            lines(&advice(&linux(ubuntu, Rights::Sudo)))[0][0].starts_with("sudo -n env DEBIAN_FRONTEND")
        );
        assert!(
            lines(&advice(&linux(ubuntu, Rights::SudoAsks)))[0][0].starts_with("sudo env DEBIAN_FRONTEND")
        );
    }

    #[test]
    fn without_rights_one_line_says_what_to_install() {
        let Advice::Tell(line) = advice(&linux("ID=debian", Rights::None)) else { panic!("installs") };
        assert!(line.contains("apt-get install mesa-vulkan-drivers libvulkan1"), "{line}");
        assert!(!line.contains('\n'));
    }

    #[test]
    fn other_distributions_are_told_their_names() {
        for (release, part) in [
            ("ID=fedora", "dnf install mesa-vulkan-drivers"),
            ("ID=manjaro\nID_LIKE=arch", "pacman -S vulkan-swrast"),
            ("ID=alpine", "apk add mesa-vulkan-swrast"),
            ("ID=\"opensuse-tumbleweed\"\nID_LIKE=\"opensuse suse\"", "zypper install libvulkan_lvp"),
            ("ID=nixos", "fedora: dnf"),
        ] {
            // Root or not: packages of other systems are not touched.
            let Advice::Tell(line) = advice(&linux(release, Rights::Root)) else { panic!("installs") };
            assert!(line.contains(part), "{line}");
        }
    }

    #[test]
    fn nothing_is_installed_on_macos_and_windows() {
        for os in ["macos", "windows"] {
            let system = System { os: os.into(), ..linux("", Rights::Root) };
            assert!(matches!(advice(&system), Advice::Tell(line) if line.contains(os)));
        }
    }
}
