//! What the descriptor service hands out: the batches of the mount, from the same engine.

use std::sync::Arc;

use batchfs_batch::{Error, Face, Item, Key, Making, View};
use batchfs_dmabuf::{
    Body, Exported, Exporter, Exports, Kind, Peers, Refusal, Service, ServiceLimits, Tensor, Then,
};
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit};
use serde_json::{Value, json};

use crate::buffers::Buffers;
use crate::tree::Tree;
use crate::views::NoView;

/// Most clients at a time, where there are descriptors for them.
const CLIENTS: u64 = 4096;

/// Most requests of a client that are not answered and read.
const IN_FLIGHT: usize = 32;

/// Most descriptors of a client that it has not given back.
const LEASES: usize = 1024;

/// Starts the service of a mount. A mount without one is as good, so that none is a warning.
pub(crate) fn serve(tree: &Arc<Tree>, others: bool) -> Option<Service> {
    let descriptors = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
    let limits = ServiceLimits {
        clients: CLIENTS.min(descriptors / 2),
        in_flight: IN_FLIGHT,
        leases: LEASES,
        bytes: tree.engine.arena().limit() / 2,
    };
    let peers = if others { Peers::Others } else { Peers::Own };
    match Service::start(Arc::new(Data::new(tree)), peers, limits) {
        Ok(service) => {
            let _ = tree.socket.set(service.path().to_owned());
            let _ = tree.service.set(service.figures().clone());
            Some(service)
        }
        Err(e) => {
            tracing::warn!("there is no descriptor service: {e}");
            None
        }
    }
}

struct Data {
    tree: Arc<Tree>,
    buffers: Arc<Buffers>,
}

impl Data {
    fn new(tree: &Arc<Tree>) -> Data {
        let buffers = Buffers::new(tree.engine.arena().limit());
        Data { tree: tree.clone(), buffers: Arc::new(buffers) }
    }
}

/// A view that is in use as long as this lives.
struct Held {
    tree: Arc<Tree>,
    buffers: Arc<Buffers>,
    view: Arc<View>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.tree.views.forget(self.view.number(), 1, &self.tree.engine);
    }
}

impl Exporter for Data {
    fn about(&self) -> Value {
        let (tree, view) = (&self.tree, self.tree.main());
        let streams: Vec<&str> = view.dataset().streams().iter().map(|s| s.name.as_str()).collect();
        json!({
            "batchfs": env!("CARGO_PKG_VERSION"),
            "streams": streams,
            "spec": view.spec().to_string(),
            "local_batch": view.local_batch(),
            "kinds": self.buffers.kinds(),
            "memory_backing": tree.engine.arena().backing().name(),
        })
    }

    fn view(&self, spec: &str) -> Result<Arc<dyn Exports>, Refusal> {
        let (tree, buffers) = (self.tree.clone(), self.buffers.clone());
        if spec.is_empty() {
            let view = tree.main().clone();
            return Ok(Arc::new(Held { tree, buffers, view }));
        }
        let no = |why: String| {
            let why = format!("view/{spec}: there is no such view: {why}");
            tree.errors.add(Some("no view"), &why);
            Refusal::new(Errno::ENOENT, why)
        };
        let parsed = tree.main().dataset().parse_spec(spec).map_err(|e| no(e.to_string()))?;
        let number = tree.views.look_up(parsed, &tree.engine).map_err(|e| match e {
            NoView::Unfit(why) => no(why.to_string()),
            NoView::Full => Refusal::new(
                Errno::ENFILE,
                format!("view/{spec}: all 127 views that can be in use at a time are"),
            ),
        })?;
        let view = tree.views.get(number).ok_or_else(|| no("it is gone".to_owned()))?;
        Ok(Arc::new(Held { tree, buffers, view }))
    }
}

impl Held {
    fn key(&self, stream: &str, step: u64, face: &str) -> Result<Key, Refusal> {
        let data = self.view.dataset();
        let item = match stream {
            "index" => Item::Index,
            "all" => Item::All,
            name => Item::Batch(data.number_of(name).ok_or_else(|| {
                let there: Vec<&str> = data.streams().iter().map(|s| s.name.as_str()).collect();
                let there = there.join(", ");
                let why = format!("there is no stream {name:?}; there are {there}, index and all");
                Refusal::new(Errno::ENOENT, why)
            })?),
        };
        let suffix = if face.is_empty() { String::new() } else { format!(".{face}") };
        let face = Face::of_suffix(&suffix).filter(|f| f.making() == Making::Gathered);
        let face = face.ok_or_else(|| {
            let why = format!("there is no face {suffix:?} to export; there are npy, safetensors, arrow and, without a name, the bare file");
            Refusal::new(Errno::ENOENT, why)
        })?;
        Ok(Key { view: self.view.number(), item, face, number: step })
    }
}

impl Exports for Held {
    fn export(&self, stream: &str, step: u64, face: &str, kind: Kind, then: Then) {
        let key = match self.key(stream, step, face) {
            Ok(key) => key,
            Err(refusal) => return then(Err(refusal)),
        };
        let (tree, view, buffers) = (self.tree.clone(), self.view.clone(), self.buffers.clone());
        if let Kind::DmaBuf { shared } = kind {
            if let Err(refusal) = buffers.device() {
                return then(Err(refusal));
            }
            let resident = shared.then(|| buffers.of_records(&view, key)).flatten();
            match resident {
                Some(Ok(exported)) => return then(Ok(exported)),
                // It is gathered instead.
                Some(Err(why)) => tree.errors.add(Some("no pages"), why),
                None => {}
            }
        }
        self.tree.engine.open(key, &self.view, move |made| {
            let refuse = |why: &Error| {
                let errno = tree.failed(why).code();
                Refusal { errno, message: why.to_string() }
            };
            let done = made.map_err(|why| refuse(&why)).and_then(|batch| {
                let tensors = tensors(&view, key).map_err(|why| refuse(&why))?;
                match kind {
                    Kind::Memfd => Ok(Exported {
                        label: batch.region().label().to_owned(),
                        body: Body::Region(batch.region().clone()),
                        tensors,
                        held: Box::new(batch),
                    }),
                    Kind::DmaBuf { shared } => buffers.of_batch(batch, tensors, shared),
                }
            });
            then(done);
        });
    }
}

/// What is where in the file of `key`.
pub(crate) fn tensors(view: &View, key: Key) -> Result<Vec<Tensor>, Error> {
    let layout = view.layout(key)?;
    let arrays = layout.arrays.into_iter().filter(|a| a.is_data());
    Ok(arrays
        .map(|a| {
            let size = a.dtype.size() as u64;
            Tensor::packed(a.name, a.dtype.to_string(), size, a.shape, a.offset).with_picture()
        })
        .collect())
}
