use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// What tells the file or folder at `path` from one that takes its place later: device, inode, time
/// of the last change and size. `None` if there is nothing to be seen.
///
/// Stores are never written to once they are there, so that their folder stands for all of them.
pub fn stamp(path: &Path) -> Option<String> {
    let meta = path.metadata().ok()?;
    let (dev, ino, size) = (meta.dev(), meta.ino(), meta.size());
    Some(format!("{dev:x}:{ino}:{}.{:09}:{size}", meta.mtime(), meta.mtime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::stamp;

    #[test]
    fn a_file_in_the_place_of_another_has_another_stamp() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        assert_eq!(stamp(&path), None);
        std::fs::write(&path, "one").unwrap();
        let first = stamp(&path).unwrap();
        assert_eq!(stamp(&path).unwrap(), first);
        let other = folder.path().join("y");
        std::fs::write(&other, "two").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_ne!(stamp(&path).unwrap(), first);
    }
}
