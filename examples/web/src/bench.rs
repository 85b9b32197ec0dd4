//! The benchmark: the crate's stopwatch and ceilings, with the program's presets and its form of report, so that a report from a browser
//! is compared with another by `wgpu-attention bench --compare`.

use crate::context::{AttentionContext, Inner, promise};
use crate::fault::{Fault, Result};
use crate::fields::{Fields, Record};
use js_sys::{Array, JSON, Promise};
use report::{CheckedRows, FORMAT, Machine, Row, Spread, VERSION};
use serde::Serialize;
use std::collections::HashSet;
use std::rc::Rc;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use wasm_bindgen::prelude::*;
use wgpu_attention::measure::{Cost, Effort, Roofs, Stopwatch, Work};
use wgpu_attention::{Kernel, PlanOptions};

#[allow(dead_code)]
#[path = "../../../src/bin/wgpu-attention/bench/problems.rs"]
mod problems;
#[allow(dead_code)]
#[path = "../../../src/bin/wgpu-attention/bench/report.rs"]
mod report;

/// A stopwatch and the adapter's ceilings.
#[wasm_bindgen(skip_typescript)]
#[derive(Debug, Clone)]
pub struct Benchmark {
    shared: Rc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Rc<Inner>,
    stopwatch: Stopwatch,
    roofs: Roofs,
    /// Variants that are compiled already.
    compiled: Mutex<HashSet<String>>,
}

#[wasm_bindgen]
impl AttentionContext {
    /// Measures the adapter's ceilings.
    pub fn benchmark(&self, options: &JsValue) -> Promise {
        let (inner, options) = (self.inner(), options.clone());
        promise(async move {
            let fields = Fields::new(&options, "", &["seconds"])?;
            let seconds = seconds(&fields, 1.0)?;
            let stopwatch = Stopwatch::new(&inner.attention, &inner.queue).await?;
            let roofs = Roofs::measure(&inner.attention, &stopwatch, seconds).await?;
            let shared = Shared { inner, stopwatch, roofs, compiled: Mutex::default() };
            Ok(Benchmark { shared: Rc::new(shared) }.into())
        })
    }
}

#[wasm_bindgen]
impl Benchmark {
    /// The names of a preset's problems.
    pub fn problems(&self, preset: &str) -> Result<Array, JsValue> {
        let items = items(preset)?;
        Ok(items.iter().map(|item| JsValue::from(Row::of(&item.name, &item.problem).problem())).collect())
    }

    /// What all rows have in common: the beginning of a report.
    pub fn report(&self) -> Result<JsValue, JsValue> {
        let shared = &self.shared;
        let info = shared.inner.adapter.get_info();
        let machine = Machine {
            adapter: info.name,
            driver: format!("{} {}, {}", info.driver, info.driver_info, info.backend),
            kind: format!("{:?}", info.device_type),
            crate_version: env!("CARGO_PKG_VERSION").to_owned(),
            system: "a browser".to_owned(),
            clock: shared.stopwatch.clock(),
            clock_because: shared.stopwatch.why().to_owned(),
        };
        let record = Record::new()
            .with("format", FORMAT)
            .with("version", VERSION)
            .with("command", "the page")
            .with("machine", plain(&machine)?)
            .with("roofs", plain(&shared.roofs)?)
            .with("rows", Array::new())
            .with("scaling", Array::new())
            .with("left_out", Array::new())
            .with("seconds", 0.0);
        Ok(record.build())
    }

    /// Checks and times one problem of a preset.
    pub fn row(&self, arguments: &JsValue) -> Promise {
        let (shared, arguments) = (self.shared.clone(), arguments.clone());
        promise(async move {
            let fields = Fields::new(&arguments, "", &["preset", "number", "kernel", "seconds"])?;
            let preset = fields.need("preset", fields.text("preset")?, "a text")?;
            let number = fields.need("number", fields.u32("number")?, "a whole number")?;
            let kernel = fields.text("kernel")?;
            let kernel =
                kernel.as_deref().and_then(|name| Kernel::ALL.into_iter().find(|k| k.name() == name));
            let items = items(&preset)?;
            let item = items.get(number as usize);
            let item = item.ok_or_else(|| fields.fault("number", format!("below {}", items.len())))?;
            plain(&shared.row(item, kernel, seconds(&fields, 0.3)?).await?)
        })
    }
}

