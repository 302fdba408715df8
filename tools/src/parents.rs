//! Folders that are made on the way to something, and go again if that does not come to be.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Folders that were made here, the outermost first. Dropped, they go away as far as they are empty.
#[derive(Default)]
pub struct Parents(Vec<PathBuf>);

impl Parents {
    /// Makes the folder that `path` is to be in, and those that this one is in.
    pub fn of(path: &Path) -> io::Result<Parents> {
        let mut made = Parents::default();
        let Some(parent) = path.parent() else { return Ok(made) };
        let mut missing: Vec<&Path> =
            parent.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.is_dir()).collect();
        while let Some(folder) = missing.pop() {
            match fs::create_dir(folder) {
                Ok(()) => made.0.push(folder.to_owned()),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(made)
    }

    /// What they were made for is there.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Parents {
    fn drop(&mut self) {
        while let Some(folder) = self.0.pop() {
            // Somebody else may use it by now.
            if fs::remove_dir(folder).is_err() {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_goes_again_unless_it_is_kept_or_used() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        fs::create_dir(&there).unwrap();
        let deep = there.join("a/b/c/store");

        let made = Parents::of(&deep).unwrap();
        assert!(there.join("a/b/c").is_dir() && !deep.exists());
        drop(made);
        assert!(there.is_dir() && !there.join("a").exists());

        let made = Parents::of(&deep).unwrap();
        fs::write(there.join("a/b/of somebody else"), "x").unwrap();
        drop(made);
        assert!(there.join("a/b").is_dir() && !there.join("a/b/c").exists());

        Parents::of(&deep).unwrap().keep();
        assert!(there.join("a/b/c").is_dir());
        assert!(Parents::of(Path::new("name")).unwrap().0.is_empty());
        assert!(Parents::of(Path::new("/")).unwrap().0.is_empty());
        fs::write(there.join("file"), "x").unwrap();
        assert!(Parents::of(&there.join("file/x/store")).is_err());
    }
}
