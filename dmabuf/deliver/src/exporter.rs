//! What the service hands out, and who makes it.

use std::any::Any;
use std::sync::Arc;

use batchfs_region::Region;
use serde::{Deserialize, Serialize};

/// One array inside of what was exported.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name, as in the `.json` face.
    pub name: String,
    /// Element type, by the name that schemas use.
    pub dtype: String,
    /// Shape.
    pub shape: Vec<u64>,
    /// Bytes from one element to the next along each axis.
    pub strides: Vec<u64>,
    /// Bytes from the start of the file to the first element.
    pub offset: u64,
}

impl Tensor {
    /// An array in C order of elements of `size` bytes.
    pub fn packed(name: String, dtype: String, size: u64, shape: Vec<u64>, offset: u64) -> Tensor {
        let mut strides = vec![0; shape.len()];
        let mut next = size;
        for (stride, dim) in strides.iter_mut().zip(&shape).rev() {
            *stride = next;
            next = next.saturating_mul(*dim);
        }
        Tensor { name, dtype, shape, strides, offset }
    }
}

/// A batch to hand out.
pub struct Exported {
    /// Its bytes.
    pub region: Region,
    /// What is where in them.
    pub tensors: Vec<Tensor>,
    /// Kept until the client gave the batch back.
    pub held: Box<dyn Any + Send + Sync>,
}

/// Why something is not handed out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// What a file of the mount would fail with.
    pub errno: i32,
    /// The reason, in words.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(errno: nix::errno::Errno, message: impl Into<String>) -> Refusal {
        Refusal { errno: errno as i32, message: message.into() }
    }
}

/// Called when a batch is there or cannot be had.
pub type Then = Box<dyn FnOnce(Result<Exported, Refusal>) + Send>;

/// Makes what clients ask the service for. Nothing here may wait for a client.
pub trait Exporter: Send + Sync {
    /// What clients are told of the data when they connect: a JSON object.
    fn about(&self) -> serde_json::Value;

    /// The batches under a spec; those of the mount itself for an empty one. While the view is kept,
    /// the order of steps in which it is asked is remembered.
    ///
    /// # Errors
    /// If there is no such view.
    fn view(&self, spec: &str) -> Result<Arc<dyn Exports>, Refusal>;
}

/// The batches of one view.
pub trait Exports: Send + Sync {
    /// Gets a batch of a stream (or `index`, or `all`) in a face, and passes it to `then`: at once,
    /// on this thread, if it is ready, else later on another one.
    fn export(&self, stream: &str, step: u64, face: &str, then: Then);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strides_are_bytes_in_c_order() {
        let of = |shape: &[u64], size| {
            Tensor::packed("x".into(), "t".into(), size, shape.to_vec(), 0).strides
        };
        assert_eq!(of(&[256, 3, 224, 224], 1), [150_528, 50_176, 224, 1]);
        assert_eq!(of(&[5], 8), [8]);
        assert_eq!(of(&[], 8), [] as [u64; 0]);
        assert_eq!(of(&[4, 0, 3], 2), [0, 6, 2]);
    }
}
