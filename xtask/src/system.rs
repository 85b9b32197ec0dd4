//! What this machine is: read once, so that decisions about it are functions of plain data.

use std::io::IsTerminal;
use std::path::Path;
use std::process::{Command, Stdio};

/// Facts that decide how a driver is installed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct System {
    /// `std::env::consts::OS`.
    pub os: String,
    /// `/etc/os-release`; empty elsewhere than on Linux.
    pub release: Release,
    pub has_apt: bool,
    /// Whether apt has lists of packages at all; fresh containers have none.
    pub has_lists: bool,
    pub rights: Rights,
}

/// How commands of the administrator can be run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rights {
    Root,
    /// `sudo` that asks for nothing.
    Sudo,
    /// `sudo` that may ask for a password, and somebody who can answer.
    SudoAsks,
    None,
}

/// The two lines of `/etc/os-release` that say what a distribution is and what it is made from.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Release {
    pub id: String,
    pub id_like: Vec<String>,
}

impl Release {
    /// Reads the file's text: `NAME=value` lines, values quoted or not.
    pub(crate) fn parse(text: &str) -> Self {
        let value = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
            lines.next_back().map(|v| v.trim().trim_matches(['"', '\'']).to_lowercase()).unwrap_or_default()
        };
        let id_like = value("ID_LIKE").split_whitespace().map(str::to_owned).collect();
        Release { id: value("ID"), id_like }
    }

    /// Whether this is the distribution, or one made from it.
    pub(crate) fn is(&self, name: &str) -> bool {
        self.id == name || self.id_like.iter().any(|like| like == name)
    }
}

impl System {
    /// Looks at the machine.
    pub(crate) fn look() -> Self {
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        System {
            os: std::env::consts::OS.to_owned(),
            release: Release::parse(&release),
            has_apt: Path::new("/usr/bin/apt-get").exists(),
            has_lists: has_lists(Path::new("/var/lib/apt/lists")),
            rights: rights(),
        }
    }
}

fn has_lists(directory: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(directory) else { return false };
    entries.flatten().any(|entry| entry.file_name().to_string_lossy().contains("_Packages"))
}

fn rights() -> Rights {
    let id = Command::new("id").arg("-u").stderr(Stdio::null()).output();
    if id.is_ok_and(|id| String::from_utf8_lossy(&id.stdout).trim() == "0") {
        return Rights::Root;
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    match sudo.status() {
        Ok(status) if status.success() => Rights::Sudo,
        Ok(_) if std::io::stdin().is_terminal() => Rights::SudoAsks,
        _ => Rights::None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn os_release_is_read_quoted_or_not() {
        let debian =
            Release::parse("PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_ID=\"12\"\nID=debian\n");
        assert_eq!(debian, Release { id: "debian".into(), id_like: vec![] });
        let mint = Release::parse("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n");
        assert!(mint.is("debian") && mint.is("ubuntu") && mint.is("linuxmint") && !mint.is("fedora"));
        let quoted = Release::parse("ID='Alpine'\r\n");
        assert!(quoted.is("alpine"));
    }

    #[test]
    fn names_that_only_end_in_id_are_not_the_id() {
        let release = Release::parse("VERSION_ID=\"41\"\nVARIANT_ID=workstation\nID=fedora\n");
        assert_eq!(release.id, "fedora");
    }

    #[test]
    fn no_file_is_no_distribution() {
        assert_eq!(Release::parse(""), Release::default());
        assert!(!Release::default().is("debian"));
    }
}
