//! A dataset as a read-only FUSE filesystem.
//!
//! [`prepare`] checks that this can be done, [`attach`](Prepared::attach) does it and returns a
//! [`Mounted`], whose [`serve`](Mounted::serve) runs until it is unmounted. What is where in the tree is said by `README.txt` in its root, which
//! `guide` generates.

mod attach;
mod attr;
mod buffers;
mod errlog;
mod errno;
mod exports;
mod files;
mod fs;
mod guide;
mod inode;
mod listing;
mod names;
mod node;
mod opening;
mod preflight;
mod session;
mod tree;
mod unmount;
mod unmounted;
mod utab;
mod views;
mod waiting;

pub use preflight::{Refusal, SUBTYPE, clear_dead, find_helper, is_ours, resolve};
pub use session::{Delivery, Ended, MountError, Mounted, Options, Prepared, Stopper, prepare};
pub use unmount::{UnmountError, unmount};
pub use unmounted::{Contents, NameError, Unmounted};
