//! Keeps a file that is cut short, or whose disk fails, from killing the process that maps it.
//!
//! Touching such a page raises SIGBUS. The handler looks the address up in a table of our
//! mappings; for one of ours it raises that mapping's flag and puts zero pages in place of the
//! whole mapping, so that the copy under way ends; whoever copied then looks at the flag and
//! throws the bytes away. The flag is raised before the pages change, so zeros are never seen
//! without it. Everything else goes to the handler that was there before.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicUsize,
    Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst},
};

/// Mappings that can be guarded at once; beyond it files are read by `pread`.
const SLOTS: usize = 16_384;

pub(super) struct Slot {
    /// 0 when free.
    start: AtomicUsize,
    /// 0 while the slot is being filled or emptied: then it matches no address.
    end: AtomicUsize,
    damaged: AtomicBool,
}

static TABLE: [Slot; SLOTS] = [const {
    Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), damaged: AtomicBool::new(false) }
}; SLOTS];

/// No slot at or above this was ever used.
static HIGH: AtomicUsize = AtomicUsize::new(0);

/// The action that was there before ours; written once, before our handler can run.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

impl Slot {
    /// Takes a free slot for `start..end`, or `None` when all are taken. The caller unregisters
    /// it before it unmaps.
    pub(super) fn register(start: usize, end: usize) -> io::Result<Option<&'static Slot>> {
        install()?;
        for (i, slot) in TABLE.iter().enumerate() {
            if slot.start.load(Relaxed) == 0
                && slot.start.compare_exchange(0, start, AcqRel, Relaxed).is_ok()
            {
                slot.damaged.store(false, Relaxed);
                HIGH.fetch_max(i + 1, SeqCst);
                slot.end.store(end, SeqCst);
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    pub(super) fn unregister(&self) {
        self.end.store(0, SeqCst);
        self.start.store(0, SeqCst);
    }

    pub(super) fn damaged(&self) -> bool {
        self.damaged.load(Acquire)
    }

    pub(super) fn set_damaged(&self) {
        self.damaged.store(true, Release);
    }

    fn covers(&self, addr: usize) -> Option<(usize, usize)> {
        let end = self.end.load(SeqCst);
        let start = self.start.load(SeqCst);
        (end == self.end.load(SeqCst) && start <= addr && addr < end).then_some((start, end))
    }
}

fn install() -> io::Result<()> {
    static DONE: OnceLock<Result<(), i32>> = OnceLock::new();
    let done = DONE.get_or_init(|| {
        let mut old = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: with a null new action this only writes the present one into `old`.
        if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), old.as_mut_ptr()) } != 0 {
            return Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
        }
        // SAFETY: sigaction succeeded and filled it.
        let old = unsafe { old.assume_init() };
        // Never freed: the handler may read it as long as the process lives.
        PREVIOUS.store(Box::into_raw(Box::new(old)), Release);

        // SAFETY: all-zero is a valid sigaction: default handler, empty mask, no flags.
        let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
        let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
            on_sigbus;
        new.sa_sigaction = handler as libc::sighandler_t;
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
        // SAFETY: `new` is whole, its handler has the signature that SA_SIGINFO asks for and does
        // nothing but atomics and system calls.
        match unsafe { libc::sigaction(libc::SIGBUS, &new, ptr::null_mut()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL)),
        }
    });
    done.map_err(io::Error::from_raw_os_error)
}

extern "C" fn on_sigbus(sig: libc::c_int, info: *mut libc::siginfo_t, ctx: *mut libc::c_void) {
    // SAFETY: errno of this thread; restored below, since the interrupted code may be about to
    // read it.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: the kernel passes a valid siginfo for SA_SIGINFO; si_addr is set for kernel faults,
    // which have a positive code.
    let (code, addr) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    let ours = code > 0 && rescue(addr);
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    if !ours {
        pass_on(sig, info, ctx);
    }
}

fn rescue(addr: usize) -> bool {
    for slot in TABLE.iter().take(HIGH.load(SeqCst)) {
        if let Some((start, end)) = slot.covers(addr) {
            slot.damaged.store(true, SeqCst);
            // SAFETY: `start..end` is a mapping of ours and stays so: it is unregistered before it
            // is unmapped, and the thread that faulted holds it. Nobody holds references into it,
            // so its contents may change to zeros.
            let at = unsafe {
                libc::mmap(
                    start as *mut libc::c_void,
                    end - start,
                    libc::PROT_READ,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE,
                    -1,
                    0,
                )
            };
            return at != libc::MAP_FAILED;
        }
    }
    false
}

fn pass_on(sig: libc::c_int, info: *mut libc::siginfo_t, ctx: *mut libc::c_void) {
    // SAFETY: written once before the handler was installed, and never freed.
    let old = unsafe { &*PREVIOUS.load(Acquire) };
    match old.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restores an action that was valid, then lets the fault (or, for a signal
            // that was sent, its repetition) take it: the process dies as it would have without us.
            unsafe {
                libc::signal(sig, libc::SIG_DFL);
                if (*info).si_code <= 0 {
                    libc::raise(sig);
                }
            }
        }
        f if old.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: SA_SIGINFO says that `f` is a function of this signature.
            let f: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                unsafe { std::mem::transmute(f) };
            f(sig, info, ctx);
        }
        f => {
            // SAFETY: without SA_SIGINFO a handler that is not DFL or IGN takes the number alone.
            let f: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(f) };
            f(sig);
        }
    }
}
