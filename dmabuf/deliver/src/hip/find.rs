//! Where the HIP runtime is.
//!
//! A process must have one runtime only: a second one frees what the first one made. So one that is
//! loaded already is taken; then the one that the user names; else all places are looked into, and
//! different files are an error that lists them.

use std::env;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::error::HipError;

/// File names, in the order in which they are looked for in a folder.
const NAMES: [&str; 4] =
    ["libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5"];

/// The environment variable that names the library.
pub const OVERRIDE: &str = "BATCHFS_HIP_LIBRARY";

/// Why a library is a candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// It is loaded in this process.
    Loaded,
    /// `BATCHFS_HIP_LIBRARY` names it.
    Override,
    /// A Python package brings it.
    Wheel,
    /// It is below `ROCM_PATH`.
    RocmPath,
    /// It is below `/opt/rocm`.
    OptRocm,
    /// The dynamic loader finds it.
    Loader,
}

impl Origin {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Origin::Loaded => "loaded already",
            Origin::Override => OVERRIDE,
            Origin::Wheel => "of a Python package",
            Origin::RocmPath => "ROCM_PATH",
            Origin::OptRocm => "/opt/rocm",
            Origin::Loader => "the loader's path",
        }
    }
}

/// A library that may be the runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its file.
    pub path: PathBuf,
    /// Why it is one.
    pub origin: Origin,
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path.display(), self.origin.name())
    }
}

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// Files of that name that this process has mapped.
    pub loaded: Vec<PathBuf>,
    /// The library that the user names.
    pub named: Option<OsString>,
    /// Folders of Python packages that may hold one.
    pub wheels: Vec<PathBuf>,
    /// The user's ROCm.
    pub rocm_path: Option<PathBuf>,
    /// The usual one.
    pub opt: PathBuf,
    /// The dynamic loader's folders.
    pub loader: Vec<PathBuf>,
}

impl Places {
    /// Those of this process.
    pub fn here(wheels: &[PathBuf]) -> Places {
        Places {
            loaded: loaded(),
            named: env::var_os(OVERRIDE).filter(|n| !n.is_empty()),
            wheels: wheels.to_vec(),
            rocm_path: env::var_os("ROCM_PATH").filter(|p| !p.is_empty()).map(PathBuf::from),
            opt: PathBuf::from("/opt/rocm"),
            loader: loader_folders(),
        }
    }

    /// The one runtime of this process.
    ///
    /// # Errors
    /// If there is none, or more than one without a word on which is meant, or the one that is named
    /// cannot be taken.
    pub fn find(&self) -> Result<Candidate, HipError> {
        let loaded = distinct(self.loaded.iter().map(|p| (p.clone(), Origin::Loaded)));
        if let Some(named) = &self.named {
            return self.named(Path::new(named), &loaded);
        }
        if !loaded.is_empty() {
            return one(loaded);
        }
        let wheels = self.wheels.iter().filter_map(|f| in_folder(f)).map(|p| (p, Origin::Wheel));
        let mut all: Vec<_> = wheels.collect();
        match self.rocm_path.as_deref().and_then(|p| in_folder(&p.join("lib"))) {
            // Whoever sets it has chosen among the system's.
            Some(chosen) => all.push((chosen, Origin::RocmPath)),
            None => {
                all.extend(in_folder(&self.opt.join("lib")).map(|p| (p, Origin::OptRocm)));
                let first = self.loader.iter().find_map(|folder| in_folder(folder));
                all.extend(first.map(|p| (p, Origin::Loader)));
            }
        }
        let all = distinct(all.into_iter());
        if all.is_empty() { Err(HipError::NotFound { looked: self.looked() }) } else { one(all) }
    }

    fn named(&self, path: &Path, loaded: &[Candidate]) -> Result<Candidate, HipError> {
        let refused = |why: String| HipError::Override { path: path.to_owned(), why };
        if !path.is_absolute() {
            return Err(refused("is no absolute path".into()));
        }
        let found = fs::metadata(path).map_err(|e| refused(format!("cannot be used: {e}")))?;
        if !found.is_file() {
            return Err(refused("is no file".into()));
        }
        let same = |one: &&Candidate| identity(&one.path) == Some((found.dev(), found.ino()));
        match (loaded.first(), loaded.iter().find(same)) {
            (Some(other), None) => Err(refused(format!(
                "another HIP runtime is loaded in this process already, {}; import batchfs before what loads it, or leave the variable out",
                other.path.display()
            ))),
            _ => Ok(Candidate { path: path.to_owned(), origin: Origin::Override }),
        }
    }

