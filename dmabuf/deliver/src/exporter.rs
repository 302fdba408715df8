//! What the service hands out, and who makes it.

use std::any::Any;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use batchfs_region::Region;
use serde::{Deserialize, Serialize};

use crate::dmabuf::DmaBuf;
use crate::picture::Picture;

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
    /// How each record is a picture, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub picture: Option<Described>,
}

/// A [`Picture`], as messages have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Described {
    /// The format's four letters, as drm_fourcc.h has them.
    pub fourcc: String,
    /// The format modifier: 0, linear.
    pub modifier: u64,
    /// Pixels of a row.
    pub width: u32,
    /// Rows.
    pub height: u32,
    /// Bytes from a row to the next.
    pub pitch: u32,
    /// Who is going to refuse it, as far as it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub caveat: Option<String>,
}

impl Tensor {
    /// Says of a batch of uint8 how its records are pictures, if they are.
    #[must_use]
    pub fn with_picture(mut self) -> Tensor {
        let (Some(shape), Some(stride)) = (self.shape.get(1..), self.strides.first()) else {
            return self;
        };
        if let (true, Ok(picture)) = (self.dtype == "uint8", Picture::of(shape)) {
            // The first record that does not lie as well as the batch does.
            let caveat = picture.caveat(self.offset.saturating_add(*stride));
            self.picture = Some(Described {
                fourcc: picture.fourcc.to_string(),
                modifier: picture.modifier.into(),
                width: picture.width,
                height: picture.height,
                pitch: picture.pitch,
                caveat,
            });
        }
        self
    }
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
        Tensor { name, dtype, shape, strides, offset, picture: None }
    }
}

/// What a client wants a batch as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file that it can read.
    Memfd,
    /// A dma-buf.
    DmaBuf {
        /// Whether it may have pages that others see, too: it can write them.
        shared: bool,
    },
}

impl Kind {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Memfd => "memfd",
            Kind::DmaBuf { .. } => "dmabuf",
        }
    }
}

/// The memory of a batch to hand out.
pub enum Body {
    /// A region, which is lent.
    Region(Region),
    /// A dma-buf.
    DmaBuf {
        /// The buffer.
        buffer: DmaBuf,
        /// Its bytes.
        len: u64,
        /// Whether its pages are seen by others, too.
        shared: bool,
    },
}

/// A batch to hand out.
pub struct Exported {
    /// What it is called in messages.
    pub label: String,
    /// Its bytes.
    pub body: Body,
    /// What is where in them.
    pub tensors: Vec<Tensor>,
    /// Kept until the client gave the batch back, and no device has it any more.
    pub held: Box<dyn Any + Send + Sync>,
}

impl Exported {
    /// A descriptor for the client.
    ///
    /// # Errors
    /// If there is none left.
    pub(crate) fn lend(&self) -> std::io::Result<OwnedFd> {
        match &self.body {
            Body::Region(region) => region.lend(),
            Body::DmaBuf { buffer, .. } => buffer.fd().try_clone_to_owned(),
        }
    }

    pub(crate) fn kind(&self) -> &'static str {
        match &self.body {
            Body::Region(_) => "memfd",
            Body::DmaBuf { .. } => "dmabuf",
        }
    }

    pub(crate) fn size(&self) -> u64 {
        match &self.body {
            Body::Region(region) => region.len() as u64,
            Body::DmaBuf { len, .. } => *len,
        }
    }

    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.body, Body::Region(_) | Body::DmaBuf { shared: true, .. })
    }

    /// The client is gone without a word, and may have passed it on.
    pub(crate) fn abandon(&self) {
        if let Body::Region(region) = &self.body {
            region.expose();
        }
    }

    /// Whether somebody has it still: a device, or a process that it was passed to.
    pub(crate) fn is_held(&self) -> bool {
        match &self.body {
            // The arena asks the kernel.
            Body::Region(_) => false,
            Body::DmaBuf { buffer, .. } => !buffer.is_unused().unwrap_or(false),
        }
    }
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
    fn export(&self, stream: &str, step: u64, face: &str, kind: Kind, then: Then);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_pictures_say_so() {
        let of = |dtype: &str, shape: &[u64]| {
            Tensor::packed("x".into(), dtype.into(), 1, shape.to_vec(), 0).with_picture().picture
        };
        let found = of("uint8", &[8, 64, 64, 4]).unwrap();
        assert_eq!((found.fourcc.as_str(), found.modifier, found.pitch), ("AB24", 0, 256));
        assert_eq!((found.width, found.height, found.caveat), (64, 64, None));
        let caveat = of("uint8", &[8, 30, 20, 3]).unwrap().caveat.unwrap();
        assert!(caveat.contains("60 bytes apart") && caveat.contains("byte 1800"), "{caveat}");
        assert_eq!(of("int8", &[8, 64, 64, 4]), None);
        assert_eq!(of("uint8", &[8, 3, 64, 64]), None);
        assert_eq!(of("uint8", &[8]), None);
        assert_eq!(of("uint8", &[]), None);
    }

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
