//! The functions of the HIP runtime that are used, and calls of them.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

/// `hipExternalMemoryHandleDesc`, as long as its newest form: older runtimes read less of it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct HandleDesc {
    kind: c_int,
    handle: Handle,
    size: c_ulonglong,
    flags: c_uint,
    reserved: [c_uint; 16],
}

#[repr(C)]
#[derive(Clone, Copy)]
union Handle {
    fd: c_int,
    win32: [*const c_void; 2],
}

/// `hipExternalMemoryBufferDesc`, likewise.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct BufferDesc {
    offset: c_ulonglong,
    size: c_ulonglong,
    flags: c_uint,
    reserved: [c_uint; 16],
}

const OPAQUE_FD: c_int = 1;
const DEVICE_TO_HOST: c_int = 2;
const DMA_BUF_FD: c_int = 1;
const INVALID_VALUE: c_int = 1;

macro_rules! functions {
    (
        required { $($name:ident($($arg:ty),*) -> $ret:ty;)* }
        optional { $($maybe:ident($($marg:ty),*) -> $mret:ty;)* }
    ) => {
        /// The functions of a loaded library.
        #[allow(non_snake_case)]
        pub(crate) struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> $ret,)*
            $($maybe: Option<unsafe extern "C" fn($($marg),*) -> $mret>,)*
        }

        #[allow(non_snake_case)]
        impl Functions {
            /// Those of `library`, and the names of the optional ones that it lacks.
            fn of(library: &Library) -> Result<(Functions, Vec<&'static str>), Vec<&'static str>> {
                let (mut lacks, mut without) = (Vec::new(), Vec::new());
                // SAFETY: the types are those of HIP's header for these names, which the feature
                // `hip-sys-check` compares.
                $(let $name = unsafe {
                    library.get::<unsafe extern "C" fn($($arg),*) -> $ret>(
                        concat!(stringify!($name), "\0").as_bytes())
                }.map(|f| *f).inspect_err(|_| lacks.push(stringify!($name)));)*
                // SAFETY: as above.
                $(let $maybe = unsafe {
                    library.get::<unsafe extern "C" fn($($marg),*) -> $mret>(
                        concat!(stringify!($maybe), "\0").as_bytes())
                }.map(|f| *f).inspect_err(|_| without.push(stringify!($maybe))).ok();)*
                match ($($name,)*) {
                    ($(Ok($name),)*) => Ok((Functions { $($name,)* $($maybe,)* }, without)),
                    _ => Err(lacks),
                }
            }
        }

        #[cfg(all(test, feature = "hip-sys-check"))]
        mod check {
            use super::*;
            use super::shape::{Part, Shape, any};

            fn same(name: &str, ours: Vec<Part>, theirs: Vec<Part>) {
                assert_eq!(ours, theirs, "{name}");
            }

            #[test]
            fn structures_begin_as_those_of_the_header() {
                use std::mem::offset_of;
                use hip_sys::hiprt::{hipExternalMemoryBufferDesc_st, hipExternalMemoryHandleDesc_st};
                assert_eq!(offset_of!(HandleDesc, kind), offset_of!(hipExternalMemoryHandleDesc_st, type_));
                assert_eq!(offset_of!(HandleDesc, handle), offset_of!(hipExternalMemoryHandleDesc_st, handle));
                assert_eq!(offset_of!(HandleDesc, size), offset_of!(hipExternalMemoryHandleDesc_st, size));
                assert_eq!(offset_of!(HandleDesc, flags), offset_of!(hipExternalMemoryHandleDesc_st, flags));
                assert!(size_of::<HandleDesc>() >= size_of::<hipExternalMemoryHandleDesc_st>());
                assert_eq!(offset_of!(BufferDesc, offset), offset_of!(hipExternalMemoryBufferDesc_st, offset));
                assert_eq!(offset_of!(BufferDesc, size), offset_of!(hipExternalMemoryBufferDesc_st, size));
                assert_eq!(offset_of!(BufferDesc, flags), offset_of!(hipExternalMemoryBufferDesc_st, flags));
                assert!(size_of::<BufferDesc>() >= size_of::<hipExternalMemoryBufferDesc_st>());
                use hip_sys::hiprt::hipExternalMemoryHandleType as Kind;
                assert_eq!(Kind::hipExternalMemoryHandleTypeOpaqueFd as c_int, OPAQUE_FD);
                let copy = hip_sys::hiprt::hipMemcpyKind::hipMemcpyDeviceToHost;
                assert_eq!(copy as c_int, DEVICE_TO_HOST);
            }

            #[test]
            fn signatures_are_those_of_the_header() {
                $(same(
                    stringify!($name),
                    <unsafe extern "C" fn($($arg),*) -> $ret as Shape>::shape(),
                    any!(hip_sys::hiprt::$name, $($arg),*),
                );)*
                $(check_optional!($maybe, ($($marg),*) -> $mret);)*
            }
        }
    };
}

