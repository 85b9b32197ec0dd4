//! What was found, and the file it is kept in.

use super::search::Tuned;
use crate::caps::Caps;
use crate::kernel::{Access, Kernel, PipelineKey};
use crate::plan::{Plan, PlanOptions, Tiles};
use crate::problem::Problem;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Choices that a [`Tuner`](super::Tuner) found, for any number of devices and classes of problems.
///
/// A choice holds for the adapter, driver, back end and version of this crate that it was found with, and for problems of the same
/// class: the same options, storage and head dims, and sizes that round up to the same powers of two.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Tuning {
    entries: Vec<Entry>,
    /// Of other releases, whose kernels may be others: kept as they are.
    others: Vec<serde_json::Value>,
}

/// One choice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// The adapter's name.
    pub adapter: String,
    /// Its driver with version, and the back end.
    pub driver: String,
    /// The version of this crate.
    pub crate_version: String,
    /// The class of problems.
    pub class: String,
    /// The choice, for [`Attention::plan_with`](crate::Attention::plan_with).
    pub options: PlanOptions,
    /// Time of the problem that was tuned with this choice, in seconds.
    pub seconds: f64,
    /// And with the planner's.
    pub planned_seconds: f64,
}

/// The words that a file begins with.
const FORMAT: &str = "wgpu-attention tuning";
/// The version of the file that this crate writes, and the only one that it reads.
const VERSION: u32 = 4;

#[derive(Debug, Serialize, Deserialize)]
struct File {
    format: String,
    version: u32,
    entries: Vec<serde_json::Value>,
}

/// What a file says before anything else is believed.
#[derive(Debug, Deserialize)]
struct Head {
    format: Option<String>,
    version: Option<u32>,
}

/// Why a tuning file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TuningError {
    /// It cannot be read or written.
    #[error("{path}: {message}")]
    Io {
        /// The file.
        path: String,
        /// What the system said.
        message: String,
    },
    /// It is no tuning file.
    #[error("this is no tuning file of wgpu-attention: {0}")]
    Foreign(String),
    /// It is one of another version.
    #[error("this tuning file has version {found}, but this release reads version {supported}: tune again")]
    Version {
        /// The file's.
        found: u32,
        /// What this release reads.
        supported: u32,
    },
    /// An entry cannot be used.
    #[error("entry {number} of the tuning file: {message}")]
    Entry {
        /// From 0.
        number: usize,
        /// What is wrong.
        message: String,
    },
    /// There is no home folder, in which the user's cache folder would be.
    #[error("there is no cache folder ({0}): say where the tuning file is to be")]
    NoCacheFolder(String),
}

impl Entry {
    fn is_for(&self, device: &DeviceName, class: &str) -> bool {
        self.adapter == device.adapter
            && self.driver == device.driver
            && self.crate_version == CRATE_VERSION
            && self.class == class
    }
}

/// A tuned choice depends on this crate's kernels.
pub(super) const CRATE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// What tells one device from another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DeviceName {
    pub(super) adapter: String,
    pub(super) driver: String,
}

impl DeviceName {
    pub(super) fn of(device: &wgpu::Device) -> Self {
        let wgpu::AdapterInfo { name, driver, driver_info, backend, .. } = device.adapter_info();
        let words = [driver, driver_info, backend.to_string()];
        let driver = words.into_iter().filter(|w| !w.is_empty()).collect::<Vec<_>>().join(", ");
        DeviceName { adapter: name, driver }
    }
}

/// The class that a problem belongs to, of which one is tuned for all.
pub(super) fn class(problem: &Problem, key: &PipelineKey) -> String {
    // The variant without what is to be chosen.
    let tiles = Tiles { threads: 1, row_groups: 1, keys_per_thread: 1, dim_chunk: 1, v_chunk: 0 };
    let plain = PipelineKey { kernel: Kernel::Naive, tiles, rows: None, matrix: None, ..key.clone() };
    let access = key.access.map(|access| if access == Access::Wide { Access::Vec4 } else { access });
    let variant = PipelineKey { access, native_f16: false, ..plain }.to_string();
    let variant = variant.replace("attention/naive ", "").replace(" 1 threads", "");
    let s = &problem.shape;
    let heads = u64::from(s.batch) * u64::from(s.q_heads);
    let [heads, rows, keys] = [heads, s.seq_q.into(), s.seq_k.into()].map(u64::next_power_of_two);
    format!("{variant}, up to {heads} heads ({} on one of keys) x {rows} queries x {keys} keys", s.group())
}

impl Tuning {
    /// All choices of this release.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Takes up what a tuner found; an earlier choice for the same device and class goes.
    pub fn insert(&mut self, tuned: &Tuned) {
        let entry = tuned.entry();
        let device = DeviceName { adapter: entry.adapter.clone(), driver: entry.driver.clone() };
        self.entries.retain(|old| !old.is_for(&device, &entry.class));
        self.entries.push(entry.clone());
    }

