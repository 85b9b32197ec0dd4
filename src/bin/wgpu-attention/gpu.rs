//! The adapter of a command, and a run whose time is taken.

use crate::fail::{Fail, Result};
use clap::{Args, ValueEnum};
use std::time::{Duration, Instant};
use wgpu_attention::wgpu::{self, util::DeviceExt};
use wgpu_attention::{
    Attention, Buffers, Error, Inputs, Kernel, KeyMovement, Outputs, Plan, PlanOptions, RowTiles, Stat,
    Tensor, TileMask, Tiles, headless,
};

/// Which adapter and which kernel.
#[derive(Debug, Clone, Args)]
pub(crate) struct GpuArgs {
    /// Part of the name of the adapter to use, in any case (see `info`); default: the system's choice
    #[arg(long, value_name = "NAME")]
    pub adapter: Option<String>,
    /// The kernel to use; default: the planner's choice
    #[arg(long)]
    pub kernel: Option<KernelArg>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum KernelArg {
    /// Tiled online softmax
    Tiled,
    /// Whole rows in the lanes of a workgroup
    Rows,
    /// Cooperative matrices of f16; asks wgpu for experimental features
    Matrix,
    /// Three passes with the score matrix in memory
    Naive,
}

impl From<KernelArg> for Kernel {
    fn from(arg: KernelArg) -> Self {
        match arg {
            KernelArg::Tiled => Kernel::Tiled,
            KernelArg::Rows => Kernel::Rows,
            KernelArg::Matrix => Kernel::Matrix,
            KernelArg::Naive => Kernel::Naive,
        }
    }
}

/// What the planner is not to choose itself.
#[derive(Debug, Clone, Args)]
pub(crate) struct PlanArgs {
    /// Whether mask tiles are classified in a pass before the attention [default: the planner's choice]
    #[arg(long, value_name = "WAY", help_heading = "Plan")]
    tile_mask: Option<TileMaskArg>,
    /// Sizes of the tiled kernel: threads, groups of four rows, keys of a thread, vec4s of a head dim and keys of v staged at a time
    #[arg(long, value_parser = tiles, value_name = "THREADS,ROW_GROUPS,KEYS,DIM_CHUNK,V_CHUNK", help_heading = "Plan")]
    tiles: Option<Tiles>,
    /// Sizes of the row kernel: lanes, rows of a lane, keys of a tile, keys at once; then how keys reach the lanes, `broadcast`, `staged` or
    /// `uniform` (the last where none is said), `grouped` for heads side by side, `lazy` to scale what was summed only where a maximum grew, and
    /// `fenced` for barriers that keep a compiler from ordering too much at a time
    #[arg(
        long, value_parser = rows, value_name = "LANES,ROWS,KEYS,KEYS_AT_ONCE[,MOVEMENT][,grouped][,lazy][,fenced]", help_heading = "Plan"
    )]
    rows: Option<RowTiles>,
    /// Whether f16 is a type of the shader's own, with the device's feature for it, or unpacked [default: the planner's choice]
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no, help_heading = "Plan")]
    native_f16: Option<bool>,
    /// Whether the row kernel loads and stores words of 64 bits, with the device's feature for them [default: the planner's choice]
    #[arg(long, value_name = "yes|no", value_parser = yes_or_no, help_heading = "Plan")]
    wide_words: Option<bool>,
}