#[cfg(all(test, feature = "hip-sys-check"))]
macro_rules! check_optional {
    // Newer than the declarations that there are.
    (hipMemGetHandleForAddressRange, $($rest:tt)*) => {};
    (hipMemGetAddressRange, $($rest:tt)*) => {};
    ($name:ident, ($($arg:ty),*) -> $ret:ty) => {
        same(
            stringify!($name),
            <unsafe extern "C" fn($($arg),*) -> $ret as Shape>::shape(),
            any!(hip_sys::hiprt::$name, $($arg),*),
        );
    };
}

functions! {
    required {
        hipInit(c_uint) -> c_int;
        hipGetErrorString(c_int) -> *const c_char;
        hipGetDeviceCount(*mut c_int) -> c_int;
        hipGetDevice(*mut c_int) -> c_int;
        hipSetDevice(c_int) -> c_int;
        hipDeviceGetPCIBusId(*mut c_char, c_int, c_int) -> c_int;
        hipDeviceSynchronize() -> c_int;
        hipImportExternalMemory(*mut *mut c_void, *const HandleDesc) -> c_int;
        hipExternalMemoryGetMappedBuffer(*mut *mut c_void, *mut c_void, *const BufferDesc) -> c_int;
        hipDestroyExternalMemory(*mut c_void) -> c_int;
        hipFree(*mut c_void) -> c_int;
    }
    optional {
        hipRuntimeGetVersion(*mut c_int) -> c_int;
        hipGetLastError() -> c_int;
        hipMemcpy(*mut c_void, *const c_void, usize, c_int) -> c_int;
        hipMemGetAddressRange(*mut *mut c_void, *mut usize, *mut c_void) -> c_int;
        hipMemGetHandleForAddressRange(*mut c_void, *mut c_void, usize, c_int, c_ulonglong) -> c_int;
    }
}

/// Why a library is no runtime.
pub(crate) enum NotLoaded {
    /// In the loader's words.
    Loader(String),
    /// It lacks these functions.
    Lacks(Vec<&'static str>),
}

/// What HIP answers: 0, or the number of its error.
pub(crate) type Answer<T> = Result<T, c_int>;

fn checked(code: c_int) -> Answer<()> {
    if code == 0 { Ok(()) } else { Err(code) }
}

impl Functions {
    /// Loads a library, for ever: threads of it may run at any time. The second value has the
    /// optional functions that it lacks.
    pub(crate) fn load(path: &Path) -> Result<(Functions, Vec<&'static str>), NotLoaded> {
        // SAFETY: loading runs the library's initialisers. It is a HIP runtime, as its name or the
        // user says, and made to be loaded.
        let library = unsafe { Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|e| {
            // The cause is inside, and its text begins with the path.
            let cause =
                std::error::Error::source(&e).map_or_else(|| e.to_string(), |c| c.to_string());
            NotLoaded::Loader(cause)
        })?;
        let found = Functions::of(&library);
        std::mem::forget(library);
        found.map_err(NotLoaded::Lacks)
    }