    fn looked(&self) -> Vec<PathBuf> {
        let mut all: Vec<PathBuf> = self.wheels.clone();
        all.extend(self.rocm_path.iter().map(|p| p.join("lib")));
        all.push(self.opt.join("lib"));
        all.extend(self.loader.iter().cloned());
        all.retain(|folder| folder.is_dir());
        if all.is_empty() {
            all.push(self.opt.join("lib"));
        }
        all
    }
}

fn one(mut found: Vec<Candidate>) -> Result<Candidate, HipError> {
    match found.len() {
        1 => Ok(found.remove(0)),
        _ => Err(HipError::Several { found }),
    }
}

fn in_folder(folder: &Path) -> Option<PathBuf> {
    NAMES.iter().map(|name| folder.join(name)).find(|file| file.is_file())
}

fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// Each file once, however many names it has.
fn distinct(all: impl Iterator<Item = (PathBuf, Origin)>) -> Vec<Candidate> {
    let mut seen = Vec::new();
    let mut found = Vec::new();
    for (path, origin) in all {
        let id = identity(&path);
        if id.is_none() || !seen.contains(&id) {
            seen.push(id);
            found.push(Candidate { path, origin });
        }
    }
    found
}

/// Libraries of that name among this process's mappings. Packages may change a name up to its
/// suffix.
fn loaded() -> Vec<PathBuf> {
    fs::read_to_string("/proc/self/maps").map(|maps| loaded_of(&maps)).unwrap_or_default()
}

fn loaded_of(maps: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for line in maps.lines() {
        let Some(at) = line.find('/') else { continue };
        let path = Path::new(&line[at..]);
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let ours = name.starts_with("libamdhip64") && name.contains(".so");
        if ours && !name.ends_with("(deleted)") && !found.iter().any(|f| f == path) {
            found.push(path.to_owned());
        }
    }
    found
}

