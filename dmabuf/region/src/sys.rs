//! The crate's `unsafe` code: shared mappings, aligned memory, and system calls that `nix` does not wrap.
#![allow(unsafe_code)]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use memmap2::{Advice, MmapOptions, MmapRaw};

/// A shared, writable mapping of a whole file of this crate.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: MmapRaw,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes of `file`, which must be that long. With `huge`, asks for pages of that
    /// size and maps up to the end of the last one, for else the tail would get small pages.
    pub(crate) fn new(
        file: impl AsFd,
        len: NonZeroUsize,
        huge: Option<NonZeroUsize>,
    ) -> io::Result<Mapping> {
        let unit = huge.unwrap_or(NonZeroUsize::MIN);
        let mapped =
            len.get().checked_next_multiple_of(unit.get()).ok_or(io::ErrorKind::InvalidInput)?;
        let map = MmapOptions::new().len(mapped).map_raw(file.as_fd().as_raw_fd())?;
        if huge.is_some() {
            // A kernel without huge pages refuses, which costs speed and nothing else.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Mapping { map, len: len.get() })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes, all within the file, are mapped readable until drop. The file is
        // ours alone to write and `bytes_mut` needs `&mut self`, so nothing changes them meanwhile.
        unsafe { std::slice::from_raw_parts(self.map.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes it the only reference in this process;
        // outside there is none, since the arena never hands exposed memory out for writing again.
        unsafe { std::slice::from_raw_parts_mut(self.map.as_mut_ptr(), self.len) }
    }
}

fn checked(ret: c_long) -> io::Result<c_long> {
    if ret < 0 { Err(io::Error::last_os_error()) } else { Ok(ret) }
}

fn owned(ret: c_long) -> io::Result<OwnedFd> {
    let fd = checked(ret)? as c_int;
    // SAFETY: the kernel has just returned this descriptor to us, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Mounts a tmpfs that no mount table shows and returns its root folder's descriptor.
///
/// The options are those of tmpfs(5). Needs CAP_SYS_ADMIN and Linux 5.2.
pub(crate) fn private_tmpfs(options: &[(&CStr, &CStr)]) -> io::Result<OwnedFd> {
    const FSCONFIG_SET_STRING: c_int = 1;
    const FSCONFIG_CMD_CREATE: c_int = 6;
    const FD_CLOEXEC: c_int = 1;
    // SAFETY: the name is a NUL-terminated string.
    let fs = owned(unsafe { libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), FD_CLOEXEC) })?;
    for (key, value) in options {
        // SAFETY: key and value are NUL-terminated strings that outlive the call.
        checked(unsafe {
            libc::syscall(
                libc::SYS_fsconfig,
                fs.as_raw_fd(),
                FSCONFIG_SET_STRING,
                key.as_ptr(),
                value.as_ptr(),
                0,
            )
        })?;
    }
    let null = std::ptr::null::<libc::c_char>();
    // SAFETY: the create command takes no strings.
    checked(unsafe {
        libc::syscall(libc::SYS_fsconfig, fs.as_raw_fd(), FSCONFIG_CMD_CREATE, null, null, 0)
    })?;
    let attributes = libc::MOUNT_ATTR_NODEV | libc::MOUNT_ATTR_NOSUID | libc::MOUNT_ATTR_NOEXEC;
    // SAFETY: no pointers are passed.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, fs.as_raw_fd(), FD_CLOEXEC, attributes) })
}

/// A second mount of the tmpfs with this root, read-only, which no mount table shows either.
///
/// Needs what the first one needed, and Linux 6.15, since an earlier one clones no mount without a
/// place in the tree.
pub(crate) fn read_only_twin(root: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE
        | libc::OPEN_TREE_CLOEXEC
        | c_uint::try_from(libc::AT_EMPTY_PATH).unwrap_or_default();
    // SAFETY: the path is a NUL-terminated string.
    let twin = owned(unsafe {
        libc::syscall(libc::SYS_open_tree, root.as_raw_fd(), c"".as_ptr(), flags)
    })?;
    let attr = libc::mount_attr {
        attr_set: libc::MOUNT_ATTR_RDONLY,
        attr_clr: 0,
        propagation: 0,
        userns_fd: 0,
    };
    // SAFETY: path and attributes outlive the call, and the size is theirs.
    checked(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            twin.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(twin)
}

/// A tmpfs for a user without rights, as [`private_tmpfs`] makes it, and its read-only twin: in a
/// user namespace everybody may mount one, and what was mounted outlives the namespace's last process.
///
/// # Errors
/// Where users may have no namespaces, or no twin can be had: nobody else keeps other processes
/// of the user from writing.
pub(crate) fn tmpfs_in_namespace(options: &[(&CStr, &CStr)]) -> io::Result<(OwnedFd, OwnedFd)> {
    const STACK: usize = 256 << 10;
    struct Job<'a> {
        options: &'a [(&'a CStr, &'a CStr)],
        maps: [(&'static str, String); 3],
        made: io::Result<(OwnedFd, OwnedFd)>,
    }
    impl Job<'_> {
        fn run(&self) -> io::Result<(OwnedFd, OwnedFd)> {
            let flags = libc::CLONE_NEWUSER | libc::CLONE_NEWNS;
            // SAFETY: no pointers are passed.
            checked(unsafe { libc::unshare(flags) }.into())?;
            for (name, map) in &self.maps {
                std::fs::write(format!("/proc/self/{name}"), map)?;
            }
            let root = private_tmpfs(self.options)?;
            let twin = read_only_twin(&root)?;
            Ok((root, twin))
        }
    }
    extern "C" fn child(job: *mut c_void) -> c_int {
        // SAFETY: the job of the caller, who waits meanwhile.
        let job = unsafe { &mut *job.cast::<Job<'_>>() };
        job.made = job.run();
        0
    }
    // Files have the owner that they would have outside.
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let mut job = Job {
        options,
        maps: [
            ("setgroups", "deny".to_owned()),
            ("uid_map", format!("{uid} {uid} 1")),
            ("gid_map", format!("{gid} {gid} 1")),
        ],
        made: Err(io::ErrorKind::Other.into()),
    };
    let mut stack = vec![0u128; STACK / size_of::<u128>()];
    // A process that shares memory and descriptors with this one, which has no other threads and so
    // may change its namespace. This thread stands still until it ends.
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_FILES;
    // SAFETY: stack and job outlive the child, which ends before this returns; the stack's end is
    // aligned. The child leaves this thread's own state as it would in a call, and never unwinds.
    let pid = checked(
        unsafe {
            libc::clone(child, stack.as_mut_ptr_range().end.cast(), flags, (&raw mut job).cast())
        }
        .into(),
    )?;
    // SAFETY: no status is asked for. Without an exit signal nobody else waits for it.
    unsafe { libc::waitpid(pid as c_int, std::ptr::null_mut(), libc::__WALL) };
    drop(stack);
    job.made
}

/// Takes and gives back a write lease: succeeds only if `file` is the one open description of
/// its inode, with no other descriptor and no mapping made through another one.
pub(crate) fn sole_user(file: impl AsFd) -> io::Result<bool> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: F_SETLEASE takes an integer argument.
    match checked(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) }.into()) {
        Ok(_) => {
            // SAFETY: as above.
            checked(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) }.into())?;
            Ok(true)
        }
        Err(e) if e.raw_os_error() == Some(libc::EAGAIN) => Ok(false),
        Err(e) => Err(e),
    }
}

/// Bytes on the heap that begin at a multiple of [`Heap::ALIGN`].
pub(crate) struct Heap {
    at: NonNull<u8>,
    layout: Layout,
}

impl Heap {
    /// What addresses are a multiple of.
    pub(crate) const ALIGN: usize = 64;

    /// `len` zero bytes, at least one; `None` if there is no memory.
    pub(crate) fn new(len: usize) -> Option<Heap> {
        let layout = Layout::from_size_align(len.max(1), Heap::ALIGN).ok()?;
        // SAFETY: the size is not 0.
        let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        Some(Heap { at, layout })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: allocated with this size and initialised, until drop; borrowed as `self` is.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.layout.size()) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.layout.size()) }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout, and freed here alone.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

// SAFETY: it owns its bytes, as a Box does.
unsafe impl Send for Heap {}
// SAFETY: shared access reads only.
unsafe impl Sync for Heap {}
