//! Files that are there whole or not at all, and progress on stderr.

use crate::fail::{Fail, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Says early that a file could not be written, before minutes of work are spent on it; refuses to write two results into one file, or
/// one over what is read.
pub(crate) fn check(written: &[(&'static str, Option<&Path>)], read: &[&Path]) -> Result<()> {
    let written = || written.iter().filter_map(|&(flag, path)| Some((flag, path?)));
    for (_, path) in written() {
        check_folder(path)?;
    }
    check_different(written(), read)
}

fn check_folder(path: &Path) -> Result<()> {
    let folder = folder(path);
    if path.is_dir() {
        return Err(Fail::file(path, "is a folder, but expected is a file to write"));
    }
    if !folder.is_dir() {
        return Err(Fail::file(path, format_args!("the folder {} does not exist", folder.display())));
    }
    Ok(())
}

fn check_different<'a>(
    written: impl IntoIterator<Item = (&'static str, &'a Path)>,
    read: &[&Path],
) -> Result<()> {
    // Another name of the same file counts too; one that is not there yet has its folder resolved.
    let place = |path: &Path| {
        path.canonicalize().unwrap_or_else(|_| {
            let name = path.file_name().unwrap_or_default();
            folder(path).canonicalize().map_or_else(|_| path.to_owned(), |folder| folder.join(name))
        })
    };
    let mut seen: Vec<(&str, PathBuf)> = read.iter().map(|path| ("an input", place(path))).collect();
    for (flag, path) in written {
        let here = place(path);
        // Devices and pipes take any number of things.
        let is_file = !here.exists() || here.is_file();
        if let Some((other, _)) = seen.iter().find(|(_, other)| is_file && *other == here) {
            return Err(Fail::file(
                path,
                format_args!("is {other} and would be overwritten by {flag}: name another file"),
            ));
        }
        seen.push((flag, here));
    }
    Ok(())
}

/// Writes a file beside its place and moves it there. Where the path leads to another place, as a link does, it goes there; where it
/// leads to no file (a device, a pipe), bytes are simply written.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    check_folder(path)?;
    let fail = |e: std::io::Error| Fail::file(path, format_args!("cannot be written: {e}"));
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let path = target.as_path();
    if path.exists() && !path.is_file() {
        return std::fs::write(path, bytes).map_err(fail);
    }
    #[cfg_attr(not(unix), allow(unused_mut))]
    let mut builder = tempfile::Builder::new();
    // Temporary files are private by default; this one is to have the permissions of any new file.
    #[cfg(unix)]
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    let mut file = builder.tempfile_in(folder(path)).map_err(fail)?;
    if let Ok(old) = path.metadata() {
        file.as_file().set_permissions(old.permissions()).map_err(fail)?;
    }
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
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

/// Tells how far a bar has come by a line now and then, as long as it lives: for where stderr is no terminal and the bar does not
/// draw, as in a log.
#[derive(Debug)]
pub(crate) struct Lines {
    /// Whose end is what the thread waits for, and the thread.
    running: Option<(Sender<()>, JoinHandle<()>)>,
}

/// Between two lines.
const LINES: Duration = Duration::from_secs(10);

/// The first line comes at once. None where the bar draws.
pub(crate) fn lines(bar: &ProgressBar) -> Lines {
    if bar.is_hidden() { Lines::to(bar, LINES, std::io::stderr()) } else { Lines { running: None } }
}

impl Lines {
    fn to(bar: &ProgressBar, every: Duration, mut out: impl Write + Send + 'static) -> Self {
        let bar = bar.clone();
        let (end, ended) = channel();
        let thread = std::thread::spawn(move || {
            loop {
                let (at, of, time) = (bar.position(), bar.length().unwrap_or(0), bar.elapsed().as_secs());
                // A log that cannot be written is no reason to stop.
                let _ = writeln!(out, "{}: {at} of {of}, {time} s", bar.message());
                if ended.recv_timeout(every) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        Lines { running: Some((end, thread)) }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        if let Some((end, thread)) = self.running.take() {
            drop(end);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod progress {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Log {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
        }

        fn wait_for(&self, words: &str) {
            let start = std::time::Instant::now();
            while !self.text().contains(words) {
                assert!(start.elapsed() < Duration::from_secs(30), "no {words:?} in {:?}", self.text());
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn a_bar_that_does_not_draw_tells_how_far_it_is_in_lines() {
        let (bar, log) = (ProgressBar::hidden(), Log::default());
        bar.set_length(7);
        bar.set_message("working");
        let lines = Lines::to(&bar, Duration::from_millis(1), log.clone());
        log.wait_for("working: 0 of 7, 0 s\n");
        bar.inc(3);
        log.wait_for("working: 3 of 7, ");
        drop(lines);
        let told = log.text();
        bar.inc(1);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(log.text(), told, "told after its end");
    }

    #[test]
    fn the_first_line_comes_at_once_and_the_end_waits_for_no_other() {
        let (bar, log) = (ProgressBar::hidden(), Log::default());
        let lines = Lines::to(&bar, Duration::from_secs(3600), log.clone());
        log.wait_for(": 0 of 0, ");
        drop(lines);
        assert_eq!(log.text().lines().count(), 1);
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, PermissionsExt, symlink};

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file.html", "link.html"].map(|name| folder.path().join(name));
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        write(&link, b"new").unwrap();
        assert!(link.is_symlink());
        assert_eq!(std::fs::read(&file).unwrap(), b"new");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o640);
    }

    #[test]
    fn what_is_no_file_stays_what_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || std::fs::read(pipe).unwrap()
        });
        write(&pipe, b"through").unwrap();
        assert_eq!(reader.join().unwrap(), b"through");
        assert!(pipe.metadata().unwrap().file_type().is_fifo());
        let null = Path::new("/dev/null");
        write(null, b"gone").unwrap();
        assert!(null.metadata().unwrap().file_type().is_char_device());
    }

    #[test]
    fn one_file_is_not_written_twice() {
        let folder = tempfile::tempdir().unwrap();
        let [a, b] = ["a", "b"].map(|name| folder.path().join(name));
        let same = folder.path().join(".").join("a");
        check_different([("-o", a.as_path()), ("--save-case", b.as_path())], &[]).unwrap();
        let twice = check_different([("-o", a.as_path()), ("--save-case", same.as_path())], &[]).unwrap_err();
        assert!(twice.to_string().contains("is -o and would be overwritten by --save-case"), "{twice}");
        let input = check_different([("-o", a.as_path())], &[&same]).unwrap_err();
        assert!(input.to_string().contains("an input"), "{input}");
        let null = Path::new("/dev/null");
        check_different([("-o", null), ("--save-case", null)], &[]).unwrap();
    }
}
