use std::fmt;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::{Mutex, OnceLock, PoisonError};

use super::error::HipError;
use super::find::{Candidate, Places};
use crate::sys::hip::{Answer, Functions, NotLoaded};

/// The one runtime of this process. It is never unloaded.
static RUNTIME: OnceLock<Runtime> = OnceLock::new();
/// Held while it is being loaded.
static LOADING: Mutex<()> = Mutex::new(());

/// A loaded HIP runtime.
pub struct Runtime {
    pub(super) functions: Functions,
    library: Candidate,
    without: Vec<&'static str>,
    process: u32,
}

impl Runtime {
    /// The runtime of this process, loaded the first time. `wheels` are folders of Python packages that
    /// may bring one.
    ///
    /// # Errors
    /// If there is none, more than one, or it cannot be used. It is looked for again the next time.
    pub fn get(wheels: &[PathBuf]) -> Result<&'static Runtime, HipError> {
        if RUNTIME.get().is_none() {
            let _one = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
            if RUNTIME.get().is_none() {
                let made = Runtime::load(Places::here(wheels).find()?)?;
                let _ = RUNTIME.set(made);
            }
        }
        let Some(runtime) = RUNTIME.get() else {
            return Err(HipError::NotFound { looked: wheels.to_vec() });
        };
        runtime.usable().then_some(runtime).ok_or(HipError::Forked)
    }

    fn load(library: Candidate) -> Result<Runtime, HipError> {
        let path = library.path.clone();
        let (functions, without) = Functions::load(&path).map_err(|e| match e {
            NotLoaded::Loader(why) => HipError::Load { path, why },
            NotLoaded::Lacks(missing) => HipError::Lacks { path, missing },
        })?;
        Ok(Runtime { functions, library, without, process: process::id() })
    }

    /// Whether this is still the process that loaded it.
    pub(super) fn usable(&self) -> bool {
        self.process == process::id()
    }

    /// Where it was found, and why it was taken.
    pub fn library(&self) -> &Candidate {
        &self.library
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.library.path
    }

    /// Optional functions that it lacks.
    pub fn without(&self) -> &[&'static str] {
        &self.without
    }

    /// Its version, as `6.2.41134`, if it tells.
    pub fn version(&self) -> Option<String> {
        let n = self.functions.version()?;
        Some(format!("{}.{}.{}", n / 10_000_000, n / 100_000 % 100, n % 100_000))
    }

    /// How many devices it sees.
    ///
    /// # Errors
    /// If it cannot be started, as on a machine without a GPU of AMD's.
    pub fn devices(&self) -> Result<i32, HipError> {
        if !self.usable() {
            return Err(HipError::Forked);
        }
        self.told("hipInit", self.functions.init())?;
        self.told("hipGetDeviceCount", self.functions.device_count())
    }

    /// HIP's answer with its words.
    pub(super) fn told<T>(&self, function: &'static str, answer: Answer<T>) -> Result<T, HipError> {
        answer.map_err(|code| {
            self.functions.forget_error();
            let text = self.functions.error_string(code);
            HipError::Call { function, code, text, path: self.library.path.clone() }
        })
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Runtime({})", self.library)
    }
}
