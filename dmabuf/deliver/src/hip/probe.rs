use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::device::Device;
use crate::udmabuf::Udmabuf;

/// Whether a device takes dma-bufs that another driver than its own has made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Foreign {
    /// It was tried, and it does.
    Taken,
    /// It was tried, and it does not: why.
    Refused(String),
    /// It could not be tried: why.
    Untried(String),
}

static TRIED: Mutex<Option<HashMap<i32, Foreign>>> = Mutex::new(None);

impl Device {
    /// Tries once whether the device takes a udmabuf.
    pub fn takes_foreign(&self) -> Foreign {
        let mut tried = TRIED.lock().unwrap_or_else(PoisonError::into_inner);
        let tried = tried.get_or_insert_default();
        tried.entry(self.id()).or_insert_with(|| self.try_foreign()).clone()
    }

    fn try_foreign(&self) -> Foreign {
        let len = batchfs_region::page_size();
        let udmabuf = match Udmabuf::open() {
            Ok(udmabuf) => udmabuf,
            Err(e) => return Foreign::Untried(e.to_string()),
        };
        let made = CString::new("batchfs-probe").map_err(std::io::Error::other).and_then(|name| {
            let file =
                memfd_create(name.as_c_str(), MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC)?;
            ftruncate(&file, len as i64)?;
            fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
            Ok(file)
        });
        let made = made.map_err(|e| e.to_string()).and_then(|file| {
            use std::os::fd::AsFd as _;
            udmabuf.create(file.as_fd(), 0, len).map_err(|e| e.to_string())
        });
        match made {
            Err(e) => Foreign::Untried(e),
            Ok(dma_buf) => match self.import(dma_buf.fd(), len as usize) {
                Ok(_) => Foreign::Taken,
                Err(e) => Foreign::Refused(e.to_string()),
            },
        }
    }
}