impl Shared {
    async fn row(&self, item: &problems::Item, kernel: Option<Kernel>, time: Duration) -> Result<Row> {
        let attention = &self.inner.attention;
        let planned = attention.plan(&item.problem)?.kernel();
        let options = kernel.map_or_else(PlanOptions::default, PlanOptions::kernel);
        let plan = attention.plan_with(&item.problem, &options)?;
        let variant = plan.key().to_string();
        let start = js_sys::Date::now();
        attention.warm_up(std::slice::from_ref(&plan)).await?;
        let compiling_ms = js_sys::Date::now() - start;
        let new = self.compiled.lock().unwrap_or_else(PoisonError::into_inner).insert(variant.clone());

        let work = Work::new(attention, &item.problem).await?;
        let ready = work.prepare(&plan).await?;
        let checked = work.check(&self.inner.queue, &ready).await?;
        if !checked.passes() {
            let worst = checked.comparison.worst;
            return Err(Fault::wrong(format!(
                "wrong: an error of {worst:.1} times its bound, {} of {} rows unwritten or not finite",
                checked.unwritten, checked.of
            )));
        }
        let mut effort = Effort::default();
        effort.time = time;
        effort.give_up = Some(Duration::from_secs(5));
        let times = self.stopwatch.measure(&ready, &effort).await?;
        let cost = Cost::of(&item.problem)?;
        let (floor, limit) = cost.floor(&self.roofs);
        let median = times.samples.median().max(1e-9);
        let [q1, q3] = times.samples.quartiles();
        Ok(Row {
            kernel: plan.kernel().name().to_owned(),
            ms: median * 1e3,
            gflops: cost.flops as f64 / median / 1e9,
            kv_gb_s: cost.kv_bytes as f64 / median / 1e9,
            gb_s: cost.bytes as f64 / median / 1e9,
            variant,
            planned: plan.kernel() == planned,
            share: floor / median,
            limit,
            intensity: cost.intensity(),
            spread: Some(Spread {
                min_ms: times.samples.min() * 1e3,
                q1_ms: q1 * 1e3,
                q3_ms: q3 * 1e3,
                samples: times.samples.seconds().len(),
                calls: times.calls,
            }),
            first_call_ms: new.then_some(compiling_ms + checked.took.as_secs_f64() * 1e3),
            slices: ready.parts(),
            checked: Some(CheckedRows {
                rows: checked.rows,
                of: checked.of,
                worst: checked.comparison.worst,
            }),
            ..Row::of(&item.name, &item.problem)
        })
    }
}

fn items(preset: &str) -> Result<Vec<problems::Item>> {
    match preset {
        "quick" => Ok(problems::Preset::Quick.items()),
        "models" => Ok(problems::Preset::Models.items()),
        "sweep" => Ok(problems::Preset::Sweep.items()),
        other => Err(Fault::value("preset", format!("{other:?}"), "quick, models or sweep")),
    }
}

fn seconds(fields: &Fields, usual: f32) -> Result<Duration> {
    let seconds = fields.number("seconds")?.unwrap_or(usual);
    match Duration::try_from_secs_f32(seconds) {
        Ok(time) if seconds <= 600.0 => Ok(time),
        _ => Err(fields.fault("seconds", "a number from 0 to 600")),
    }
}

/// A value as JavaScript has it.
fn plain(value: &impl Serialize) -> Result<JsValue> {
    let text = serde_json::to_string(value).map_err(|e| Fault::wrong(e.to_string()))?;
    JSON::parse(&text).map_err(|_| Fault::wrong("JSON that does not parse".to_owned()))
}