    /// The plan by the choice for a problem of which there is a plan; `None` where there is none, or where it cannot run this one.
    pub(crate) fn plan(&self, device: &wgpu::Device, caps: &Caps, planned: &Plan) -> Option<Plan> {
        let problem = planned.problem();
        let (device, class) = (DeviceName::of(device), class(problem, planned.key()));
        let entry = self.entries.iter().rev().find(|entry| entry.is_for(&device, &class))?;
        // What a device lacks that was there when it was tuned is left to the planner.
        let options = PlanOptions {
            native_f16: entry.options.native_f16.filter(|_| caps.shader_f16),
            wide_words: entry.options.wide_words.filter(|_| caps.shader_int64),
            ..entry.options
        };
        let plan = Plan::new(problem, caps, &options).ok()?;
        let reason = format!(
            "tuning found it fastest here for this class of problems, {:.3} against {:.3} ms",
            entry.seconds * 1e3,
            entry.planned_seconds * 1e3
        );
        Some(plan.because(reason))
    }

    /// From the text of a file.
    ///
    /// # Errors
    /// [`TuningError::Foreign`], [`TuningError::Version`], [`TuningError::Entry`].
    pub fn from_json(text: &str) -> Result<Self, TuningError> {
        let foreign = |e: serde_json::Error| TuningError::Foreign(e.to_string());
        let head: Head = serde_json::from_str(text).map_err(foreign)?;
        if head.format.as_deref() != Some(FORMAT) {
            return Err(TuningError::Foreign(format!("it does not say format {FORMAT:?}")));
        }
        match head.version {
            Some(VERSION) => {}
            Some(found) => return Err(TuningError::Version { found, supported: VERSION }),
            None => return Err(TuningError::Foreign("it does not say its version".to_owned())),
        }
        let file: File = serde_json::from_str(text).map_err(foreign)?;
        let mut tuning = Tuning::default();
        for (number, value) in file.entries.into_iter().enumerate() {
            match value.get("crate_version").and_then(|v| v.as_str()) {
                Some(CRATE_VERSION) => {
                    let entry = serde_json::from_value(value);
                    let wrong = |e: serde_json::Error| TuningError::Entry { number, message: e.to_string() };
                    tuning.entries.push(entry.map_err(wrong)?);
                }
                Some(_) => tuning.others.push(value),
                None => {
                    let message = "it does not say its crate_version".to_owned();
                    return Err(TuningError::Entry { number, message });
                }
            }
        }
        Ok(tuning)
    }

    /// The text of a file.
    pub fn to_json(&self) -> String {
        let own = self.entries.iter().filter_map(|entry| serde_json::to_value(entry).ok());
        let entries = self.others.iter().cloned().chain(own).collect();
        let file = File { format: FORMAT.to_owned(), version: VERSION, entries };
        // Strings and finite numbers in structs: nothing that JSON could not say.
        serde_json::to_string_pretty(&file).unwrap_or_default() + "\n"
    }

    /// The file in the user's cache folder: `wgpu-attention/tuning.json` in `$XDG_CACHE_HOME` or `~/.cache` on Linux,
    /// `~/Library/Caches` on macOS, `%LOCALAPPDATA%` on Windows.
    ///
    /// # Errors
    /// [`TuningError::NoCacheFolder`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn default_path() -> Result<std::path::PathBuf, TuningError> {
        use etcetera::base_strategy::{BaseStrategy, choose_native_strategy};
        let folders = choose_native_strategy().map_err(|e| TuningError::NoCacheFolder(e.to_string()))?;
        Ok(folders.cache_dir().join("wgpu-attention").join("tuning.json"))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`TuningError::Io`], and as [`Tuning::from_json`].
    pub fn load(path: &Path) -> Result<Self, TuningError> {
        Self::from_bytes(&std::fs::read(path).map_err(|e| io(path, e))?)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self, TuningError> {
        Self::from_json(std::str::from_utf8(bytes).map_err(|e| TuningError::Foreign(e.to_string()))?)
    }

    /// Reads a file; empty where there is none.
    ///
    /// # Errors
    /// As [`Tuning::load`], except for a file that does not exist.
    pub fn load_or_new(path: &Path) -> Result<Self, TuningError> {
        match std::fs::read(path) {
            Ok(bytes) => Self::from_bytes(&bytes),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Tuning::default()),
            Err(e) => Err(io(path, e)),
        }
    }

    /// Writes a file, and its folder where there is none. It is written beside its place and moved there, so that a reader finds
    /// the old one or the new one, whole.
    ///
    /// # Errors
    /// [`TuningError::Io`].
    pub fn save(&self, path: &Path) -> Result<(), TuningError> {
        let Some(name) = path.file_name() else {
            return Err(io(path, "it does not name a file"));
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(|e| io(folder, e))?;
        }
        let mut beside = name.to_owned();
        beside.push(format!(".{}", std::process::id()));
        let beside = path.with_file_name(beside);
        let written = std::fs::write(&beside, self.to_json()).and_then(|()| std::fs::rename(&beside, path));
        written.map_err(|e| {
            // What was begun is of no use; that it cannot be removed either is not the error to tell.
            let _ = std::fs::remove_file(&beside);
            io(path, e)
        })
    }
}

fn io(path: &Path, message: impl core::fmt::Display) -> TuningError {
    TuningError::Io { path: path.display().to_string(), message: message.to_string() }
}
