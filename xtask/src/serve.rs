//! A server of files for one's own machine: what it takes to look at the page, and no more.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

/// Serves a folder on this machine's own address until the program is ended.
pub(crate) fn serve(folder: &Path, port: u16) -> Result<(), String> {
    if !folder.join("index.html").is_file() {
        return Err(format!("there is no page in {}: `cargo xtask web` makes it", folder.display()));
    }
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
        .map_err(|e| format!("cannot listen at port {port}: {e}"))?;
    let address = listener.local_addr().map_err(|e| e.to_string())?;
    println!("http://localhost:{}/  (end with Ctrl-C)", address.port());
    for stream in listener.incoming().flatten() {
        let folder = folder.to_owned();
        // A browser keeps connections open that it may never use.
        std::thread::spawn(move || answer(stream, &folder));
    }
    Ok(())
}

fn answer(mut stream: TcpStream, folder: &Path) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    stream.set_write_timeout(Some(Duration::from_secs(30)))?;
    // Nobody has more to say than 64 KiB.
    let mut reader = BufReader::new((&stream).take(1 << 16));
    let mut request = String::new();
    reader.read_line(&mut request)?;
    let mut header = String::new();
    while reader.read_line(&mut header)? > 2 {
        header.clear();
    }
    let mut words = request.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let (status, kind, body) = match (method, file(folder, target)) {
        ("GET" | "HEAD", Some(file)) => match fs::read(&file) {
            Ok(body) => ("200 OK", kind(&file), body),
            Err(_) => ("404 Not Found", "text/plain", b"there is no such file".to_vec()),
        },
        ("GET" | "HEAD", None) => ("404 Not Found", "text/plain", b"there is no such file".to_vec()),
        _ => ("405 Method Not Allowed", "text/plain", b"only GET and HEAD".to_vec()),
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n\
         X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        body.len()
    )?;
    if method == "GET" {
        stream.write_all(&body)?;
    }
    stream.flush()
}

/// The file that a request means: never one outside the folder.
fn file(folder: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split(['?', '#']).next()?.strip_prefix('/')?;
    let path =
        if path.is_empty() || path.ends_with('/') { format!("{path}index.html") } else { path.to_owned() };
    let plain = path.chars().all(|c| c.is_ascii_alphanumeric() || "/._-".contains(c));
    let path = Path::new(&path);
    let inside = path.components().all(|part| matches!(part, Component::Normal(_)));
    (plain && inside).then(|| folder.join(path))
}

fn kind(file: &Path) -> &'static str {
    match file.extension().and_then(|e| e.to_str()) {
        Some("html") => "text/html; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("js" | "mjs") => "text/javascript; charset=utf-8",
        Some("json") => "application/json",
        Some("svg") => "image/svg+xml",
        Some("png") => "image/png",
        Some("wasm") => "application/wasm",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_stay_inside_the_folder() {
        let folder = Path::new("/site");
        let found = |target| file(folder, target);
        assert_eq!(found("/"), Some(PathBuf::from("/site/index.html")));
        assert_eq!(found("/cases/a_1.safetensors?x=1#y"), Some(PathBuf::from("/site/cases/a_1.safetensors")));
        for target in
            ["", "x", "//etc/passwd", "/../x", "/a/../../x", "/%2e%2e/x", "/a\\..\\x", "/C:/x", "/a b"]
        {
            assert_eq!(found(target), None, "{target}");
        }
    }

    #[test]
    fn wasm_has_the_type_that_browsers_ask_for() {
        assert_eq!(kind(Path::new("a/b.wasm")), "application/wasm");
        assert_eq!(kind(Path::new("b.safetensors")), "application/octet-stream");
    }
}