/// The folders that the dynamic loader looks into, in its order.
fn loader_folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = env::var_os("LD_LIBRARY_PATH")
        .map(|all| env::split_paths(&all).filter(|p| p.is_absolute()).collect())
        .unwrap_or_default();
    let mut files: Vec<PathBuf> = fs::read_dir("/etc/ld.so.conf.d")
        .map(|all| all.flatten().map(|e| e.path()).collect())
        .unwrap_or_default();
    files.sort();
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_default();
        folders.extend(text.lines().map(str::trim).filter(|l| l.starts_with('/')).map(Into::into));
    }
    let machine = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    folders.extend([machine.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"].map(Into::into));
    let mut seen = Vec::new();
    folders.retain(|f: &PathBuf| {
        let fresh = !seen.contains(f);
        seen.push(f.clone());
        fresh
    });
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    fn library(folder: &Path, name: &str) -> PathBuf {
        fs::create_dir_all(folder).unwrap();
        let file = folder.join(name);
        fs::write(&file, folder.as_os_str().as_encoded_bytes()).unwrap();
        file
    }

    fn nowhere(root: &Path) -> Places {
        Places { opt: root.join("opt"), ..Places::default() }
    }

    #[test]
    fn each_place_is_looked_into() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        let none = nowhere(at).find().unwrap_err();
        assert!(none.to_string().contains(&format!("{}", at.join("opt/lib").display())), "{none}");
        for name in NAMES {
            let file = library(&at.join(name), name);
            let places = Places { wheels: vec![at.join(name)], ..nowhere(at) };
            let want = Candidate { path: file.clone(), origin: Origin::Wheel };
            assert_eq!(places.find().unwrap(), want);
            let places = Places { loader: vec![at.join("no"), at.join(name)], ..nowhere(at) };
            assert_eq!(places.find().unwrap().origin, Origin::Loader);
        }
        let file = library(&at.join("rocm/lib"), "libamdhip64.so.6");
        let places = Places { rocm_path: Some(at.join("rocm")), ..nowhere(at) };
        assert_eq!(places.find().unwrap(), Candidate { path: file, origin: Origin::RocmPath });
        let file = library(&at.join("opt/lib"), "libamdhip64.so.7");
        assert_eq!(nowhere(at).find().unwrap().path, file);
    }

    #[test]
    fn names_of_one_file_are_one_library() {
        let root = tempfile::tempdir().unwrap();
        let file = library(&root.path().join("a"), "libamdhip64.so.6");
        let other = root.path().join("b");
        fs::create_dir(&other).unwrap();
        std::os::unix::fs::symlink(&file, other.join("libamdhip64.so")).unwrap();
        let wheels = vec![other.clone(), root.path().join("a")];
        let found = Places { wheels, ..nowhere(root.path()) }.find().unwrap();
        assert_eq!(found.path, other.join("libamdhip64.so"));
    }

    #[test]
    fn two_are_an_error_that_lists_them() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        let (a, b) = (library(&at.join("a"), NAMES[1]), library(&at.join("b"), NAMES[2]));
        let two = Places { wheels: vec![at.join("a"), at.join("b")], ..nowhere(at) };
        let told = two.find().unwrap_err().to_string();
        for part in
            ["2 different", "a/libamdhip64.so.7 (of a", "b/libamdhip64.so.6 (of a", "HIP_LIBRARY"]
        {
            assert!(told.contains(part), "{told}");
        }
        // The user's word, and what is loaded already, settle it.
        let named = Places { named: Some(b.clone().into()), ..two.clone() };
        assert_eq!(named.find().unwrap().origin, Origin::Override);
        let loaded = Places { loaded: vec![a.clone()], ..two.clone() };
        assert_eq!(loaded.find().unwrap(), Candidate { path: a.clone(), origin: Origin::Loaded });
        let both = Places { loaded: vec![a.clone(), b.clone()], ..two.clone() };
        assert!(matches!(both.find(), Err(HipError::Several { found }) if found.len() == 2));
        let both = Places { loaded: vec![a, b.clone()], named: Some(b.clone().into()), ..two };
        assert_eq!(both.find().unwrap().path, b);
        // A package's and the system's are two as well; ROCM_PATH chooses among the system's alone.
        library(&at.join("opt/lib"), NAMES[0]);
        let places = Places { wheels: vec![at.join("a")], ..nowhere(at) };
        assert!(matches!(places.find(), Err(HipError::Several { .. })));
        let places = Places { rocm_path: Some(at.join("rocm")), ..nowhere(at) };
        assert_eq!(places.find().unwrap().origin, Origin::OptRocm, "an empty ROCM_PATH is none");
        library(&at.join("rocm/lib"), NAMES[0]);
        assert_eq!(places.find().unwrap().origin, Origin::RocmPath);
    }

    #[test]
    fn the_override_is_honoured_or_refused_by_name() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        let good = library(&at.join("a"), "any-name.so");
        let other = library(&at.join("b"), NAMES[0]);
        let with = |named: &Path| Places { named: Some(named.into()), ..nowhere(at) };
        assert_eq!(with(&good).find().unwrap().path, good);
        let missing = at.join("missing.so");
        for (named, why) in [
            (missing.as_path(), "No such file"),
            (at, "is no file"),
            (Path::new("libamdhip64.so"), "is no absolute path"),
        ] {
            let told = with(named).find().unwrap_err().to_string();
            let start = format!("BATCHFS_HIP_LIBRARY={}: ", named.display());
            assert!(told.starts_with(&start) && told.contains(why), "{told}");
        }
        let places = Places { loaded: vec![other.clone()], ..with(&good) };
        let told = places.find().unwrap_err().to_string();
        assert!(told.contains(other.to_str().unwrap()), "{told}");
    }

    #[test]
    fn what_is_loaded_is_found_among_the_mappings() {
        let maps = "\
7f00-7f01 r-xp 00000000 fe:00 5   /opt/a b/libamdhip64.so.6.2.41134
7f01-7f02 r--p 00000000 fe:00 5   /opt/a b/libamdhip64.so.6.2.41134
7f02-7f03 r-xp 00000000 fe:00 6   /x/torch/lib/libamdhip64-5bd8a2cd.so
7f03-7f04 r-xp 00000000 fe:00 7   /x/libamdhip64.so.5 (deleted)
7f04-7f05 r-xp 00000000 fe:00 8   /x/libamdhip64.txt
7f05-7f06 rw-p 00000000 00:00 0
7f06-7f07 r-xp 00000000 fe:00 9   /x/libhsa-runtime64.so.1
";
        let want = ["/opt/a b/libamdhip64.so.6.2.41134", "/x/torch/lib/libamdhip64-5bd8a2cd.so"];
        assert_eq!(loaded_of(maps), want.map(PathBuf::from));
    }
}
