//! What `batchfs doctor` says of AMD's GPUs: runtime, devices, and the nodes that it takes to use them.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use batchfs_dmabuf::Unavailable;
use batchfs_dmabuf::hip::{Device, Runtime};
use batchfs_dmabuf::render::{self, RenderNode};
use nix::unistd::{AccessFlags, access};

use crate::doctor::{Finding, good, less, missing};

const NOBODY_ELSE: &str = "only tensors on AMD's GPUs need it";

/// The findings. Everything here is optional.
pub(crate) fn findings() -> Vec<Finding> {
    let nodes = render::nodes();
    let mut all = vec![render_nodes(&nodes), kfd()];
    match Runtime::get(&packages()) {
        Ok(runtime) => all.extend([hip(runtime), gpus(runtime, &nodes)]),
        Err(e) => {
            let told = e.to_string();
            let (found, advice) = told.split_once("; ").unwrap_or((&told, "see docs/amd.md"));
            all.push(missing("hip", found, format!("{advice}; {NOBODY_ELSE}")));
        }
    }
    all
}

/// Folders of the active Python environment that may bring a runtime.
fn packages() -> Vec<PathBuf> {
    let root = env::var_os("VIRTUAL_ENV").or_else(|| env::var_os("CONDA_PREFIX"));
    let Some(lib) = root.map(|r| PathBuf::from(r).join("lib")) else { return Vec::new() };
    let all = fs::read_dir(lib).map(|all| all.flatten().map(|e| e.path()).collect::<Vec<_>>());
    let versions = all.unwrap_or_default().into_iter().map(|p| p.join("site-packages"));
    versions
        .flat_map(|p| [p.join("torch/lib"), p.join("_rocm_sdk_core/lib")])
        .filter(|p| p.is_dir())
        .collect()
}

/// Whether a node can be read and written, without opening it.
fn usable(what: &'static str, path: &Path) -> Result<(), Unavailable> {
    let may = access(path, AccessFlags::R_OK | AccessFlags::W_OK);
    may.map_err(|e| render::unusable(what, path, &io::Error::from(e)))
}

fn render_nodes(nodes: &[RenderNode]) -> Finding {
    const WHAT: &str = "render nodes";
    if nodes.is_empty() {
        let advice = format!(
            "load the GPU's driver; in a container, pass it on with `--device /dev/dri`; {NOBODY_ELSE}"
        );
        return missing(WHAT, "none (/dev/dri/renderD*)", advice);
    }
    let (mut found, mut advice) = (Vec::new(), Vec::new());
    for node in nodes {
        match usable("the render node", &node.path) {
            Ok(()) => found.push(node.describe()),
            Err(e) => {
                found.push(format!("{}, not usable: {}", node.describe(), e.why));
                advice.push(e.way_out);
            }
        }
    }
    let found = found.join("; ");
    if !advice.is_empty() {
        advice.dedup();
        return less(WHAT, found, advice.join("; "));
    }
    good(WHAT, found)
}

fn kfd() -> Finding {
    let path = Path::new("/dev/kfd");
    match usable("the compute node", path) {
        Ok(()) => good("kfd", "/dev/kfd can be opened"),
        Err(_) if !path.exists() => missing(
            "kfd",
            "/dev/kfd is not there",
            format!(
                "load the driver amdgpu; in a container, pass it on with `--device /dev/kfd`; {NOBODY_ELSE}"
            ),
        ),
        Err(e) => missing("kfd", e.why, format!("{}; {NOBODY_ELSE}", e.way_out)),
    }
}

fn hip(runtime: &Runtime) -> Finding {
    let version = runtime.version().map(|v| format!(", version {v}")).unwrap_or_default();
    let found = format!("{}{version}", runtime.library());
    let without = runtime.without();
    if without.is_empty() {
        return good("hip", found);
    }
    less(
        "hip",
        format!("{found}, without {}", without.join(", ")),
        "a newer ROCm has them; without hipMemGetHandleForAddressRange tensors of a GPU are copied to be appended",
    )
}

fn gpus(runtime: &'static Runtime, nodes: &[RenderNode]) -> Finding {
    let count = match runtime.devices() {
        Ok(0) => {
            return missing("gpus", "the HIP runtime sees none", format!("see kfd; {NOBODY_ELSE}"));
        }
        Ok(count) => count,
        Err(e) => {
            let advice =
                format!("is there a GPU of AMD's, and what do the lines above say? {NOBODY_ELSE}");
            return missing("gpus", e.to_string(), advice);
        }
    };
    let (mut found, mut without) = (Vec::new(), false);
    for id in 0..count {
        let pci = Device::new(runtime, id).and_then(|d| d.pci());
        let pci = match pci {
            Ok(pci) => pci,
            Err(e) => {
                without = true;
                found.push(format!("{id}: {e}"));
                continue;
            }
        };
        let own = nodes.iter().find(|n| n.driver == "amdgpu" && n.pci.as_ref() == Some(&pci));
        match own {
            Some(node) => found.push(format!("{id} at {pci} ({})", node.path.display())),
            None => {
                without = true;
                found.push(format!("{id} at {pci} (no render node)"));
            }
        }
    }
    let found = found.join("; ");
    if without {
        let advice = "batches for a GPU need its render node: in a container, pass it on with `--device /dev/dri`";
        return less("gpus", found, advice);
    }
    good("gpus", found)
}
