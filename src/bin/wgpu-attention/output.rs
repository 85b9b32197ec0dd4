//! Files that are there whole or not at all, and progress on a terminal.

use crate::fail::{Fail, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::path::Path;

/// Says early that a file could not be written, before minutes of work are spent on it.
pub(crate) fn check_folder(path: &Path) -> Result<()> {
    let folder = folder(path);
    if path.is_dir() {
        return Err(Fail::file(path, "is a folder, but expected is a file to write"));
    }
    if !folder.is_dir() {
        return Err(Fail::file(path, format_args!("the folder {} does not exist", folder.display())));
    }
    Ok(())
}

/// Writes a file beside its place and moves it there.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    check_folder(path)?;
    let fail = |e: std::io::Error| Fail::file(path, format_args!("cannot be written: {e}"));
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    // Temporary files are private by default; this one is to have the permissions of any new file.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder(path)).map_err(fail)?;
    file.write_all(bytes).map_err(fail)?;
    file.persist(path).map_err(|e| fail(e.error))?;
    Ok(())
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

/// A bar on stderr, which draws only where that is a terminal.
pub(crate) fn bar(steps: usize, message: &'static str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
    // A template that did not parse would leave the bar with indicatif's own look.
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}") {
        bar.set_style(style);
    }
    bar.set_message(message);
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}
