//! Which record ids make up the batch of a step.
//!
//! A [`Spec`] (`mode=cyclic,batch=256,seed=42`) and the number of records make a [`Sampler`]; a step, any `u64`, then
//! gives the ids of its batch. Nothing is kept between steps and nothing the size of the data is allocated.
//!
//! `docs/order.md` defines the mapping exactly; the files in `tests/golden` pin it.
//!
//! ```
//! use batchfs_sampler::{Sampler, Spec};
//!
//! let spec: Spec = "mode=cyclic,batch=4,seed=42".parse()?;
//! let sampler = Sampler::new(spec, 1000)?;
//! let mut ids = [0; 4];
//! sampler.ids(17, &mut ids);
//! assert!(ids.iter().all(|&id| id < 1000));
//! assert_eq!(spec.to_string(), "mode=cyclic,batch=4,seed=42");
//! # Ok::<(), batchfs_sampler::SpecError>(())
//! ```

mod draw;
mod error;
mod feistel;
mod iid;
pub mod lanes;
mod permutation;
mod sampler;
mod shuffle;
mod spec;
mod text;

pub use error::SpecError;
pub use sampler::Sampler;
pub use spec::{Mode, Remainder, Spec};