fn yes_or_no(text: &str) -> Result<bool, String> {
    match text {
        "yes" => Ok(true),
        "no" => Ok(false),
        _ => Err("expected is yes or no".to_owned()),
    }
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(crate) enum TileMaskArg {
    /// Find what each tile hides first
    Classified,
    /// Ask the mask for each pair
    Each,
}

impl PlanArgs {
    /// These choices on top of others.
    pub(crate) fn over(&self, mut options: PlanOptions) -> PlanOptions {
        options.tile_mask = self.tile_mask.map(|way| match way {
            TileMaskArg::Classified => TileMask::Classified,
            TileMaskArg::Each => TileMask::Each,
        });
        (options.tiles, options.rows) = (self.tiles, self.rows);
        (options.native_f16, options.wide_words) = (self.native_f16, self.wide_words);
        options
    }
}

fn tiles(text: &str) -> Result<Tiles, String> {
    let numbers: Option<Vec<u32>> = text.split(',').map(|n| n.trim().parse().ok()).collect();
    match numbers.as_deref() {
        Some(&[threads, row_groups, keys_per_thread, dim_chunk, v_chunk]) => {
            Ok(Tiles { threads, row_groups, keys_per_thread, dim_chunk, v_chunk })
        }
        _ => Err("expected are five numbers with commas between, as in 128,8,4,4,16".to_owned()),
    }
}

fn ends_with<'a>(word: &str, words: &'a [&'a str]) -> (&'a [&'a str], bool) {
    match words {
        [rest @ .., last] if *last == word => (rest, true),
        words => (words, false),
    }
}

fn rows(text: &str) -> Result<RowTiles, String> {
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let (numbers, words) = parts.split_at(parts.len().min(4));
    let numbers: Option<Vec<u32>> = numbers.iter().map(|n| n.parse().ok()).collect();
    let movement = |name: &str| KeyMovement::ALL.into_iter().find(|movement| movement.name() == name);
    let (words, fenced) = ends_with("fenced", words);
    let (words, lazy) = ends_with("lazy", words);
    let (words, grouped) = ends_with("grouped", words);
    let movement = match words {
        [] => Some(KeyMovement::Uniform),
        [way] => movement(way),
        _ => None,
    };
    match (numbers.as_deref(), movement) {
        (Some(&[lanes, rows, keys, keys_at_once]), Some(movement)) => {
            Ok(RowTiles { lanes, rows, keys, keys_at_once, movement, grouped, lazy, fenced })
        }
        _ => {
            Err("expected are four numbers, then broadcast, staged or uniform, then grouped, lazy and fenced where they hold, as in 8,4,2,2,broadcast".to_owned())
        }
    }
}

/// An open device with attention on it.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub info: wgpu::AdapterInfo,
    pub attention: Attention,
    pub queue: wgpu::Queue,
}

impl GpuArgs {
    pub(crate) fn open(&self) -> Result<Gpu> {
        Gpu::open(self.adapter.as_deref(), matches!(self.kernel, Some(KernelArg::Matrix)))
    }

    pub(crate) fn plan_options(&self) -> PlanOptions {
        self.kernel.map_or_else(PlanOptions::default, |kernel| PlanOptions::kernel(kernel.into()))
    }
}

/// What wgpu wants said before it gives its experimental features.
#[allow(unsafe_code)]
fn experimental() -> wgpu::ExperimentalFeatures {
    // Safety: who asks this program for matrices is told by its help that they are experimental in wgpu, which may have bugs there
    // that no checks on this side can find. There is nothing else to keep to.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

impl Gpu {
    /// With matrices only where they are asked for.
    pub(crate) fn open(adapter: Option<&str>, matrices: bool) -> Result<Gpu> {
        let mut options = headless::Options::default();
        options.adapter = adapter.map(str::to_owned);
        if matrices {
            options.experimental = experimental();
        }
        let gpu = headless::open_blocking(&options)?;
        Ok(Gpu { info: gpu.adapter.get_info(), attention: gpu.attention(), queue: gpu.queue })
    }

    /// The driver with its version and the API it is reached by.
    pub(crate) fn driver(&self) -> String {
        let wgpu::AdapterInfo { driver, driver_info, backend, .. } = &self.info;
        let names: Vec<_> = [driver, driver_info].into_iter().filter(|s| !s.is_empty()).cloned().collect();
        format!("{}, {backend}", if names.is_empty() { "not told".to_owned() } else { names.join(" ") })
    }

    /// Runs a plan `repeats` times with its data on the device, and gives the results and the median time from
    /// submitting to the device's being done.
    ///
    /// This is how an app runs attention: prepare, bind once, encode into an encoder of its own. For results alone
    /// [`Attention::run_plan`] would do.
    pub(crate) fn timed(
        &self,
        plan: &Plan,
        inputs: &Inputs<'_>,
        repeats: usize,
    ) -> Result<(Outputs, Duration)> {
        inputs.check(plan.problem())?;
        let prepared = self.attention.prepare_blocking(plan)?;
        let device = self.attention.device();
        let upload = |label: &str, bytes: &[u8]| {
            device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
                label: Some(label),
                // WebGPU has no empty bindings.
                contents: if bytes.is_empty() { &[0; 4] } else { bytes },
                usage: wgpu::BufferUsages::STORAGE,
            })
        };
        let result = |label: &str, size: u64, usage| {
            device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: size.max(4),
                usage,
                mapped_at_creation: false,
            })
        };
        let from_shader = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let to_host = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
        let (out_bytes, stats_bytes) = (plan.tensor_bytes(Tensor::Out), plan.stats_bytes());
        let q = upload("q", bytemuck::cast_slice(inputs.q));
        let k = upload("k", bytemuck::cast_slice(inputs.k));
        let v = upload("v", bytemuck::cast_slice(inputs.v));
        let tables =
            upload("tables", bytemuck::cast_slice(&plan.tables().pack(plan.problem(), &inputs.tables)?));
        let out = result("out", out_bytes, from_shader);
        let stats = result("stats", stats_bytes, from_shader);
        let mut buffers = Buffers::new(&q, &k, &v, &out);
        if stats_bytes > 0 {
            buffers = buffers.stats(&stats);
        }
        if plan.tables().bytes() > 0 {
            buffers = buffers.tables(&tables);
        }
        let bound = prepared.bind(&buffers)?;

        let lost = |e: &dyn std::fmt::Display| Fail::from(Error::DeviceLost(e.to_string()));
        let submit = |record: &dyn Fn(&mut wgpu::CommandEncoder)| {
            let mut encoder =
                device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("timed") });
            record(&mut encoder);
            let commands = encoder.finish();
            let start = Instant::now();
            self.queue.submit([commands]);
            device.poll(wgpu::PollType::wait_indefinitely()).map_err(|e| lost(&e))?;
            Ok::<_, Fail>(start.elapsed())
        };
        let mut times = Vec::new();
        for _ in 0..repeats.max(1) {
            times.push(submit(&|encoder| bound.encode(encoder))?);
        }
        times.sort_unstable();

        let host = result("results", out_bytes + stats_bytes, to_host);
        submit(&|encoder| {
            encoder.copy_buffer_to_buffer(&out, 0, &host, 0, out_bytes);
            encoder.copy_buffer_to_buffer(&stats, 0, &host, out_bytes, stats_bytes);
        })?;
        host.map_async(wgpu::MapMode::Read, .., |_| {});
        device.poll(wgpu::PollType::wait_indefinitely()).map_err(|e| lost(&e))?;
        let bytes = host.get_mapped_range(..).map_err(|e| lost(&e))?.to_vec();
        let floats = |range: std::ops::Range<u64>| -> Vec<f32> {
            let bytes = bytes.get(range.start as usize..range.end as usize).unwrap_or_default();
            bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
        };
        let stat = |stat| {
            let range = plan.stats_range(stat)?;
            Some(floats(out_bytes + range.start..out_bytes + range.end))
        };
        let outputs = Outputs {
            out: floats(0..out_bytes),
            lse: stat(Stat::Lse),
            entropy: stat(Stat::Entropy),
            row_max: stat(Stat::RowMax),
        };
        Ok((outputs, times[times.len() / 2]))
    }
}
