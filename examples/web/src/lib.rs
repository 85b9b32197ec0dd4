//! wgpu-attention for JavaScript: what the npm package exports and the page of this folder is made with.
//!
//! `fields` reads JavaScript objects and refuses what it does not know, `problem` makes problems of them, `fault` makes
//! errors that say field, value and rule, `context` is the device that is kept between calls, `operations` are those beside attention. `check` reads case
//! files and `bench` measures, for the page and for whoever wants to see that in an app. `types.d.ts` holds the TypeScript declarations with their documentation.

#![cfg(target_arch = "wasm32")]

mod bench;
mod check;
mod context;
mod fault;
mod fields;
mod operations;
mod problem;

use wasm_bindgen::prelude::*;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = include_str!("types.d.ts");

/// Says on the console where a panic came from: without this there would only be "unreachable executed".
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|panic| {
        // An error, so that the console shows a stack.
        let console = js_sys::Reflect::get(&js_sys::global(), &"console".into());
        let log = console.and_then(|console| {
            let log = js_sys::Reflect::get(&console, &"error".into())?;
            log.dyn_into::<js_sys::Function>()?.call1(&console, &panic.to_string().into())
        });
        drop(log);
    }));
}

/// The version of this package.
#[wasm_bindgen(unchecked_return_type = "string")]
pub fn version() -> String {
    env!("CARGO_PKG_VERSION").to_owned()
}
