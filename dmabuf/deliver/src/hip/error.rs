use std::fmt::Write as _;
use std::path::PathBuf;

use super::find::Candidate;

/// What goes wrong with the HIP runtime.
#[derive(Debug, thiserror::Error)]
pub enum HipError {
    /// There is no runtime.
    #[error(
        "there is no HIP runtime (libamdhip64.so, .so.7, .so.6 or .so.5) in {}; install ROCm's, or name it with BATCHFS_HIP_LIBRARY=/path/to/libamdhip64.so",
        listed(looked)
    )]
    NotFound {
        /// The folders that were looked into.
        looked: Vec<PathBuf>,
    },
    /// There are several, and nothing says which is meant.
    #[error(
        "there are {} different HIP runtimes, and two in one process break each other: {}; import the library that brings its own (such as torch) first, or choose one with BATCHFS_HIP_LIBRARY=PATH",
        found.len(), candidates(found)
    )]
    Several {
        /// All of them.
        found: Vec<Candidate>,
    },
    /// The library that was asked for is none that can be taken.
    #[error("BATCHFS_HIP_LIBRARY={}: {why}", path.display())]
    Override {
        /// As it was given.
        path: PathBuf,
        /// The rule that it breaks.
        why: String,
    },
    /// The library cannot be loaded.
    #[error("cannot load the HIP runtime {}: {why}", path.display())]
    Load {
        /// The library.
        path: PathBuf,
        /// What the loader says.
        why: String,
    },
    /// The library is too old, or something else of that name.
    #[error(
        "the HIP runtime {} lacks {}; HIP 5.2 and newer have them",
        path.display(), missing.join(", ")
    )]
    Lacks {
        /// The library.
        path: PathBuf,
        /// Functions that are needed.
        missing: Vec<&'static str>,
    },
    /// A function of the runtime failed.
    #[error("{function} failed: {text} (HIP error {code}), by {}", path.display())]
    Call {
        /// Which one.
        function: &'static str,
        /// HIP's number.
        code: i32,
        /// HIP's words.
        text: String,
        /// The library.
        path: PathBuf,
    },
    /// There is no such device.
    #[error(
        "there is no HIP device {id}: {}",
        if *count == 0 { "the runtime sees none; `batchfs doctor` says more".to_owned() }
        else { format!("the runtime sees {count}, numbered from 0") }
    )]
    NoDevice {
        /// The one asked for.
        id: i32,
        /// How many there are.
        count: i32,
    },
    /// The device has no render node that can be used.
    #[error(
        "HIP device {id} at {pci} has no render node of amdgpu here; there {}",
        nodes_are(nodes)
    )]
    NoNode {
        /// The device.
        id: i32,
        /// Its address.
        pci: String,
        /// The nodes that are there.
        nodes: Vec<String>,
    },
    /// A runtime does not outlive a fork.
    #[error(
        "the HIP runtime was loaded before a fork, which it does not survive; start workers by spawn or forkserver, or use the GPU in the parent alone"
    )]
    Forked,
    /// Memory of a device cannot be read here.
    #[error(
        "{len} bytes on HIP device {device} cannot be read by the processor: {why}; copy the tensor with .cpu() first"
    )]
    Unreadable {
        /// The device.
        device: i32,
        /// How many bytes.
        len: usize,
        /// The cause, of each way that was tried.
        why: String,
    },
}

fn listed(folders: &[PathBuf]) -> String {
    let all: Vec<_> = folders.iter().map(|f| f.display().to_string()).collect();
    all.join(", ")
}

fn candidates(found: &[Candidate]) -> String {
    let mut text = String::new();
    for (i, one) in found.iter().enumerate() {
        let comma = if i == 0 { "" } else { ", " };
        let _ = write!(text, "{comma}{one}");
    }
    text
}

fn nodes_are(nodes: &[String]) -> String {
    match nodes {
        [] => "is no render node at all (/dev/dri/renderD*)".to_owned(),
        [one] => format!("is {one}"),
        more => format!("are {}", more.join(", ")),
    }
}
