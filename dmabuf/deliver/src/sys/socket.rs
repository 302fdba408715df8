//! Packets with descriptors over Unix sockets.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, accept4, recvmsg, sendmsg,
};

use super::owned;

/// A packet that was received.
pub(crate) struct Packet {
    /// Its bytes that found room.
    pub(crate) len: usize,
    /// More bytes were sent than there was room for.
    pub(crate) cut: bool,
    /// A descriptor that came with it.
    pub(crate) file: Option<OwnedFd>,
}

/// The next connection; neither it nor a call on it waits.
pub(crate) fn accept(listener: impl AsFd) -> Result<OwnedFd, Errno> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = accept4(listener.as_fd().as_raw_fd(), flags)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { owned(fd) })
}

/// Sends a packet, with a descriptor or without one. Does not wait.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let fds = file.map(|f| [f.as_raw_fd()]);
    let rights = fds.as_ref().map(|fds| [ControlMessage::ScmRights(fds)]);
    let rights: &[ControlMessage<'_>] = rights.as_ref().map_or(&[], |r| r);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    loop {
        let fd = socket.as_fd().as_raw_fd();
        match sendmsg::<()>(fd, &[IoSlice::new(bytes)], rights, flags, None) {
            Ok(_) => return Ok(()),
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e),
        }
    }
}

/// Receives a packet, and descriptors if `files` says so; others are closed by the kernel. Waits if
/// the socket does.
pub(crate) fn receive(socket: impl AsFd, room: &mut [u8], files: bool) -> io::Result<Packet> {
    let mut space = if files { nix::cmsg_space!([i32; 4]) } else { Vec::new() };
    let mut slices = [IoSliceMut::new(room)];
    let fd = socket.as_fd().as_raw_fd();
    let got = loop {
        let control = files.then_some(space.as_mut_slice());
        match recvmsg::<()>(fd, &mut slices, control, MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(Errno::EINTR) => {}
            got => break got?,
        }
    };
    let mut file = None;
    // Cut off is what this process has no descriptor left for: the packet came without it.
    if files && !got.flags.contains(MsgFlags::MSG_CTRUNC) {
        for message in got.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = message {
                for fd in fds {
                    // SAFETY: the kernel has just made it for us. One too many is closed here.
                    file = Some(unsafe { owned(fd) });
                }
            }
        }
    }
    Ok(Packet { len: got.bytes, cut: got.flags.contains(MsgFlags::MSG_TRUNC), file })
}
