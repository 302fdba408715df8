//! What has to be made anew in a child: threads are not inherited.

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rayon::{ThreadPool, ThreadPoolBuilder};

static POOL: AtomicPtr<ThreadPool> = AtomicPtr::new(ptr::null_mut());
static GENERATION: AtomicU64 = AtomicU64::new(0);

extern "C" fn in_child() {
    // The parent's pool is leaked: its threads do not exist here, and to drop it would wait for them.
    POOL.store(ptr::null_mut(), Ordering::Release);
    GENERATION.fetch_add(1, Ordering::Release);
}

/// Takes note of forks from now on.
pub fn watch_forks() -> io::Result<()> {
    // SAFETY: the handler does nothing but atomics, and is never unloaded, as Python unloads no
    // extension module.
    match unsafe { libc::pthread_atfork(None, None, Some(in_child)) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// A number that is another one in a child than in its parent.
pub fn generation() -> u64 {
    GENERATION.load(Ordering::Acquire)
}

/// This process's threads for gathering and compressing.
///
/// # Errors
/// If they cannot be started.
pub fn pool() -> io::Result<&'static ThreadPool> {
    let mut at = POOL.load(Ordering::Acquire);
    if at.is_null() {
        let made = ThreadPoolBuilder::new().thread_name(|i| format!("batchfs-{i}")).build();
        let made = Box::into_raw(Box::new(made.map_err(io::Error::other)?));
        match POOL.compare_exchange(at, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => at = made,
            Err(other) => {
                // SAFETY: made above, and nobody else has seen it.
                drop(unsafe { Box::from_raw(made) });
                at = other;
            }
        }
    }
    // SAFETY: not null, and what was stored there is never freed.
    Ok(unsafe { &*at })
}
