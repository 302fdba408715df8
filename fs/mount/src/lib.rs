//! A dataset as a read-only FUSE filesystem.
//!
//! [`mount`] puts it on a folder and returns a [`Mounted`], whose [`serve`](Mounted::serve) runs
//! until it is unmounted. What is where in the tree is said by `README.txt` in its root, which
//! `guide` generates.

mod errlog;
mod errno;
mod files;
mod fs;
mod guide;
mod inode;
mod node;
mod preflight;
mod session;
mod tree;
mod views;

pub use preflight::{Refusal, SUBTYPE, clear_dead, find_helper, is_ours};
pub use session::{
    Delivery, Ended, MountError, Mounted, Options, Stopper, UnmountError, mount, unmount,
};
