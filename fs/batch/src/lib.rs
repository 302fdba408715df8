//! From a step to its bytes: plan, layout, gather; and prefetch in step order.
//!
//! ```text
//! (view, item, number, face) --plan--> record ids --layout--> size and offsets --gather--> region
//! ```
//!
//! [`View::plan`] and [`View::layout`] are arithmetic and never touch a payload, so a size is
//! known before a byte of it exists. [`Engine::open`] is the one way to the bytes: it keeps the
//! regions in use, fills those that are asked for, and those that will be asked for next.

mod arrow;
mod dataset;
mod describe;
mod engine;
mod error;
mod face;
mod fillers;
mod gather;
mod layout;
mod metrics;
mod order;
mod predict;
mod render;
mod resident;
mod slots;
mod stamp;
mod tokens;
mod write;

pub use arrow::arrow_type;
pub use dataset::{Dataset, NamedStream, View};
pub use engine::{Batch, Engine, Options};
pub use error::{Error, Result};
pub use face::{Face, Item, Key, Making};
pub use gather::gather_records;
pub use layout::{Array, Fill, Layout, Pieces};
pub use metrics::Metrics;
pub use order::ViewSpec;
pub use resident::{Piece, Resident};
pub use stamp::stamp;
pub use tokens::{Provenance, StateError, StepPart, TokenFigures, TokenRows, TokenState, Tokens};

pub use batchfs_sampler::lanes::{LaneSpec, Mix, SourceRow};
pub use batchfs_sampler::{Spec, SpecError};
