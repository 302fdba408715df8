//! Memory for batches: anonymous files that other processes can map, in huge pages where the
//! machine allows, pooled where no reader was given them, under one byte budget.
//!
//! An [`Arena`] hands out [`RegionMut`]s. Filled and [frozen](RegionMut::freeze), a region becomes
//! a [`Region`], which is shared and never changes again. When the last handle goes, its memory is
//! kept to be filled again, unless it was [exposed](Region::expose) to readers outside of this process:
//! then it counts until none of them has it open or mapped, and is freed.
//!
//! A [`Pool`] hands out [`Block`]s, memory for readers in this process alone.
//! A [`Shelf`] is what such a pool keeps.

mod arena;
mod backing;
mod kept;
mod pool;
mod region;
mod shelf;
mod sys;

pub use arena::{AllocError, Arena, Config, Holder, Stats};
pub use backing::{Backing, HUGE_FROM, HUGE_PAGE, PAGE, page_size};
pub use kept::Kept;
pub use pool::{Block, Pool};
pub use region::{Region, RegionMut};
pub use shelf::{Keep, Shelf};
