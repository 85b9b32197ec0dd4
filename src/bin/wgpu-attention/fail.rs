//! How a command fails: one line on stderr and an exit code.

use std::path::Path;
use std::process::ExitCode;
use wgpu_attention::case::CaseError;

/// What went wrong, sorted by exit code.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fail {
    /// 1: the device failed.
    #[error("{0}")]
    Device(wgpu_attention::Error),
    /// 1: a result is not what it should be.
    #[error("{0}")]
    Wrong(String),
    /// 2: the command line or a file cannot be used.
    #[error("{0}")]
    Usage(String),
    /// 3: no adapter.
    #[error("{0}")]
    NoAdapter(String),
    /// Stdout is gone.
    #[error("cannot write to stdout: {0}")]
    Stdout(#[from] std::io::Error),
}

pub(crate) type Result<T, E = Fail> = std::result::Result<T, E>;

/// Characters of an error line.
const MOST: usize = 1000;

impl Fail {
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Fail::Usage(message.into())
    }

    /// A file that cannot be used.
    pub(crate) fn file(path: &Path, what: impl std::fmt::Display) -> Self {
        Fail::Usage(format!("{}: {what}", path.display()))
    }

    fn code(&self) -> u8 {
        match self {
            Fail::Device(_) | Fail::Wrong(_) => 1,
            Fail::Usage(_) | Fail::Stdout(_) => 2,
            Fail::NoAdapter(_) => 3,
        }
    }

    pub(crate) fn report(&self) -> ExitCode {
        match self {
            // The reader of a pipe has seen enough.
            Fail::Stdout(e) if e.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            _ => {
                let line = self.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" ");
                // Parsers quote what they choke on, however long it is.
                let short: String = line.chars().take(MOST).collect();
                eprintln!("error: {short}{}", if short.len() < line.len() { "…" } else { "" });
                ExitCode::from(self.code())
            }
        }
    }
}

const INSTALL: &str = if cfg!(target_os = "linux") {
    "install a Vulkan driver; on Debian or Ubuntu `sudo apt install mesa-vulkan-drivers` brings one that needs no GPU"
} else if cfg!(windows) {
    "install the graphics driver of your GPU, or use Windows 10 or later, which has one that needs no GPU"
} else {
    "this program needs Vulkan, Metal, DirectX 12 or OpenGL"
};

impl From<wgpu_attention::Error> for Fail {
    fn from(error: wgpu_attention::Error) -> Self {
        use wgpu_attention::Error;
        match error {
            Error::NoAdapter(_) => Fail::NoAdapter(format!("{error}; {INSTALL}")),
            Error::UnknownAdapter { .. } => {
                Fail::NoAdapter(format!("{error}: give --adapter a part of that, or leave it out"))
            }
            Error::Driver { .. } | Error::DeviceLost(_) | Error::OutOfMemory { .. } => Fail::Device(error),
            error => Fail::Usage(error.to_string()),
        }
    }
}

impl From<CaseError> for Fail {
    fn from(error: CaseError) -> Self {
        Fail::Usage(error.to_string())
    }
}
