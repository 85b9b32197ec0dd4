//! The bodies of tests/numerics in a browser: the same files with the same tolerances and the same reference, compiled for wasm.
//!
//! They are written for a thread that may wait, which a page's may not. JavaScript Promise Integration solves it: where a body has to
//! wait, the browser sets its stack aside, goes on with its own work, and comes back (`block_on`). Each `#[test]` is an export that the
//! page calls.

#![cfg(target_arch = "wasm32")]

// The attribute `test` from there goes before the compiler's own.
#[macro_use]
extern crate browser_test;

#[path = "../../../../tests/common/mod.rs"]
mod common;

#[path = "../../../../tests/numerics/causal.rs"]
mod causal;
#[path = "../../../../tests/numerics/documents.rs"]
mod documents;
#[path = "../../../../tests/numerics/empty.rs"]
mod empty;
#[path = "../../../../tests/numerics/heads.rs"]
mod heads;
#[path = "../../../../tests/numerics/sharpness.rs"]
mod sharpness;

use core::future::Future;
use core::pin::pin;
use core::task::{Context, Poll, Waker};
use wasm_bindgen::prelude::*;

#[link(wasm_import_module = "./suspend.js")]
unsafe extern "C" {
    /// Sets this stack aside until the browser has gone through what it has to do.
    safe fn suspend();
}

/// Waits for a future.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    // Nobody has to wake it: it is asked after each turn of the browser.
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(result) => return result,
            Poll::Pending => suspend(),
        }
    }
}

#[wasm_bindgen]
extern "C" {
    #[wasm_bindgen(js_namespace = console)]
    fn error(text: &str);
}

/// Says on the console what failed: without this there would only be "unreachable executed".
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| error(&panic.to_string())));
}
