use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use nix::unistd::{Gid, Group, getegid, getgroups};

use crate::error::Unavailable;

/// A render node of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenderNode {
    /// Its device file.
    pub path: PathBuf,
    /// The kernel's driver for it, such as `amdgpu`.
    pub driver: String,
    /// Its PCI address, such as `0000:03:00.0`, if it has one.
    pub pci: Option<String>,
}

impl RenderNode {
    /// In words.
    pub fn describe(&self) -> String {
        let at = self.pci.as_ref().map(|pci| format!(" at {pci}")).unwrap_or_default();
        format!("{} ({}{at})", self.path.display(), self.driver)
    }
}

/// The render nodes of this machine, by their number. Opens none.
pub fn nodes() -> Vec<RenderNode> {
    nodes_of(Path::new("/sys/class/drm"), Path::new("/dev/dri"))
}

fn nodes_of(class: &Path, dev: &Path) -> Vec<RenderNode> {
    let Ok(all) = fs::read_dir(class) else { return Vec::new() };
    let mut found: Vec<(u32, RenderNode)> = all
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_prefix("renderD")?.parse().ok()?;
            let device = entry.path().join("device");
            let last = |path: &Path| -> Option<String> {
                Some(fs::canonicalize(path).ok()?.file_name()?.to_str()?.to_owned())
            };
            let driver = last(&device.join("driver")).unwrap_or_else(|| "unknown".to_owned());
            let is_pci = last(&device.join("subsystem")).is_some_and(|s| s == "pci");
            let pci = is_pci.then(|| last(&device)).flatten().map(|s| s.to_ascii_lowercase());
            Some((number, RenderNode { path: dev.join(name), driver, pci }))
        })
        .collect();
    found.sort_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, node)| node).collect()
}

/// The groups of this process, by number.
pub fn groups() -> Vec<u32> {
    let mut all: Vec<u32> = getgroups().unwrap_or_default().into_iter().map(Gid::as_raw).collect();
    all.push(getegid().as_raw());
    all.sort_unstable();
    all.dedup();
    all
}

/// Why a device file cannot be opened, and what helps: its mode, its group by number and ours.
pub fn unusable(what: &'static str, path: &Path, error: &io::Error) -> Unavailable {
    let name = path.display();
    let refused = error.kind() == io::ErrorKind::PermissionDenied;
    let owner = fs::metadata(path).ok().filter(|_| refused);
    let Some(owner) = owner else {
        let way_out = match error.kind() {
            io::ErrorKind::NotFound => {
                "load the driver that makes it; in a container, pass it on with `--device`"
            }
            io::ErrorKind::PermissionDenied => {
                "in a container, pass it on with `--device`, and allow it in the device rules"
            }
            _ => "see the kernel's log",
        };
        return Unavailable { what, why: format!("{name}: {error}"), way_out: way_out.to_owned() };
    };
    let (gid, mode) = (owner.gid(), owner.permissions().mode() & 0o777);
    let ours = groups();
    let numbers: Vec<_> = ours.iter().map(u32::to_string).collect();
    let called = Group::from_gid(Gid::from_raw(gid)).ok().flatten().map(|g| g.name);
    let named = called.as_ref().map(|n| format!(", {n} here")).unwrap_or_default();
    let why = format!(
        "{name}: {error}: it belongs to group number {gid}{named}, mode {mode:03o}; this process is in groups {}",
        numbers.join(", ")
    );
    let way_out = if mode & 0o060 != 0o060 {
        format!("let root say `chmod g+rw {name}`, and become a member of group number {gid}")
    } else if ours.contains(&gid) {
        "something else than its mode forbids it: a container's device rules or a security module"
            .to_owned()
    } else {
        let group = called.unwrap_or_else(|| gid.to_string());
        format!(
            "become a member of group number {gid} (`usermod -a -G {group} USER`, and log in anew); in a container, `--group-add {gid}`"
        )
    };
    Unavailable { what, why, way_out }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn node(root: &Path, name: &str, device: &str, subsystem: &str, driver: &str) {
        let device = root.join("devices").join(device);
        fs::create_dir_all(&device).unwrap();
        for (link, target) in [
            ("subsystem", root.join("bus").join(subsystem)),
            ("driver", root.join("drivers").join(driver)),
        ] {
            fs::create_dir_all(&target).unwrap();
            symlink(target, device.join(link)).unwrap();
        }
        let class = root.join("class").join(name);
        fs::create_dir_all(&class).unwrap();
        symlink(device, class.join("device")).unwrap();
    }

    #[test]
    fn nodes_have_drivers_and_addresses() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        node(at, "renderD129", "0000:C3:00.0", "pci", "amdgpu");
        node(at, "renderD128", "vgem", "faux", "vgem");
        fs::create_dir_all(at.join("class/card0")).unwrap();
        let found = nodes_of(&at.join("class"), Path::new("/dev/dri"));
        let want = [
            RenderNode { path: "/dev/dri/renderD128".into(), driver: "vgem".into(), pci: None },
            RenderNode {
                path: "/dev/dri/renderD129".into(),
                driver: "amdgpu".into(),
                pci: Some("0000:c3:00.0".into()),
            },
        ];
        assert_eq!(found, want);
        assert_eq!(found[1].describe(), "/dev/dri/renderD129 (amdgpu at 0000:c3:00.0)");
        assert!(nodes_of(&at.join("none"), Path::new("/dev/dri")).is_empty());
    }

    #[test]
    fn what_is_missing_is_told_with_numbers() {
        let missing = Path::new("/dev/dri/renderD999");
        let told = unusable("the render node", missing, &io::ErrorKind::NotFound.into());
        assert!(told.way_out.contains("--device"), "{told:?}");

        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("renderD128");
        fs::write(&file, "").unwrap();
        let denied = || io::Error::from_raw_os_error(libc::EACCES);
        let gid = fs::metadata(&file).unwrap().gid();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
        let told = unusable("the render node", &file, &denied());
        assert!(told.why.contains(&format!("group number {gid}")), "{told:?}");
        assert!(told.why.contains("mode 660; this process is in groups "), "{told:?}");
        // The files of a test are of its own group.
        assert!(told.way_out.contains("something else"), "{told:?}");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let told = unusable("the render node", &file, &denied());
        assert!(told.way_out.contains("chmod g+rw"), "{told:?}");
        if nix::unistd::geteuid().is_root() {
            fs::set_permissions(&file, fs::Permissions::from_mode(0o660)).unwrap();
            nix::unistd::chown(&file, None, Some(Gid::from_raw(54_321))).unwrap();
            let told = unusable("the render node", &file, &denied());
            assert!(told.way_out.contains("--group-add 54321"), "{told:?}");
        }
    }
}