    pub(crate) fn error_string(&self, code: c_int) -> String {
        // SAFETY: any number is answered, with a static NUL-terminated string.
        let text = unsafe { (self.hipGetErrorString)(code) };
        if text.is_null() {
            return "unknown error".to_owned();
        }
        // SAFETY: as above.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }

    /// HIP remembers a thread's last error, and whoever asks next takes it for its own.
    pub(crate) fn forget_error(&self) {
        if let Some(last) = self.hipGetLastError {
            // SAFETY: takes nothing.
            unsafe { last() };
        }
    }

    pub(crate) fn init(&self) -> Answer<()> {
        // SAFETY: takes a number. May be called any number of times, as all of these by any thread.
        checked(unsafe { (self.hipInit)(0) })
    }

    pub(crate) fn version(&self) -> Option<i32> {
        let mut version = 0;
        // SAFETY: writes one number to where it is told.
        let done = unsafe { self.hipRuntimeGetVersion?(&mut version) };
        (done == 0).then_some(version)
    }

    pub(crate) fn device_count(&self) -> Answer<i32> {
        let mut count = 0;
        // SAFETY: writes one number to where it is told.
        checked(unsafe { (self.hipGetDeviceCount)(&mut count) }).map(|()| count)
    }

    pub(crate) fn device(&self) -> Answer<i32> {
        let mut device = 0;
        // SAFETY: writes one number to where it is told.
        checked(unsafe { (self.hipGetDevice)(&mut device) }).map(|()| device)
    }

    pub(crate) fn set_device(&self, device: i32) -> Answer<()> {
        // SAFETY: takes a number.
        checked(unsafe { (self.hipSetDevice)(device) })
    }

    pub(crate) fn pci(&self, device: i32) -> Answer<String> {
        let mut text = [0u8; 64];
        let room = text.len() as c_int;
        // SAFETY: writes at most that many bytes, with a NUL at the end.
        checked(unsafe { (self.hipDeviceGetPCIBusId)(text.as_mut_ptr().cast(), room, device) })?;
        let text = CStr::from_bytes_until_nul(&text).unwrap_or_default();
        Ok(text.to_string_lossy().to_ascii_lowercase())
    }

    pub(crate) fn synchronize(&self) -> Answer<()> {
        // SAFETY: takes nothing.
        checked(unsafe { (self.hipDeviceSynchronize)() })
    }

    /// Imports the first `len` bytes of a dma-buf and gives them an address on the thread's device.
    /// The descriptor has to stay open until [`release`](Self::release).
    pub(crate) fn import(
        &self,
        fd: BorrowedFd<'_>,
        len: usize,
    ) -> Result<External, (&'static str, c_int)> {
        // The largest member, so that all of it is zero.
        let mut handle = Handle { win32: [std::ptr::null(); 2] };
        handle.fd = fd.as_raw_fd();
        let size = len as c_ulonglong;
        let desc = HandleDesc { kind: OPAQUE_FD, handle, size, flags: 0, reserved: [0; 16] };
        let (mut handle, mut at) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: laid out as HIP's; both outlive the call.
        checked(unsafe { (self.hipImportExternalMemory)(&mut handle, &desc) })
            .map_err(|code| ("hipImportExternalMemory", code))?;
        let desc = BufferDesc { offset: 0, size, flags: 0, reserved: [0; 16] };
        // SAFETY: imported just now; laid out as HIP's; both outlive the call.
        let mapped = unsafe { (self.hipExternalMemoryGetMappedBuffer)(&mut at, handle, &desc) };
        // Some runtimes succeed without an address.
        let mapped = if mapped == 0 && at.is_null() { INVALID_VALUE } else { mapped };
        checked(mapped).map_err(|code| {
            // SAFETY: imported just now, and forgotten here.
            unsafe { (self.hipDestroyExternalMemory)(handle) };
            ("hipExternalMemoryGetMappedBuffer", code)
        })?;
        Ok(External { handle: handle as usize, at: at as usize })
    }

    /// Ends the import and the address, which the device must not be at work with.
    pub(crate) fn release(&self, external: External) {
        // SAFETY: both come from `import`, and are used up here. What the calls answer helps nobody.
        unsafe {
            (self.hipFree)(external.at as *mut c_void);
            (self.hipDestroyExternalMemory)(external.handle as *mut c_void);
        }
    }

    /// The allocation that the device's address `at` lies in: where it begins, and its bytes.
    pub(crate) fn address_range(&self, at: usize) -> Option<Answer<(usize, usize)>> {
        let range = self.hipMemGetAddressRange?;
        let (mut base, mut len) = (std::ptr::null_mut(), 0);
        // SAFETY: any address is answered, with two numbers written to where it is told.
        let done = checked(unsafe { range(&mut base, &mut len, at as *mut c_void) });
        Some(done.map(|()| (base as usize, len)))
    }

    /// A dma-buf of `len` bytes on the device.
    pub(crate) fn export(&self, at: usize, len: usize) -> Option<Answer<std::os::fd::OwnedFd>> {
        let export = self.hipMemGetHandleForAddressRange?;
        let mut fd: c_int = -1;
        let place = (&raw mut fd).cast();
        // SAFETY: any range is answered; for this kind of handle one descriptor is written.
        let done = checked(unsafe { export(place, at as *mut c_void, len, DMA_BUF_FD, 0) });
        Some(done.and_then(|()| {
            if fd < 0 {
                return Err(INVALID_VALUE);
            }
            // SAFETY: HIP has made it for us.
            Ok(unsafe { super::owned(fd) })
        }))
    }

    /// Copies from the device, and waits for it. `None` if the runtime cannot.
    pub(crate) fn copy_out(&self, bytes: &DeviceBytes) -> Option<Answer<Vec<u8>>> {
        let copy = self.hipMemcpy?;
        let mut into = vec![0u8; bytes.len];
        let to = into.as_mut_ptr().cast();
        // SAFETY: so many bytes are there, as whoever made `bytes` promised, and `into` has as many.
        let done = unsafe { copy(to, bytes.at as *const c_void, bytes.len, DEVICE_TO_HOST) };
        Some(checked(done).map(|()| into))
    }
}

/// Imported memory.
pub(crate) struct External {
    handle: usize,
    at: usize,
}

impl External {
    pub(crate) fn at(&self) -> usize {
        self.at
    }
}

/// Bytes in a device's memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceBytes {
    at: usize,
    len: usize,
}

impl DeviceBytes {
    /// `len` bytes from the device's address `at` on.
    ///
    /// # Safety
    /// They are there, and stay there as long as this and what is made of it are used.
    pub unsafe fn new(at: usize, len: usize) -> DeviceBytes {
        DeviceBytes { at, len }
    }

