//! The one home of this crate's `unsafe`: mappings of files and the guard around them.
//!
//! A mapping is only ever read by copying out of it, never through a reference: another process
//! may change or cut the file at any time.
#![allow(unsafe_code)]

mod advise;
mod bits;
mod guard;
mod map;
mod pages;
mod prefetch;
mod rename;
mod send;
mod stream;
mod writeback;

pub use advise::keep_freed_memory;
pub(crate) use bits::{AtomicBits, AtomicWords};
pub(crate) use map::{Mapping, physical_memory, will_need};
pub(crate) use pages::give_back;
pub(crate) use prefetch::prefetch;
pub(crate) use rename::rename_without_replacing;
pub(crate) use send::send;
pub(crate) use writeback::start_writeback;