    /// The device's address of the first one.
    pub fn at(&self) -> usize {
        self.at
    }

    /// How many.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.len
    }
}

#[cfg(all(test, feature = "hip-sys-check"))]
mod shape {
    /// Size, alignment and pointer or not, of the result and each argument of a C function.
    pub(super) type Part = (usize, usize, bool);

    pub(super) trait Shape {
        fn shape() -> Vec<Part>;
    }

    fn part<T>() -> Part {
        (size_of::<T>(), align_of::<T>(), std::any::type_name::<T>().starts_with('*'))
    }

    macro_rules! shapes {
        ($($arg:ident)*) => {
            impl<R, $($arg),*> Shape for unsafe extern "C" fn($($arg),*) -> R {
                fn shape() -> Vec<Part> {
                    vec![part::<R>() $(, part::<$arg>())*]
                }
            }
        };
    }
    shapes!();
    shapes!(A);
    shapes!(A B);
    shapes!(A B C);
    shapes!(A B C D);
    shapes!(A B C D E);

    pub(super) fn of<F: Shape>(_: F) -> Vec<Part> {
        F::shape()
    }

    macro_rules! hole {
        ($t:ty) => {
            _
        };
    }
    macro_rules! any {
        ($function:path, $($arg:ty),*) => {
            super::shape::of($function as unsafe extern "C" fn($(super::shape::hole!($arg)),*) -> _)
        };
    }
    pub(super) use {any, hole};
}
